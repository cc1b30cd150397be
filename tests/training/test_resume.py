"""Runs that were interrupted end as if nothing had happened."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import RunConfig, TokenizerPair, Translator, train
from keras_transformer.training import average_run, devices, model, run, state
from keras_transformer.training.run import Run
from keras_transformer.training.state import StateFiles
from tests import tiny_run

# Everything that has a state: dropout, accumulated gradients, moving averages.
OPTIONS = {
    "epochs": 2, "save_every": 4, "gradient_accumulation_steps": 2, "ema_decay": 0.9,
    "global_clipnorm": 1.0, "average_checkpoints": 2,
}  # fmt: skip


class Killed(Exception):
    """Stands for the end of the process."""


class KillAfter(keras.callbacks.Callback):
    """Ends the run after some batches, before its state is saved."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


class Count(keras.callbacks.Callback):
    """Counts batches over the whole run, and adds a figure to the logs."""

    def __init__(self):
        super().__init__()
        self.batches = self.begun = 0

    def on_train_begin(self, logs=None):
        self.begun += 1

    def on_train_batch_begin(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        logs["seen"] = self.batches

    def state(self):
        return self.batches

    def restore(self, state):
        self.batches = state


class Folder:
    """A directory for one run and its text."""

    def __init__(self, path):
        path.mkdir(exist_ok=True)
        self.run = path / "run"
        self.text = tiny_run.write_pairs(path / "train.tsv")
        self.valid = tiny_run.write_pairs(path / "valid.tsv", tiny_run.VALID)
        self.screen = io.StringIO()

    def train(self, *callbacks, data=None, **training):
        """Trains; returns the translator."""
        data = {"batch_tokens": 120} | (data or {})
        config = tiny_run.CONFIG.replace(
            training=tiny_run.CONFIG.training.replace(**OPTIONS | training),
            data=tiny_run.CONFIG.data.replace(**data),
        )
        console = Console(file=self.screen, width=200)
        return train(
            self.text, self.run, config, self.valid, console, callbacks=callbacks
        )

    def killed(self, batches, *callbacks, **options):
        with pytest.raises(Killed):
            self.train(KillAfter(batches), *callbacks, **options)

    def final(self):
        return StateFiles(self.run / "states").latest(Console(quiet=True))

    def said(self, words):
        return words in self.screen.getvalue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was not interrupted: seven batches an epoch."""
    folder = Folder(tmp_path_factory.mktemp("whole"))
    folder.weights = folder.train().model.get_weights()
    assert folder.said("training data: 40 pairs, 7 batches")
    assert [row["step"] for row in folder.final().history] == [4, 7, 11, 14]
    return folder


def timeless(row):
    return {n: value for n, value in row.items() if n != "tokens_per_second"}


def assert_same_run(folder, weights, expected):
    for found, weight in zip(weights, expected.weights, strict=True):
        np.testing.assert_array_equal(found, weight)
    found, other = folder.final(), expected.final()
    assert (found.step, found.updates) == (other.step, other.updates)
    for value, other_value in zip(found.values, other.values, strict=True):
        np.testing.assert_array_equal(value, other_value)
    assert [*map(timeless, found.history)] == [*map(timeless, other.history)]
    for name in ("log.csv", "checkpoints"):
        assert names(folder, name) == names(expected, name)


def names(folder, name):
    """Names of files, or how many rows a file has."""
    path = folder.run / name
    if path.is_dir():
        return sorted(each.name for each in path.iterdir())
    return len(path.read_text("utf-8").splitlines())


def test_a_run_killed_within_intervals_and_epochs_ends_the_same(whole, tmp_path):
    folder = Folder(tmp_path)
    folder.killed(6)
    assert folder.final().step == 4
    # In the second epoch, reached from within the first.
    folder.killed(6)
    assert folder.final().step == 7
    weights = folder.train().model.get_weights()
    assert folder.said("resuming after 3 updates, at batch 1 of epoch 2")
    assert_same_run(folder, weights, whole)


KINDS = {
    "BLEU": {"monitor": "bleu", "average": "best", "bleu_sentences": 3},
    "sampling": {"data": {"subword_sampling": 0.3}},
    "plain": {"gradient_accumulation_steps": 1, "ema_decay": None},
    "float16": {"mixed_precision": "float16"},
    "skipping": {"nonfinite": "skip", "save_every": None},
    "patience": {"patience": 1, "epochs": 9, "learning_rate": 10.0},
    "one": {"save_every": 1, "average_checkpoints": 1, "freeze": "encoder"},
}


@pytest.mark.one_case
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_ends_the_same(kind, tmp_path):
    options = KINDS[kind]
    expected, folder = Folder(tmp_path / "whole"), Folder(tmp_path / "killed")
    expected.weights = expected.train(Count(), **options).model.get_weights()
    for batches in (3, 5):
        folder.killed(batches, Count(), **options)
    weights = folder.train(Count(), **options).model.get_weights()
    assert_same_run(folder, weights, expected)
    rows = folder.final().history
    assert [row["seen"] for row in rows] == [row["step"] for row in rows]
    assert len(rows) < 18  # Patience ends its run.


@pytest.mark.slow
def test_a_run_killed_after_every_batch_ends_the_same(tmp_path):
    expected, folder = Folder(tmp_path / "whole"), Folder(tmp_path / "killed")
    expected.weights = expected.train(save_every=1).model.get_weights()
    for _ in range(13):
        folder.killed(2, save_every=1)
    weights = folder.train(save_every=1).model.get_weights()
    assert_same_run(folder, weights, expected)


@pytest.mark.slow
def test_intervals_of_any_length_give_the_same_weights(whole, tmp_path):
    for every in (1, 3, None):
        folder = Folder(tmp_path / str(every))
        folder.train(save_every=every)
        final = folder.final()
        for value, other in zip(final.values, whole.final().values, strict=True):
            np.testing.assert_array_equal(value, other)


@pytest.mark.slow
def test_a_row_written_after_the_last_state_is_not_repeated(
    whole, tmp_path, monkeypatch
):
    folder, save = Folder(tmp_path), StateFiles.save

    def dying(files, state):
        if state.step == 7:
            raise Killed
        save(files, state)

    monkeypatch.setattr(StateFiles, "save", dying)
    with pytest.raises(Killed):
        folder.train()
    monkeypatch.undo()
    assert names(folder, "log.csv") == 3
    assert_same_run(folder, folder.train().model.get_weights(), whole)


class Signal(keras.callbacks.Callback):
    """Sends the process a signal in the third batch."""

    def __init__(self, number):
        super().__init__()
        self.number, self.left = number, 3

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


def test_sigterm_ctrl_c_and_a_closed_terminal_save_the_batch(whole, tmp_path):
    folder, before = Folder(tmp_path), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stopped:
        folder.train(Signal(signal.SIGTERM))
    assert stopped.value.code == 143
    assert (folder.final().step, folder.final().history) == (3, [])
    assert folder.said("stopped by SIGTERM after 1 update; run the same command again")
    with pytest.raises(KeyboardInterrupt):
        folder.train(Signal(signal.SIGINT))
    assert folder.final().step == 6
    with pytest.raises(SystemExit) as stopped:
        folder.train(Signal(signal.SIGHUP))
    assert (stopped.value.code, folder.final().step) == (129, 9)
    assert signal.getsignal(signal.SIGTERM) is before
    assert_same_run(folder, folder.train().model.get_weights(), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit, ends",
    [({"max_updates": 1}, [2]), ({"max_updates": 3}, [6]), ({"epochs": 1}, [])],
)
def test_a_run_with_a_higher_limit_goes_on_exactly(limit, ends, tmp_path):
    folder = Folder(tmp_path)
    # The schedule stays that of the run's first limits.
    options = {"warmup_steps": 1, "learning_rate": 0.08}
    translator = folder.train(**options | limit)
    assert translator.model.updates == limit.get("max_updates", 3)
    assert (folder.run / "model.keras").exists() and folder.final().history
    expected = Folder(tmp_path / "whole")
    expected.train(**options)
    folder.train(**options)
    for value, other in zip(
        folder.final().values, expected.final().values, strict=True
    ):
        np.testing.assert_array_equal(value, other)
    # The end of the shorter training has a row of its own.
    steps = [row["step"] for row in folder.final().history]
    assert steps == sorted([4, 7, 11, 14, *ends])


def test_a_finished_run_is_only_loaded(whole, tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    shutil.copytree(whole.run, folder.run)
    monkeypatch.setattr(keras.Model, "fit", lambda *_, **__: pytest.fail("trained"))
    assert_same_run(folder, folder.train().model.get_weights(), whole)
    assert folder.said("is finished: 7 updates.")
    # Killed after the last state and before the model was written.
    (folder.run / "model.keras").unlink()
    assert_same_run(folder, folder.train().model.get_weights(), whole)
    assert (folder.run / "model.keras").exists()


def test_batches_stay_the_same_on_another_device(tmp_path, monkeypatch):
    folder, given = Folder(tmp_path), {"batch_tokens": None}
    folder.killed(1, data=given)
    begun = RunConfig.load(folder.run / "config.json")
    monkeypatch.setattr(model, "has_gpu", lambda: True)
    folder.killed(1, data=given)
    assert RunConfig.load(folder.run / "config.json").data == begun.data


def killed_save(*_):
    raise Killed


def test_a_longer_run_killed_before_its_model_is_saved_is_not_finished(
    whole, tmp_path, monkeypatch
):
    folder, longer = Folder(tmp_path), Folder(tmp_path / "longer")
    for each in (folder, longer):
        shutil.copytree(whole.run, each.run)
    expected = longer.train(epochs=3).model.get_weights()
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Translator, "save", killed_save)
        folder.train(epochs=3)
    found = folder.train(epochs=3).model.get_weights()
    assert all(map(np.array_equal, found, expected))


@pytest.mark.slow
def test_a_damaged_state_falls_back_to_the_one_before(whole, tmp_path):
    folder = Folder(tmp_path)
    folder.killed(9)
    older, newest = StateFiles(folder.run / "states").paths()
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    weights = folder.train().model.get_weights()
    assert folder.said(f"warning: {newest} is damaged")
    assert_same_run(folder, weights, whole)
    assert not older.exists()


@pytest.mark.slow
def test_a_run_without_a_whole_state_does_not_throw_its_checkpoints_away(tmp_path):
    folder = Folder(tmp_path)
    folder.killed(6)
    for path in (folder.run / "states").iterdir():
        path.write_bytes(path.read_bytes()[:-1000])
    before = (folder.run / "log.csv").read_bytes()
    for _ in range(2):
        with pytest.raises(ValueError, match="Every state in .* damaged.*start again"):
            folder.train()
    assert (folder.run / "log.csv").read_bytes() == before
    assert names(folder, "checkpoints") == ["step-000000004.weights.h5"]


@pytest.mark.slow
def test_a_limit_that_was_passed_within_an_interval_ends_the_run_there(tmp_path):
    folder = Folder(tmp_path)
    with pytest.raises(SystemExit):
        folder.train(Signal(signal.SIGTERM))
    state = folder.final()
    trained = folder.train(max_updates=1).model
    assert (state.history, folder.final().step) == ([], 3)
    # What is saved is the moving average.
    saved = Translator.load(folder.run).model
    averages = trained.optimizer._model_variables_moving_average
    for weight, average in zip(saved.trainable_weights, averages, strict=True):
        np.testing.assert_array_equal(weight.numpy(), average.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "Input/output error")])
def test_a_state_that_cannot_be_read_now_is_kept(whole, tmp_path, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    folder = Folder(tmp_path)
    folder.killed(6)
    before = names(folder, "states")
    with monkeypatch.context() as patch:
        patch.setattr(state.np, "load", fail)
        with pytest.raises(type(error)):
            folder.train()
    assert names(folder, "states") == before
    assert_same_run(folder, folder.train().model.get_weights(), whole)


@pytest.mark.slow
def test_a_full_disk_leaves_the_older_state(whole, tmp_path, monkeypatch):
    folder, saved, savez = Folder(tmp_path), [], np.savez

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
    assert names(folder, "states") == ["step-000000004.npz"]
    assert_same_run(folder, folder.train().model.get_weights(), whole)


def test_other_options_and_other_text_are_refused(whole, tmp_path):
    folder = Folder(tmp_path)
    shutil.copytree(whole.run, folder.run)
    expected = "other options: `seed` is 5 and was 1. .*may change: .* max_updates,"
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


@pytest.mark.parametrize("content", ["{", "[]", '{"training": "x"}', "\udcff"])
def test_a_damaged_data_json_is_named(whole, tmp_path, content):
    folder = Folder(tmp_path)
    shutil.copytree(whole.run, folder.run)
    path = folder.run / "data.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError) as raised:
        folder.train()
    assert str(raised.value).startswith(f"{path} is damaged: ")


def test_another_tokenizer_is_refused_wherever_the_run_is_read(whole, tmp_path):
    folder = Folder(tmp_path)
    shutil.copytree(whole.run, folder.run)
    path = folder.run / "tokenizer" / "joint.model"
    content = path.read_bytes()
    # The piece "▁the", of which three letters come in any order as often.
    path.write_bytes(content.replace("▁the".encode(), "▁teh".encode()))
    assert path.read_bytes() != content
    refused = pytest.raises(ValueError, match=f"{path} is not the file that")
    with refused:
        folder.train()
    with refused:
        average_run(folder.run, tmp_path / "mean")
    with refused:
        TokenizerPair.load(folder.run / "tokenizer")
    with refused:
        Translator.load(folder.run)


@pytest.mark.slow
def test_going_on_with_other_cores_is_said_in_a_line(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    folder.killed(6)
    monkeypatch.setattr(devices, "num_parts", lambda: 7)
    folder.killed(3)
    said = "warning: going on with 7 cores that share a batch (before: 1): the result "
    assert folder.said(said) and folder.screen.getvalue().count("warning") == 1


@pytest.mark.one_case
@pytest.mark.parametrize("step", ["tokenizer", "data.json", "config.json"])
def test_a_run_killed_while_it_was_set_up_starts_again(whole, tmp_path, step):
    folder, replacing = Folder(tmp_path), run.replacing

    def dying(path):
        if path.name == step:
            raise Killed
        return replacing(path)

    def half_saved(tokenizers, directory):
        directory.mkdir()
        (directory / ".partial-7-joint.model").write_bytes(b"half")
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "replacing", dying)
        if step == "tokenizer":
            patch.setattr(TokenizerPair, "save", half_saved)
        with pytest.raises(Killed):
            folder.train()
    folder.killed(1)
    found = ["config.json", "corpus", "data.json", "log.csv", "tokenizer",
             "tokenizer.sha256"]  # fmt: skip
    assert [name for name in names(folder, ".") if name != "tensorboard"] == found
    assert names(folder, "tokenizer") == ["joint.model", "tokenizer.json"]
    same = (p / "tokenizer" / "joint.model" for p in (folder.run, whole.run))
    assert len({path.read_bytes() for path in same}) == 1


def test_two_processes_do_not_train_in_one_directory(tmp_path):
    folder = Folder(tmp_path)
    with Run(folder.run).locked():
        with pytest.raises(BlockingIOError, match="Another process is training in"):
            folder.train()


def test_a_directory_with_something_else_is_refused(tmp_path):
    for name in ("notes.txt", "config.json", "states"):
        path = tmp_path / name / name
        path.parent.mkdir()
        path.write_text("mine")
        with pytest.raises(FileExistsError, match="holds something already"):
            Run(path.parent)
    with pytest.raises(FileExistsError, match="holds something already"):
        Run(path)


@pytest.mark.parametrize("name", ["caf\udce9", "a/caf\udce9/b"])
def test_a_directory_whose_name_is_not_utf8_is_refused_at_once(tmp_path, name):
    with pytest.raises(ValueError) as raised:
        Run(tmp_path / name)
    assert "must be UTF-8" in str(raised.value) and "caf\\udce9" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_half_written_files_are_removed(tmp_path):
    halves = ("states/.partial-7-step-000000001.npz",
              "corpus/training/.partial-7-pairs.ids")  # fmt: skip
    for name in halves:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"half")
    for name in ("config.json", "data.json", "tokenizer"):
        (tmp_path / name).write_text(json.dumps({}))
    with Run(tmp_path).locked():
        assert not any((tmp_path / name).exists() for name in halves)
