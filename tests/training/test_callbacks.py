"""The callbacks of a run, driven by hand."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from keras_transformer.training import callbacks

CORPUS = SimpleNamespace(num_tokens=1200, num_batches=4)


def fake_model(updates=0):
    iterations = SimpleNamespace(numpy=lambda: np.int64(updates))
    return SimpleNamespace(
        stop_training=False, optimizer=SimpleNamespace(iterations=iterations)
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
    assert logs == {"tokens_per_second": 120}


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
        callback.on_train_batch_end(0)
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


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops_the_run(loss):
    callback = callbacks.StopOnDivergence()
    callback.set_model(fake_model(updates=17))
    callback.on_train_batch_end(0, {"loss": 3.5})
    with pytest.raises(FloatingPointError, match="after 17 updates.*learning_rate"):
        callback.on_train_batch_end(1, {"loss": loss})


def test_the_report_is_one_line_an_epoch():
    stream = io.StringIO()
    report = callbacks.ProgressReport(CORPUS, Console(file=stream, width=40))
    report.set_model(fake_model(updates=4))
    report.set_params({"epochs": 2})
    report.on_train_begin()
    logs = {"loss": 1.25, "accuracy": 0.5, "tokens_per_second": 1234.6}
    for epoch in range(2):
        report.on_epoch_begin(epoch)
        report.on_train_batch_end(0, logs)
        report.on_epoch_end(epoch, logs)
    report.on_train_end()
    lines = [line.strip() for line in stream.getvalue().splitlines() if line.strip()]
    assert lines == [
        f"epoch {epoch}/2  loss 1.2500  accuracy 0.5000  "
        "tokens_per_second 1,235  updates 4"
        for epoch in (1, 2)
    ]


def test_the_bar_shows_loss_accuracy_and_tokens_per_second():
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=True)
    report = callbacks.ProgressReport(CORPUS, console)
    report.set_model(fake_model())
    report.set_params({"epochs": 1})
    report.on_train_begin()
    report.on_epoch_begin(0)
    logs = {"loss": 1.25, "accuracy": 0.5, "tokens_per_second": 1234.6}
    report.on_train_batch_end(0, logs)
    report._progress.refresh()
    report.on_train_end()
    shown = stream.getvalue()
    assert "epoch 1/1  loss 1.250  accuracy 0.500  1,235 tokens/s" in shown
    assert "1/4" in shown
