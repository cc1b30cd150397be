"""Runs that were killed go on as if nothing had happened."""

from __future__ import annotations

import csv
import importlib
import io
import os
import shutil
import signal
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer import TokenizerPair, Translator, open_pairs, train
from keras_transformer.training import average_run, machine, run_directory, state
from keras_transformer.training.state import StateFiles
from tests import tiny_run

# The package's attribute of this name is the function.
fit = importlib.import_module("keras_transformer.training.train")

# Everything that has a state: dropout, accumulated gradients, moving averages.
OPTIONS = {
    "epochs": 2,
    "checkpoint_updates": 2,
    "gradient_accumulation_steps": 2,
    "ema_decay": 0.9,
    "global_clipnorm": 1.0,
}


class Killed(Exception):
    """Stands for the end of the process."""


class Extra(keras.callbacks.Callback):
    """A callback that a test adds; it comes before the others unless it `is_last`."""

    is_last = False


class KillAfter(Extra):
    """Ends the run after some batches, before its state is saved."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


class Folder:
    """A directory for one run and its text."""

    def __init__(self, path):
        path.mkdir(exist_ok=True)
        self.run = path / "run"
        self.text = tiny_run.write_pairs(path / "train.tsv")
        self.valid = tiny_run.write_pairs(path / "valid.tsv", tiny_run.VALID)
        self.screen = io.StringIO()

    def train(self, data=None, extra=None, **training):
        """Trains, with a callback `extra` if given; returns the translator."""
        training = {"average_checkpoints": 2, "warmup_steps": 10} | OPTIONS | training
        config = tiny_run.CONFIG.replace(
            training=tiny_run.CONFIG.training.replace(**training),
            data=tiny_run.CONFIG.data.replace(**{"batch_tokens": 120} | (data or {})),
        )
        made = fit._callbacks
        with pytest.MonkeyPatch.context() as patch:
            if extra is not None:
                # Before all others, or after those that write and before the state.
                first, last = ([], [extra]) if extra.is_last else ([extra], [])
                patch.setattr(fit, "_callbacks", lambda *a: first + made(*a) + last)
            return train(
                open_pairs(self.text), self.run, config, open_pairs(self.valid),
                Console(file=self.screen, width=200),
            )  # fmt: skip

    def final(self):
        """All variables at the end, those of optimizer, dropout and metrics too."""
        return StateFiles(self.run / "states", 1).latest(Console(quiet=True))

    def log(self):
        with open(self.run / "log.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        # The one figure that is of the clock.
        return [row.pop("tokens_per_second") and row for row in rows]

    def said(self, words):
        return words in self.screen.getvalue()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A whole run, its final weights and its batches an epoch."""
    folder = Folder(tmp_path_factory.mktemp("uninterrupted"))
    folder.weights = folder.train().model.get_weights()
    folder.batches = int(folder.screen.getvalue().split(" batches")[0].split()[-1])
    return folder


def assert_same_run(folder, weights, expected):
    for found, weight in zip(weights, expected.weights, strict=True):
        np.testing.assert_array_equal(found, weight)
    found, other = folder.final(), expected.final()
    assert (found.updates, found.epoch, found.batch) == (
        other.updates, other.epoch, other.batch,
    )  # fmt: skip
    for value, other_value in zip(found.values, other.values, strict=True):
        np.testing.assert_array_equal(value, other_value)
    assert folder.log() == expected.log()
    names = sorted(path.name for path in (folder.run / "checkpoints").iterdir())
    assert names == sorted(p.name for p in (expected.run / "checkpoints").iterdir())


def killed(folder, batches, **training):
    with pytest.raises(Killed):
        folder.train(extra=KillAfter(batches), **training)


def test_a_run_killed_in_the_middle_of_epochs_ends_the_same(uninterrupted, tmp_path):
    folder, batches = Folder(tmp_path), uninterrupted.batches
    assert batches >= 6
    killed(folder, batches - 1)
    assert folder.final().batch % 4 == 0 < folder.final().batch
    # In the second epoch, reached from the middle of the first.
    killed(folder, batches)
    weights = folder.train().model.get_weights()
    assert folder.said("of epoch 2")
    assert_same_run(folder, weights, uninterrupted)
    assert logged_epochs(folder) == [0, 1]


@pytest.mark.slow
def test_a_run_killed_before_its_first_state_begins_anew(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    killed(folder, 1)
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


class KillAtEpochEnd(Extra):
    """Ends the run when the logs of an epoch are written and its state is not."""

    is_last = True

    def on_epoch_end(self, epoch, logs=None):
        raise Killed


@pytest.mark.slow
def test_what_was_logged_after_the_last_state_is_not_repeated(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    with pytest.raises(Killed):
        folder.train(extra=KillAtEpochEnd())
    assert len(folder.log()) == 1
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)
    assert logged_epochs(folder) == [0, 1]


def logged_epochs(folder):
    log = EventAccumulator(str(folder.run / "tensorboard" / "validation")).Reload()
    return [event.step for event in log.Tensors("epoch_loss")]


@pytest.mark.slow
def test_a_run_killed_after_every_batch_ends_the_same(uninterrupted, tmp_path):
    # Each run gets one update further, and loses the batch after it.
    folder = Folder(tmp_path)
    for _ in range(uninterrupted.batches - 1):
        killed(folder, 3, checkpoint_updates=1)
    weights = folder.train(checkpoint_updates=1).model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


@pytest.mark.slow
def test_several_batches_a_call_give_the_same_run(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    options = {"steps_per_execution": 4}
    killed(folder, 2, checkpoint_updates=1, **options)
    assert folder.final().batch == 4
    weights = folder.train(**options).model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


@pytest.mark.slow
def test_a_damaged_state_falls_back_to_the_one_before(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    killed(folder, uninterrupted.batches - 1, checkpoint_updates=1)
    older, newest = StateFiles(folder.run / "states", 2).paths()
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    weights = folder.train().model.get_weights()
    assert folder.said(f"warning: {newest} is damaged")
    assert_same_run(folder, weights, uninterrupted)
    assert not older.exists()


def cut_states(folder):
    for path in (folder.run / "states").iterdir():
        path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.slow
def test_a_run_without_a_whole_state_begins_anew(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    killed(folder, uninterrupted.batches - 1)
    cut_states(folder)
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


@pytest.mark.slow
def test_but_does_not_throw_its_checkpoints_away(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    killed(folder, uninterrupted.batches + 2)
    cut_states(folder)
    before = (folder.run / "log.csv").read_bytes()
    for _ in range(2):
        with pytest.raises(ValueError, match="No state in .* can be read.*begin again"):
            folder.train()
    assert (folder.run / "log.csv").read_bytes() == before
    assert len(list((folder.run / "checkpoints").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pytest.param(OSError(5, "Input/output error"), marks=pytest.mark.slow),
    ],
)
def test_a_state_that_cannot_be_read_now_is_kept(
    uninterrupted, tmp_path, monkeypatch, error
):
    folder = Folder(tmp_path)
    killed(folder, uninterrupted.batches + 2)
    names = sorted((folder.run / "states").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(state.np, "load", failing(error))
        with pytest.raises(type(error)):
            folder.train()
    assert sorted((folder.run / "states").iterdir()) == names
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.slow
def test_a_run_that_ended_without_its_model_makes_it_of_the_state(
    tmp_path, monkeypatch
):
    folder = Folder(tmp_path)
    killed(folder, 5, ema_decay=None)
    # A limit that was passed before the first epoch ended, so before a checkpoint.
    limits = {"max_updates": 2, "ema_decay": None}
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "save", failing(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left"):
            folder.train(**limits)
    assert not list((folder.run / "checkpoints").glob("*"))
    weights = folder.train(**limits).model.get_weights()
    final = folder.final()
    kept = zip(final.variables, final.values, strict=True)
    values = [value for (path, *_), value in kept if "seed_generator" not in path]
    for weight, value in zip(weights, values, strict=False):
        np.testing.assert_array_equal(weight, value)


@pytest.mark.slow
def test_a_run_without_checkpoints_saves_the_moving_average(tmp_path):
    folder = Folder(tmp_path)
    killed(folder, 5)
    trained = folder.train(max_updates=2).model
    assert not list((folder.run / "checkpoints").glob("*"))
    saved = Translator.load(folder.run).model
    averages = trained.optimizer._model_variables_moving_average
    for weight, average in zip(saved.trainable_weights, averages, strict=True):
        np.testing.assert_array_equal(weight.numpy(), average.numpy())


@pytest.mark.slow
def test_a_full_disk_leaves_the_older_state(uninterrupted, tmp_path, monkeypatch):
    folder, saved = Folder(tmp_path), []
    savez = np.savez

    def full(stream, **parts):
        saved.append(stream)
        if len(saved) == 2:
            stream.write(b"half")
            raise OSError(28, "No space left on device")
        savez(stream, **parts)

    monkeypatch.setattr(state.np, "savez", full)
    with pytest.raises(OSError, match="No space left"):
        folder.train()
    monkeypatch.undo()
    assert [path.name for path in (folder.run / "states").iterdir()] == [
        "update-000000002-epoch-0000-batch-000004.npz"
    ]
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


@pytest.mark.slow
def test_sigterm_ctrl_c_and_a_closed_terminal_save_and_stop(uninterrupted, tmp_path):
    class Signal(Extra):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                os.kill(os.getpid(), self.number)

    folder = Folder(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped:
        folder.train(extra=Signal(signal.SIGTERM))
    assert stopped.value.code == 143
    assert (folder.final().epoch, folder.final().batch) == (0, 3)
    assert folder.said("stopped by SIGTERM after 1 updates; the same command goes on")
    with pytest.raises(KeyboardInterrupt):
        folder.train(extra=Signal(signal.SIGINT))
    assert (folder.final().epoch, folder.final().batch) == (0, 6)
    with pytest.raises(SystemExit) as stopped:
        folder.train(extra=Signal(signal.SIGHUP))
    assert stopped.value.code == 129
    assert (folder.final().epoch, folder.final().batch) == (1, 3)
    assert signal.getsignal(signal.SIGTERM) is before
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


class MoveAway(Extra):
    """Moves a file of text away in the second epoch."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.path.rename(self.path.with_suffix(".moved"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "side", ["text", pytest.param("valid", marks=pytest.mark.slow)]
)
def test_text_that_goes_or_changes_is_named_in_one_line(uninterrupted, tmp_path, side):
    folder, streamed = Folder(tmp_path), {"shuffle_buffer": 5}
    path = getattr(folder, side)
    with pytest.raises(FileNotFoundError) as gone:
        folder.train(data=streamed, extra=MoveAway(path))
    assert gone.value.filename == str(path)
    moved = path.with_suffix(".moved")
    moved.rename(path)

    class Replace(MoveAway):
        def on_epoch_begin(self, epoch, logs=None):
            super().on_epoch_begin(epoch)
            if epoch == 1:
                lines = moved.read_text(encoding="utf-8").splitlines(keepends=True)
                path.write_text("".join(reversed(lines)), encoding="utf-8")
                os.utime(path, ns=(1, 1))

    with pytest.raises(ValueError) as changed:
        folder.train(data=streamed, extra=Replace(path))
    assert str(changed.value).startswith(f"{path} has changed since it was first read")
    assert "\n" not in str(changed.value) and "PyFunc" not in str(changed.value)
    moved.rename(path)
    folder.train(data=streamed)
    assert folder.final().updates == uninterrupted.final().updates


@pytest.mark.slow
def test_a_run_with_a_higher_limit_goes_on_exactly(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    folder.train(max_updates=2)
    assert (folder.run / "model.keras").exists()
    assert len(folder.log()) == 1
    assert folder.final().batch == 4
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)


def test_a_finished_run_is_only_loaded(uninterrupted, tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    shutil.copytree(uninterrupted.run, folder.run)
    monkeypatch.setattr(keras.Model, "fit", lambda *_, **__: pytest.fail("trained"))
    weights = folder.train().model.get_weights()
    assert folder.said("is finished:")
    assert_same_run(folder, weights, uninterrupted)
    # Killed after the last state and before the model was written.
    (folder.run / "model.keras").unlink()
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)
    assert (folder.run / "model.keras").exists()


def test_other_options_and_other_text_are_refused(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    shutil.copytree(uninterrupted.run, folder.run)
    expected = "other options: `seed` is 5 and was 1; .*may change: .*max_updates"
    expected = expected.replace("; ", r"\. ")
    with pytest.raises(ValueError, match=expected):
        folder.train(seed=5)
    with pytest.raises(ValueError, match="`batch_tokens` is 99 and was 120"):
        folder.train(data={"batch_tokens": 99})
    lines = folder.valid.read_text(encoding="utf-8").splitlines(keepends=True)
    folder.valid.write_text("".join(reversed(lines)), encoding="utf-8")
    with pytest.raises(ValueError, match="a run with other validation data"):
        folder.train()
    tiny_run.write_pairs(folder.text, tiny_run.PAIRS)
    with pytest.raises(ValueError, match="a run with other training data"):
        folder.train()


def swap_two_letters(folder):
    """Makes the tokenizer of a run another one of as many pieces; returns its file."""
    path = folder.run / "tokenizer" / "joint.model"
    content = path.read_bytes()
    # The piece "▁the", of which three letters come in any order as often.
    changed = content.replace("▁the".encode(), "▁teh".encode())
    assert changed != content
    path.write_bytes(changed)
    return path


def test_another_tokenizer_is_refused_wherever_the_run_is_read(uninterrupted, tmp_path):
    finished, broken_off = Folder(tmp_path / "finished"), Folder(tmp_path / "broken")
    shutil.copytree(uninterrupted.run, finished.run)
    killed(broken_off, uninterrupted.batches + 2)
    for folder in (finished, broken_off):
        path = swap_two_letters(folder)
        refused = pytest.raises(ValueError, match=f"{path} is not the file that")
        with refused:
            folder.train()
        with refused:
            average_run(folder.run, tmp_path / "mean")
    with refused:
        TokenizerPair.load(broken_off.run / "tokenizer")
    with pytest.raises(ValueError, match="is not the file that the model"):
        Translator.load(finished.run)


@pytest.mark.slow
def test_a_run_begun_before_there_were_digests_goes_on(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    killed(folder, uninterrupted.batches - 1)
    (folder.run / "tokenizer.sha256").unlink()
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)
    assert (folder.run / "tokenizer.sha256").exists()


@pytest.mark.slow
def test_going_on_with_other_threads_is_said_in_a_line(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    killed(folder, uninterrupted.batches - 1)
    assert folder.final().machine["parts"] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "num_parts", lambda: 7)
        killed(folder, 3)
    said = "warning: going on with parts 7 (before: 1): the result is that of an "
    said += "uninterrupted run to rounding only, and dropout may draw other numbers\n"
    assert folder.screen.getvalue().count("warning") == 1
    assert folder.said(said)


@pytest.mark.slow
def test_states_that_tell_no_machine_go_on_without_a_word(uninterrupted, tmp_path):
    folder = Folder(tmp_path)
    killed(folder, uninterrupted.batches - 1)
    files = StateFiles(folder.run / "states", 1)
    # As they were written before: with a rate that went on, and nothing of the machine.
    old = files.latest(Console(quiet=True))
    old.callbacks["TokenRate"] = {"tokens": 7, "seconds": 0.5}
    written = state._without_values
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_without_values", lambda s: without_machine(written(s)))
        files.save(old)
    assert files.latest(Console(quiet=True)).machine == {}
    weights = folder.train().model.get_weights()
    assert_same_run(folder, weights, uninterrupted)
    assert not folder.said("warning")


def without_machine(header):
    return {name: value for name, value in header.items() if name != "machine"}


@pytest.mark.one_case
@pytest.mark.parametrize("step", ["tokenizer", "data.json", "config.json"])
def test_a_run_killed_while_it_was_set_up_starts_again(
    tmp_path, monkeypatch, step, uninterrupted
):
    folder = Folder(tmp_path)
    replacing = run_directory.replacing

    def dying(path):
        if path.name == step:
            raise Killed
        return replacing(path)

    def half_saved(tokenizers, directory):
        directory.mkdir()
        (directory / "joint.model").write_bytes(b"")
        (directory / ".partial-7-joint.model").write_bytes(b"half")
        raise Killed

    monkeypatch.setattr(run_directory, "replacing", dying)
    if step == "tokenizer":
        monkeypatch.setattr(run_directory.TokenizerPair, "save", half_saved)
    with pytest.raises(Killed):
        folder.train(epochs=1)
    monkeypatch.undo()
    monkeypatch.setattr(fit, "_train_to_the_end", lambda *_: fail_later())
    with pytest.raises(Killed):
        folder.train(epochs=1)
    names = sorted(path.name for path in folder.run.iterdir())
    assert names == ["config.json", "data.json", "tokenizer", "tokenizer.sha256"]
    assert [path.name for path in sorted((folder.run / "tokenizer").iterdir())] == [
        "joint.model", "tokenizer.json",
    ]  # fmt: skip
    same = (p / "tokenizer" / "joint.model" for p in (folder.run, uninterrupted.run))
    assert len({path.read_bytes() for path in same}) == 1


def test_half_an_export_is_removed(tmp_path):
    half = tmp_path / "export" / "en-de" / ".4-12ab.partial"
    half.mkdir(parents=True)
    (half / "saved_model.pb").write_bytes(b"half")
    (half.parent / "3").mkdir()
    run_directory.RunDirectory.remove_temporary_files(SimpleNamespace(path=tmp_path))
    assert [path.name for path in half.parent.iterdir()] == ["3"]


def fail_later():
    raise Killed


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    folder = Folder(tmp_path)
    with run_directory.RunDirectory(folder.run).locked():
        with pytest.raises(BlockingIOError, match="Another process is training in"):
            folder.train()


def test_a_directory_with_something_else_is_refused(tmp_path):
    for name in ("tokenizer/mine.txt", "notes.txt", "config.json"):
        directory = tmp_path / name.replace("/", "-")
        path = directory / name
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        with pytest.raises(FileExistsError, match="holds something already"):
            run_directory.RunDirectory(directory)
