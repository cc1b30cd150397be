"""What is better, and when to stop waiting."""

from __future__ import annotations

import io
import json
import math
from types import SimpleNamespace

import pytest
from rich.console import Console

from keras_transformer.training.monitor import Monitor, StopWithoutProgress


@pytest.mark.parametrize(
    ("name", "value", "best", "expected"),
    [
        ("loss", 2.0, 2.5, True),
        ("loss", 2.5, 2.0, False),
        ("bleu", 2.5, 2.0, True),
        ("bleu", 2.0, 2.5, False),
        ("loss", 2.0, 2.0, False),  # a tie
        ("loss", math.inf, None, False),
        ("loss", math.nan, None, False),
        ("loss", 2.0, math.nan, True),
        ("bleu", 0.0, None, True),
    ],
)
def test_lower_losses_and_higher_scores_are_better(name, value, best, expected):
    assert Monitor(name).better(value, best) is expected


def test_the_figure_is_that_of_the_validation():
    logs = {"loss": 1.0, "val_loss": 2.0, "val_bleu": 3.0}
    assert [Monitor(name).value(logs) for name in ("loss", "bleu")] == [2.0, 3.0]


def stopper(patience, stream=None):
    console = Console(file=stream or io.StringIO(), width=200)
    callback = StopWithoutProgress(Monitor("loss"), patience, console)
    callback.set_model(SimpleNamespace(stop_training=False))
    return callback


def stops_after(callback, losses):
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"val_loss": loss})
        if callback.model.stop_training:
            return epoch
    return None


# Better in epochs 0, 1 and 4; a tie in 2.
LOSSES = [5.0, 4.0, 4.0, 4.5, 3.0, 3.5, 3.5, 3.5]


@pytest.mark.parametrize(("patience", "expected"), [(1, 2), (2, 3), (3, 7), (4, None)])
def test_training_stops_after_so_many_epochs_that_were_no_better(patience, expected):
    assert stops_after(stopper(patience), LOSSES) == expected


def test_a_loss_that_is_no_number_is_no_progress():
    assert stops_after(stopper(2), [math.nan, math.nan, 1.0]) == 1


def test_the_reason_is_told():
    stream = io.StringIO()
    stops_after(stopper(2, stream), LOSSES)
    assert stream.getvalue() == (
        "val_loss has not been better than 4.0000 for 2 epochs: the training ends\n"
    )


def test_patience_survives_a_restart():
    first, second = stopper(3), stopper(3)
    assert stops_after(first, LOSSES[:6]) is None
    second.restore(json.loads(json.dumps(first.state())))
    assert stops_after(second, LOSSES[6:]) == 1
    fresh = stopper(3)
    assert stops_after(fresh, LOSSES[6:]) is None
