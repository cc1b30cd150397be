"""Intervals of a run: where they end, what callbacks see, what stops them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import TrainingConfig, Transformer, train
from keras_transformer.training import intervals
from keras_transformer.training.intervals import StopSignals, end_of_interval
from keras_transformer.training.state import StateFiles
from tests import tiny_run


@pytest.mark.parametrize(
    ("every", "batches", "ends"),
    [
        (None, 7, [7, 14]),  # An epoch.
        (None, 1001, [501, 1001, 1502]),  # Equal parts of at most a thousand.
        (None, 3000, [1000, 2000, 3000, 4000]),
        (3, 7, [3, 6, 7, 10, 13, 14]),  # None goes beyond an epoch.
        (50, 7, [7, 14]),
    ],
)
def test_an_interval_ends_where_a_part_of_an_epoch_ends(every, batches, ends):
    options, step, found = TrainingConfig(save_every=every), 0, []
    while len(found) < len(ends):
        step = end_of_interval(options, batches, step)
        assert end_of_interval(options, batches, step - 1) == step
        found.append(step)
    assert found == ends


class Watch(keras.callbacks.Callback):
    """Notes what it is told."""

    def __init__(self):
        super().__init__()
        self.told, self.losses, self.logs = [], [], []

    def on_train_begin(self, logs=None):
        self.told.append("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.told.append(epoch)

    def on_test_begin(self, logs=None):
        self.told.append("test")

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))
        logs["mine"] = 7 * epoch

    def on_train_end(self, logs=None):
        self.told.append("end")


def run(directory, *callbacks, validation=tiny_run.VALID, console=None, **training):
    """Seven batches an epoch."""
    config = tiny_run.CONFIG.replace(
        data=tiny_run.CONFIG.data.replace(batch_tokens=120),
        training=tiny_run.CONFIG.training.replace(**{"epochs": 2} | training),
    )
    console = Console(quiet=True) if console is None else console
    return train(
        tiny_run.TRAIN, directory / "run", config, validation, console,
        callbacks=callbacks,
    )  # fmt: skip


def final(directory):
    return StateFiles(directory / "run" / "states").latest(Console(quiet=True))


def test_for_callbacks_a_run_is_one_fit_and_an_interval_an_epoch(tmp_path):
    watch = Watch()
    model = run(tmp_path, watch, save_every=4).model
    assert watch.told == ["begin", 0, "test", 1, "test", 2, "test", 3, "test", "end"]
    assert len(watch.losses) == 14 and len(set(watch.losses)) == 14
    rows = final(tmp_path).history
    for number, (row, logs) in enumerate(zip(rows, watch.logs, strict=True)):
        assert row == logs | {
            "mine": 7 * number, "step": row["step"], "epoch": row["epoch"],
            "updates": row["updates"],
        }  # fmt: skip
    # The loss is that of the interval: as it was after its last batch.
    assert [row["loss"] for row in rows] == [watch.losses[i] for i in (3, 6, 10, 13)]
    assert [row["epoch"] for row in rows] == [4 / 7, 1, 11 / 7, 2]
    assert model.history.history["val_loss"] == [row["val_loss"] for row in rows]


def test_callbacks_of_keras_work(tmp_path):
    """What one changes between two intervals stays changed."""
    optimizer = keras.optimizers.Adam(0.02)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, 1, min_delta=99)
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}-{val_loss:.2f}.weights.h5"), save_weights_only=True
    )
    stop = keras.callbacks.EarlyStopping("loss", 99, patience=4)
    config = tiny_run.CONFIG.replace(
        training=tiny_run.CONFIG.training.replace(epochs=9)
    )
    train(
        tiny_run.TRAIN, tmp_path / "run", config, tiny_run.VALID, Console(quiet=True),
        optimizer=optimizer, callbacks=[plateau, best, stop],
    )  # fmt: skip
    rows = final(tmp_path).history
    rates = [row["learning_rate"] for row in rows]
    # The first is the best of all, since nothing is better by 99.
    assert rates == pytest.approx([0.02, 0.02, 0.01, 0.005, 0.0025])
    assert len(list(tmp_path.glob("*.weights.h5"))) == 5
    # It was stopped, and is only loaded.
    train(
        tiny_run.TRAIN, tmp_path / "run", config, tiny_run.VALID, Console(quiet=True),
        optimizer=keras.optimizers.Adam(0.02),
    )  # fmt: skip
    assert len(final(tmp_path).history) == 5


def test_no_interval_but_the_first_traces_a_step(tmp_path, monkeypatch):
    call, calls, traced = Transformer.call, [], []

    def counted(model, *args, **kwargs):
        calls.append(1)
        return call(model, *args, **kwargs)

    class Note(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            traced.append(len(calls))

    monkeypatch.setattr(Transformer, "call", counted)
    config = tiny_run.CONFIG.with_options(batch_shapes=1, save_every=2, epochs=2)
    train(
        tiny_run.TRAIN, tmp_path / "run", config, tiny_run.VALID, Console(quiet=True),
        callbacks=[Note()],
    )  # fmt: skip
    if keras.backend.backend() != "torch":  # It traces nothing.
        assert len(traced) > 3 and len(set(traced[1:])) == 1


def test_a_callback_that_stops_within_an_interval_ends_the_run(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    run(tmp_path, Stop(), save_every=4)
    state = final(tmp_path)
    assert (state.step, [row["step"] for row in state.history]) == (2, [2])
    assert (tmp_path / "run" / "model.keras").exists()


@pytest.mark.slow
def test_a_run_stops_at_the_first_batch_after_its_time(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(intervals.time, "monotonic", lambda: clock.now)

    class Tick(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            clock.now += 20.0

    run(tmp_path, Tick(), max_minutes=1.5)
    assert final(tmp_path).step == 5
    # The time of before counts.
    run(tmp_path, Tick(), max_minutes=2.5)
    assert (final(tmp_path).step, final(tmp_path).seconds) == (8, 160.0)


class PlantNaN(keras.callbacks.Callback):
    """Spoils a weight before a batch, counted over the run."""

    def __init__(self, before):
        super().__init__()
        self.left = before

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.model.sync_variables()
            weight = self.model.weights[0]
            weight.assign(np.full(weight.shape, np.nan))


def test_a_bad_batch_stops_the_run(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True)
    # The batches after the bad one change nothing: no state has them.
    with pytest.raises(FloatingPointError, match="updates so far: 9"):
        run(tmp_path, PlantNaN(10), console=console, save_every=4)
    assert final(tmp_path).step == 7
    # The terminal has its cursor again.
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")


def test_skipped_batches_are_told_and_a_run_of_nothing_else_ends(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    with pytest.raises(FloatingPointError, match="Each of 4 batches was skipped"):
        run(tmp_path, PlantNaN(6), console=console, save_every=4, nonfinite="skip")
    assert "warning: skipped 2 batches whose loss or gradient" in screen.getvalue()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_is_noted_and_becomes_the_status(number, status):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number
        with pytest.raises(SystemExit) as stopped:
            signals.stop()
    assert stopped.value.code == status
    assert signal.getsignal(number) is before


def test_a_run_under_nohup_outlives_the_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


SCRIPT = """
import os, signal, sys
from keras_transformer.training.intervals import StopSignals
with StopSignals() as signals:
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGHUP)
    print("to standard output", flush=True)
    print("to standard error", file=sys.stderr, flush=True)
    signals.stop()
"""


@pytest.mark.slow
def test_nothing_fails_that_is_printed_to_a_reader_that_has_gone():
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdout.close()
    process.stderr.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.wait() == 129
