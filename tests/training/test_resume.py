"""Runs that were interrupted end as if nothing had happened."""

import importlib
import io
import json
import os
import shutil
import signal
from contextlib import nullcontext

import keras
import numpy as np
import pytest

from keras_transformer import RunConfig, TokenizerPair, Translator, files
from keras_transformer.models.loading import load_model
from keras_transformer.training import (
    devices,
    evaluation,
    read_summary,
    run,
    state,
)
from keras_transformer.training.plan import check_directory
from keras_transformer.training.run import locked
from keras_transformer.training.state import StateFiles
from tests import tiny_run
from tests.tiny_run import KillAfter, Killed, assert_equal

model = importlib.import_module("keras_transformer.training.run_model")
# Everything that has a state, beside dropout: accumulated gradients, moving averages.
OPTIONS = {
    "epochs": 2, "save_every": 4, "gradient_accumulation_steps": 2, "ema_decay": 0.9,
    "global_clipnorm": 1.0, "average_checkpoints": 2, "batch_tokens": 120,
}  # fmt: skip


class Count(keras.callbacks.Callback):
    """Counts batches over the whole run, and adds a figure to the logs."""

    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        logs["seen"] = self.batches

    def state(self):
        return self.batches

    def restore(self, state):
        self.batches = state


class Signal(keras.callbacks.Callback):
    """Sends the process a signal in the third batch."""

    def __init__(self, number):
        super().__init__()
        self.number, self.left = number, 3

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


class Folder:
    """A directory for one run and its text."""

    def __init__(self, path):
        path.mkdir(exist_ok=True)
        self.run = path / "run"
        self.text = tiny_run.write_pairs(path / "train.tsv")
        self.valid = tiny_run.write_pairs(path / "valid.tsv", tiny_run.VALID)
        self.screen = io.StringIO()

    def train(self, *callbacks, model=tiny_run.toy, **options):
        """Trains, or goes on; returns the translator. `None` is a `Transformer`."""
        return tiny_run.run(
            self.run,
            *callbacks,
            text=self.text,
            validation=self.valid,
            screen=self.screen,
            given={"model": model},
            **OPTIONS | options,
        )

    def killed(self, batches, *callbacks, **options):
        with pytest.raises(Killed):
            self.train(KillAfter(batches), *callbacks, **options)

    def final(self):
        return tiny_run.last_state(self.run)

    def said(self, words):
        return words in self.screen.getvalue()

    def ends_as(self, expected, *callbacks, **options):
        """Goes on to the end, and compares all that is left with another run."""
        found = self.train(*callbacks, **options).model.get_weights()
        assert_equal(found, expected.weights)
        states = self.final(), expected.final()
        assert len({(state.step, state.updates) for state in states}) == 1
        assert_equal(*(state.values for state in states))
        rows = [[timeless(row) for row in state.history] for state in states]
        assert rows[0] == rows[1]
        for name in ("log.csv", "checkpoints"):
            assert names(self, name) == names(expected, name)


def timeless(row):
    return {n: value for n, value in row.items() if n != "tokens_per_second"}


def names(folder, name):
    """Names of files, or how many rows a file has."""
    path = folder.run / name
    if path.is_dir():
        return sorted(each.name for each in path.iterdir())
    return len(path.read_text("utf-8").splitlines())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was not interrupted: seven batches an epoch."""
    folder = Folder(tmp_path_factory.mktemp("whole"))
    folder.weights = folder.train().model.get_weights()
    assert folder.said("training data: 40 pairs, 7 batches")
    assert [row["step"] for row in folder.final().history] == [4, 7, 11, 14]
    return folder


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def copy(whole, folder):
    """A copy of the whole run."""
    shutil.copytree(whole.run, folder.run)
    return folder


def test_a_run_killed_within_intervals_and_epochs_ends_the_same(whole, folder):
    folder.killed(6)
    assert folder.final().step == 4
    # In the second epoch, reached from within the first.
    folder.killed(6)
    assert folder.final().step == 7
    folder.ends_as(whole)
    assert folder.said("resuming after 3 updates, at batch 1 of epoch 2")


def test_a_robust_run_shows_the_same_views_after_it_was_killed(tmp_path):
    expected, folder = Folder(tmp_path / "whole"), Folder(tmp_path / "killed")
    expected.weights = expected.train(robust=True).model.get_weights()
    folder.killed(6, robust=True)
    folder.ends_as(expected, robust=True)
    kept = json.loads((folder.run / "corpus/training/pairs.json").read_text())
    assert kept["made_of"]["views"] == 6


KINDS = {
    "BLEU": {"monitor": "bleu", "bleu_sentences": 3},
    "plain": {"gradient_accumulation_steps": 1, "ema_decay": None},
    "float16": {"mixed_precision": "float16"},
    "skipping": {"nonfinite": "skip", "save_every": None},
    "patience": {"patience": 1, "epochs": 9, "learning_rate": 10.0},
    "one": {"save_every": 1, "average_checkpoints": 1, "freeze": "encoder"},
}
EVERY_BATCH = pytest.param("every batch", marks=pytest.mark.slow)


@pytest.mark.one_case("float16")
@pytest.mark.parametrize("kind", [*KINDS, EVERY_BATCH])
def test_every_kind_of_run_of_a_transformer_ends_the_same(kind, tmp_path):
    options = {"model": None} | KINDS.get(kind, {"save_every": 1})
    expected, folder = Folder(tmp_path / "whole"), Folder(tmp_path / "killed")
    expected.weights = expected.train(Count(), **options).model.get_weights()
    for batches in [5] if kind in KINDS else [2] * 13:
        folder.killed(batches, Count(), **options)
    folder.ends_as(expected, Count(), **options)
    rows = folder.final().history
    assert [row["seen"] for row in rows] == [row["step"] for row in rows]
    assert len(rows) < 18  # Patience ends its run.


@pytest.mark.slow
def test_intervals_of_any_length_give_the_same_weights(whole, tmp_path):
    for every in (1, 3, None):
        folder = Folder(tmp_path / str(every))
        folder.train(save_every=every)
        assert_equal(folder.final().values, whole.final().values)


def test_sigterm_ctrl_c_and_a_closed_terminal_save_the_batch(
    whole, folder, of_a_terminal
):
    before = signal.getsignal(signal.SIGTERM)
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
    folder.ends_as(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit, ends",
    [({"max_updates": 1}, [2]), ({"max_updates": 3}, [6]), ({"epochs": 1}, [])],
)
def test_a_run_with_a_higher_limit_goes_on_exactly(limit, ends, folder, tmp_path):
    # The schedule stays that of the run's first limits.
    options = {"warmup_steps": 1, "learning_rate": 0.08}
    translator = folder.train(**options | limit)
    assert translator.model.updates == limit.get("max_updates", 3)
    assert (folder.run / "model.keras").exists() and folder.final().history
    expected = Folder(tmp_path / "whole")
    expected.train(**options)
    folder.train(**options)
    assert_equal(folder.final().values, expected.final().values)
    # The end of the shorter training has a row of its own.
    steps = [row["step"] for row in folder.final().history]
    assert steps == sorted([4, 7, 11, 14, *ends])


@pytest.mark.slow
def test_a_limit_that_was_passed_within_an_interval_ends_the_run_there(folder):
    with pytest.raises(SystemExit):
        folder.train(Signal(signal.SIGTERM))
    state = folder.final()
    trained = folder.train(max_updates=1).model
    assert (state.history, folder.final().step) == ([], 3)
    # What is saved is the moving average.
    saved = Translator.load(folder.run).model.trainable_weights
    averages = trained.optimizer._model_variables_moving_average
    assert_equal(*([np.array(each) for each in two] for two in (saved, averages)))


def test_a_finished_run_is_only_loaded(whole, copy, monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", lambda *_, **__: pytest.fail("trained"))
    copy.ends_as(whole)
    assert copy.said("is finished: 7 updates.")
    # Killed after the last state and before the model was written.
    (copy.run / "model.keras").unlink()
    copy.ends_as(whole)
    assert (copy.run / "model.keras").exists()
    # The final weights are chosen again, by the same score.
    assert copy.said("final weights: ")
    assert read_summary(copy.run)["final"] == read_summary(whole.run)["final"]


def killed(*_, **__):
    raise Killed


@pytest.mark.slow
def test_a_longer_run_killed_before_its_model_is_saved_is_not_finished(
    whole, copy, tmp_path
):
    longer = Folder(tmp_path / "longer")
    shutil.copytree(whole.run, longer.run)
    expected = longer.train(epochs=3).model.get_weights()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Translator, "save", killed)
        copy.train(epochs=3)
    assert_equal(copy.train(epochs=3).model.get_weights(), expected)


def test_batches_stay_the_same_on_another_device(folder, monkeypatch):
    monkeypatch.setattr(keras.Model, "fit", killed)
    data = []
    for has_gpu in (False, True):
        monkeypatch.setattr(model, "has_gpu", lambda has_gpu=has_gpu: has_gpu)
        with pytest.raises(Killed):
            folder.train(batch_tokens=None, mixed_precision="none")
        data.append(RunConfig.load(folder.run / "config.json").data)
    assert data[0] == data[1] and data[0].batch_tokens is not None


def dies_after_a_row(patch):
    """Ends the process between the row of batch 7 and its state."""
    save = StateFiles.save

    def dying(files, state):
        if state.step == 7:
            raise Killed
        save(files, state)

    patch.setattr(StateFiles, "save", dying)


def finds_the_disk_full(patch):
    """Fails the second state, half written."""
    saved, savez = [], np.savez

    def full(stream, **parts):
        saved.append(stream)
        if len(saved) == 2:
            stream.write(b"half")
            raise OSError(28, "No space left on device")
        savez(stream, **parts)

    patch.setattr(state.np, "savez", full)


@pytest.mark.slow
@pytest.mark.parametrize("fail", [dies_after_a_row, finds_the_disk_full])
def test_a_state_that_is_not_written_leaves_the_one_before(whole, folder, fail):
    with pytest.MonkeyPatch.context() as patch, pytest.raises((Killed, OSError)):
        fail(patch)
        folder.train()
    assert names(folder, "states") == ["step-000000004.npz"]
    if fail is dies_after_a_row:  # Which is not repeated.
        assert names(folder, "log.csv") == 3
    folder.ends_as(whole)


@pytest.mark.slow
def test_a_damaged_state_falls_back_to_the_one_before(whole, folder):
    folder.killed(9)
    older, newest = StateFiles(folder.run / "states").paths()
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    folder.ends_as(whole)
    assert folder.said(f"warning: {newest} is damaged")
    assert not older.exists()


@pytest.mark.slow
def test_a_run_without_a_whole_state_does_not_throw_its_checkpoints_away(folder):
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
@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "Input/output error")])
def test_a_state_that_cannot_be_read_now_is_kept(whole, folder, error):
    def fail(*args, **kwargs):
        raise error

    folder.killed(6)
    before = names(folder, "states")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(state.np, "load", fail)
        folder.train()
    assert names(folder, "states") == before
    folder.ends_as(whole)


def emptied(folder, *steps):
    """Empties checkpoints of a run that has not made its model yet."""
    (folder.run / "model.keras").unlink()
    for step in steps:
        path = folder.run / "checkpoints" / f"step-{step:09d}.weights.h5"
        path.write_bytes(b"")
    return path


def checkpoint(folder, step):
    model = load_model(folder.run / "model.keras")
    model.load_weights(folder.run / "checkpoints" / f"step-{step:09d}.weights.h5")
    return model.get_weights()


def test_a_newest_checkpoint_that_was_lost_is_made_anew(whole, copy):
    path = emptied(copy, 14)
    copy.ends_as(whole)
    lost = f"warning: {path} is missing, empty or damaged"
    assert copy.said(f"{lost}; trying the state before it")
    assert copy.screen.getvalue().count("warning: ") == 1
    # A run that has its model needs no checkpoint.
    path.write_bytes(b"")
    copy.train()
    assert copy.screen.getvalue().count("warning: ") == 1


def test_the_end_does_without_checkpoints_that_cannot_be_read(whole, copy):
    path, newest = emptied(copy, 11), checkpoint(whole, 14)
    copy.train()
    lost = f"warning: {path} is missing, empty or damaged"
    assert copy.said(f"{lost}; the final weights may have to do without it")
    assert copy.said(f"the final weights do without it: {path} does not fit the model")
    assert [*read_summary(copy.run)["candidates"]] == [
        "the checkpoint of epoch 2",
        "the mean of 2 checkpoints, epochs 1 to 2",
        "the mean of 3 checkpoints, epochs 0.57 to 2",
    ]
    # With none, and no other state: what the last checkpoint had, a moving average.
    min((copy.run / "states").iterdir()).unlink()
    emptied(copy, 4, 7, 11, 14)
    assert_equal(copy.train().model.get_weights(), newest)
    assert copy.said("warning: the final weights are those of the last state")
    assert read_summary(copy.run)["averaged_checkpoints"] == 0


def written(content):
    """Damages data.json."""
    content = content.encode("utf-8", "surrogateescape")
    return lambda folder: (folder.run / "data.json").write_bytes(content)


def reverse_validation(folder):
    lines = folder.valid.read_text("utf-8").splitlines(keepends=True)
    folder.valid.write_text("".join(reversed(lines)), "utf-8")


# What is changed before the run goes on, options given then, and what is said.
OTHERS = {
    "seed": (None, {"seed": 5}, "other options: `seed` is 5 and was 1. .* max_updates"),
    "model": (None, {"model": None}, "another model: toy"),
    "keep": (None, {"keep": "ratio"}, "other options: `keep` is 'ratio' and was None"),
    "batches": (None, {"batch_tokens": 99}, "`batch_tokens` is 99 and was 120"),
    "validation": (reverse_validation, {}, "a run with other validation data"),
    "training": (
        lambda folder: tiny_run.write_pairs(folder.text, tiny_run.PAIRS), {},
        "a run with other training data",
    ),
    "half": (written("{"), {}, r"^.*run.data\.json is damaged: "),
    "list": (written("[]"), {}, r"^.*run.data\.json is damaged: "),
    "a word": (written('{"training": "x"}'), {}, r"^.*run.data\.json is damaged: "),
    "bytes": (written("\udcff"), {}, r"^.*run.data\.json is damaged: "),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_as_the_run_began_is_refused(copy, name):
    change, options, words = OTHERS[name]
    if change is not None:
        change(copy)
    with pytest.raises(ValueError, match=words):
        copy.train(**options)


def test_scores_of_chinese_have_its_tokenizer_as_long_as_the_run(folder, monkeypatch):
    chinese = [(source, "老人今天在花园里睡觉。") for source, _ in tiny_run.VALID]
    tiny_run.write_pairs(folder.valid, chinese)
    options = {"monitor": "chrf", "bleu_sentences": 2, "epochs": 1}
    folder.killed(6, **options)
    assert folder.said("scores of 2 sentences, by greedy search: BLEU ")
    assert folder.said("|tok:zh|")
    assert folder.final().history[0]["val_chrf"] >= 0
    monkeypatch.setattr(evaluation, "tokenizer_for", lambda references: "char")
    with pytest.raises(ValueError, match="a run with another bleu_tokenizer: zh"):
        folder.train(**options)


@pytest.mark.slow
def test_going_on_with_other_cores_is_said_in_a_line(folder, monkeypatch):
    folder.killed(6)
    monkeypatch.setattr(devices, "num_parts", lambda: 7)
    folder.killed(3)
    said = "warning: going on with 7 cores that share a batch (before: 1): the result "
    assert folder.said(said) and folder.screen.getvalue().count("warning") == 1


@pytest.mark.one_case("config.json")
@pytest.mark.parametrize("step", ["tokenizer", "data.json", "config.json"])
def test_a_run_killed_while_it_was_set_up_starts_again(whole, folder, step):
    def dying(path, value):
        if path.name == step:
            raise Killed
        files.write_json(path, value)

    def half_saved(tokenizers, directory):
        directory.mkdir()
        (directory / ".partial-7-joint.model").write_bytes(b"half")
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(run, "write_json", dying)
        if step == "tokenizer":
            patch.setattr(TokenizerPair, "save", half_saved)
        folder.train()
    folder.killed(1)
    found = ["config.json", "corpus", "data.json", "log.csv", "tokenizer"]
    assert [name for name in names(folder, ".") if name != "tensorboard"] == found
    assert names(folder, "tokenizer") == ["joint.model", "tokenizer.json"]
    same = (p / "tokenizer" / "joint.model" for p in (folder.run, whole.run))
    assert len({path.read_bytes() for path in same}) == 1


def test_two_processes_do_not_train_in_one_directory(folder):
    with locked(folder.run):
        with pytest.raises(BlockingIOError, match="Another process is training in"):
            folder.train()


def test_a_directory_that_is_none_for_a_run_is_refused_at_once(tmp_path):
    for name in ("caf\udce9", "a/caf\udce9/b"):
        with pytest.raises(ValueError, match=r"must be UTF-8.*caf\\udce9"):
            check_directory(tmp_path / name)
    assert not list(tmp_path.iterdir())
    for name in ("notes.txt", "config.json", "states"):
        path = tmp_path / name / name
        path.parent.mkdir()
        path.write_text("mine")
        for taken in (path.parent, path):
            with pytest.raises(FileExistsError, match="holds something already"):
                check_directory(taken)


class SecondHost(devices.Distribution):
    """That of a process which does not write the files of a run."""

    is_chief = False


def test_a_second_host_reads_what_the_first_has_written(whole, copy, monkeypatch):
    monkeypatch.setattr(run, "distribution_scope", lambda _: nullcontext(SecondHost()))
    monkeypatch.setattr(run, "_LATE", 0)
    (copy.run / "model.keras").unlink()
    shutil.rmtree(copy.run / "states")

    def content():
        return {p: p.read_bytes() for p in copy.run.rglob("*") if p.is_file()}

    before = content()
    copy.killed(1)
    assert content() == before
    # Its own directory, or other data than the first host has.
    (copy.run / "corpus" / "training" / "pairs.json").unlink()
    before = content()
    with pytest.raises(FileNotFoundError, match="pairs.ids is missing.*they share"):
        copy.train()
    assert content() == before


def test_half_written_files_are_removed(tmp_path):
    halves = ("states/.partial-7-step-000000001.npz",
              "corpus/training/.partial-7-pairs.ids")  # fmt: skip
    for name in halves:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"half")
    for name in ("config.json", "data.json", "tokenizer"):
        (tmp_path / name).write_text(json.dumps({}))
    with files.replacing(tmp_path / "scores.json") as living:
        living.write_text("[]")
        with locked(tmp_path):
            assert not any((tmp_path / name).exists() for name in halves)
            assert living.exists()  # `evaluate` writes it.
