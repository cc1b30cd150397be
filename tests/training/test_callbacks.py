"""The callbacks of a run, driven by hand."""

from __future__ import annotations

import io
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer.training import callbacks
from keras_transformer.training.state import (
    TrainingState,
    restore,
    restore_callbacks,
    states_of,
    training_variables,
)

CORPUS = SimpleNamespace(num_batches=4, batch_tokens=[300, 500, 100, 300])


def fake_model(updates=0):
    return SimpleNamespace(
        stop_training=False,
        updates=updates,
        gradient_accumulation_steps=1,
        accumulated_batches=0,
    )


@pytest.fixture
def clock(monkeypatch):
    """A clock in seconds that the test sets."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: clock.now)
    return clock


def test_tokens_per_second_count_the_time_of_the_epoch_so_far(clock):
    rate, logs = callbacks.TokenRate(CORPUS), {}
    rate.on_epoch_begin(0)
    clock.now += 3
    rate.on_train_batch_end(0, logs)
    assert logs == {"tokens_per_second": 100}
    clock.now += 2
    rate.on_train_batch_end(1, logs)
    assert logs == {"tokens_per_second": 160}


def test_tokens_per_second_after_an_interruption_are_those_since(clock):
    first, logs = callbacks.TokenRate(CORPUS), {}
    first.on_epoch_begin(0)
    clock.now += 1
    first.on_train_batch_end(1, logs)  # Two batches a call.
    assert logs == {"tokens_per_second": 800}
    rest = callbacks.TokenRate(CORPUS)
    rest.first_batch = 2
    # A state that was saved when the rate went on from before has it still.
    saved = {"TokenRate": {"tokens": 800, "seconds": 1.0}}
    restore_callbacks([rest], saved | states_of([first]))
    clock.now += 1000
    rest.on_epoch_begin(0)
    clock.now += 4
    rest.on_train_batch_end(1, logs)
    assert logs == {"tokens_per_second": 100}


def test_validation_time_is_left_out_of_tokens_per_second(clock):
    rate = callbacks.TokenRate(CORPUS)
    rate.on_epoch_begin(0)
    clock.now += 12
    rate.on_train_batch_end(3, {})
    clock.now += 88
    logs = {"val_loss": 1.0}
    rate.on_epoch_end(0, logs)
    assert logs == {"val_loss": 1.0, "tokens_per_second": 100}


def stops(callback, updates):
    """The number of the update after which the callback stops the training."""
    callback.set_model(fake_model())
    callback.on_train_begin()
    for update in range(1, updates + 1):
        callback.model.updates = update
        callback.on_train_batch_end(update - 1)
        if callback.model.stop_training:
            return update
    return None


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (3, 3), (9, None), (None, None)])  # fmt: skip  # noqa: E501
def test_training_stops_after_the_last_update_allowed(limit, expected):
    assert stops(callbacks.StopAtLimit(limit, None), 5) == expected


def test_training_stops_at_the_end_of_the_first_update_after_the_time(clock):
    callback = callbacks.StopAtLimit(None, 0.5)
    callback.set_model(fake_model())
    callback.on_train_begin()
    for now, expected in ((129.9, False), (130.0, True)):
        clock.now = now
        callback.on_train_batch_end(0)
        assert callback.model.stop_training is expected


def test_the_time_of_earlier_runs_counts(clock):
    first = callbacks.StopAtLimit(None, 1.0)
    first.set_model(fake_model())
    first.on_train_begin()
    clock.now += 40
    first.on_train_batch_end(0)
    assert first.state() == {"seconds": 40}
    clock.now += 1000
    again = callbacks.StopAtLimit(None, 1.0)
    again.set_model(fake_model())
    again.restore(first.state())
    again.on_train_begin()
    for seconds, expected in ((19.9, False), (0.1, True)):
        clock.now += seconds
        again.on_train_batch_end(0)
        assert again.model.stop_training is expected


def test_skipped_batches_are_counted_at_the_end_of_an_epoch(tmp_path):
    stream = io.StringIO()
    check = callbacks.NonfiniteBatches(
        CORPUS, tmp_path, console=Console(file=stream, width=100)
    )
    check.set_model(SimpleNamespace(nonfinite_batches=1, held_batches=0))
    check.on_train_begin()
    for epoch, count in enumerate((1, 3, 3)):
        check.on_epoch_begin(epoch)
        check.model.nonfinite_batches = count
        check.on_train_batch_end(2)
        check.on_epoch_end(epoch)
    said = "warning: skipped 2 batches whose loss or gradient was not finite\n"
    assert stream.getvalue() == said
    assert not list(tmp_path.iterdir())
    # Three of three: the weights will not change any more.
    check.on_epoch_begin(3)
    check.model.nonfinite_batches = 6
    check.on_train_batch_end(2)
    with pytest.raises(FloatingPointError, match="Every batch of epoch 4 was skipped"):
        check.on_epoch_end(3)


def test_an_old_states_callbacks_continue_within_the_epoch():
    class Other(keras.callbacks.Callback):
        """Has a state that is none of a run's."""

        state = restore = None

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    limit, rate = callbacks.StopAtLimit(None, 1.0), callbacks.TokenRate(CORPUS)
    saved = {"StopAtLimit": {"seconds": 40.0}, "TokenRate": {"tokens": 8}, "Gone": {}}
    state = TrainingState(0, batch=3, callbacks=saved)
    state.variables = [
        [v.path, list(v.shape), v.dtype] for v in training_variables(model)
    ]
    state.values = [np.array(v) for v in training_variables(model)]
    restore(model, state, [limit, rate, Other()])
    assert [c.batches_done(1) for c in (limit, rate)] == [5, 5]
    assert states_of([limit, rate, Other()]) == {"StopAtLimit": {"seconds": 40.0}}


def test_the_report_is_one_line_an_epoch():
    stream = io.StringIO()
    report = callbacks.ProgressReport(CORPUS, Console(file=stream, width=40), 2)
    report.set_model(fake_model(updates=4))
    report.on_train_begin()
    logs = {"loss": 1.25, "accuracy": 0.5, "tokens_per_second": 1234.6}
    for epoch in range(2):
        report.on_epoch_begin(epoch)
        report.on_train_batch_end(0, logs)
        report.on_epoch_end(epoch, logs)
    report.on_train_end()
    assert stream.getvalue().splitlines() == [
        f"epoch {epoch}/2  loss 1.2500  accuracy 0.5000  "
        "tokens_per_second 1,235  updates 4"
        for epoch in (1, 2)
    ]


def test_the_bar_fits_in_a_line():
    """Of a long run on a fast machine, with the times at its end."""
    file = io.StringIO()
    corpus = SimpleNamespace(num_batches=12345)
    report = callbacks.ProgressReport(corpus, Console(width=80, file=file), epochs=20)
    report.on_train_begin()
    text = "epoch 20/20  loss 12.345  123,456 tokens/s"
    report._progress.update(0, description=text, completed=234567)
    report.on_train_end()
    Console(width=80, file=file).print(
        report._progress.make_tasks_table(report._progress.tasks)
    )
    line = file.getvalue().splitlines()[-1]
    assert line.startswith(text + " ") and len(line) <= 80
    assert line.split()[-3:] == ["234567/246900", "0:00:00", "-:--:--"]


def test_the_bar_shows_loss_and_tokens_per_second():
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True)
    report = callbacks.ProgressReport(CORPUS, console, 1)
    report.first_batch = 2
    report.set_model(fake_model())
    report.on_train_begin()
    report.on_epoch_begin(0)
    logs = {"loss": 1.25, "accuracy": 0.5, "tokens_per_second": 1234.6}
    report.on_train_batch_end(0, logs)
    report._progress.refresh()
    report.on_train_end()
    shown = stream.getvalue()
    assert "epoch 1/1  loss 1.250  1,235 tokens/s" in shown
    assert "3/4" in shown
