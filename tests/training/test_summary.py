"""What a run writes and says of itself: summary.json, and how long it will take."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from rich.console import Console

from keras_transformer.config import TrainingConfig
from keras_transformer.training import expected_time
from keras_transformer.training.callbacks import StopAtLimit
from keras_transformer.training.expected_time import ExpectedTime, duration
from keras_transformer.training.summary import lines_of, read_summary
from tests import tiny_run


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"),
        (3599, "59 min"), (7300, "2 h 1 min"), (50 * 3600, "2 days 2 h"),
    ],
)  # fmt: skip
def test_a_time_has_two_units_at_most(seconds, words):
    assert duration(seconds) == words


def said(monkeypatch, options, minutes=None, updates=0, spent=0.0, batches=100):
    """What is said of a run of two batches a second.

    The first figures come after the second batch, and took half a minute: a step is
    compiled then. The first validation takes a minute for the same reason.
    """
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(expected_time, "time", clock)
    stream = io.StringIO()
    limit = StopAtLimit(options.max_updates, minutes)
    limit.restore({"seconds": spent})
    callback = ExpectedTime(batches, options, limit, Console(file=stream, width=99))
    callback.set_model(SimpleNamespace(updates=updates))
    for epoch in range(200 // batches):
        callback.on_epoch_begin(epoch)
        for batch in range(batches):
            clock.now = 30 + (epoch * batches + batch) / 2 + 60 * (epoch > 0)
            callback.on_train_batch_end(batch, {"loss": 1.0} if batch % 2 else None)
    return stream.getvalue().splitlines()


def test_the_expected_time_is_said_once_from_the_first_updates(monkeypatch):
    # After 32 batches, 15 seconds later than the first two: 968 of 1,000 are left.
    lines = said(monkeypatch, TrainingConfig(epochs=10))
    assert lines == ["expected: 8 min 4 s more, at 2 batches a second"]


def test_the_compilation_of_the_first_validation_is_left_out(monkeypatch):
    """Epochs of five seconds, so that the figures are from several."""
    (line,) = said(monkeypatch, TrainingConfig(epochs=10), batches=10)
    # In the fifth epoch, after 42 of 100 batches.
    assert line == "expected: 29 s more, at 2 batches a second"


def test_the_first_limit_counts(monkeypatch):
    options = TrainingConfig(epochs=10, max_updates=40, gradient_accumulation_steps=2)
    (line,) = said(monkeypatch, options, updates=10)
    assert line.startswith("expected: 30 s more")  # Thirty updates of two batches.
    (line,) = said(monkeypatch, TrainingConfig(), minutes=3, spent=130.0)
    assert line.startswith("expected: 50 s more")


def test_a_short_run_says_nothing(monkeypatch):
    monkeypatch.setattr(expected_time, "_SECONDS", 1000.0)
    assert said(monkeypatch, TrainingConfig()) == []


def test_a_run_keeps_what_it_was(tmp_path_factory):
    run = tiny_run.run_directory(tmp_path_factory)
    summary = read_summary(run)
    assert summary["model"]["class"] == "Transformer"
    assert summary["data"]["training"]["pairs"] == len(tiny_run.TRAIN)
    assert summary["data"]["validation"]["files"] == ["valid.tsv"]
    assert (summary["epochs"], summary["updates"]) == (3, 12)
    assert summary["averaged_checkpoints"] == 2
    assert summary["examples"] == [list(pair) for pair in tiny_run.VALID[:3]]
    assert summary["machine"]["backend"].startswith("tensorflow ")
    first, written, *following = lines_of(summary, run)
    assert first.startswith("trained 10,176 parameters: 12 updates, 3 epochs in ")
    assert f"val_loss {summary['last_epoch']['val_loss']:.4f}" in first
    listed = written.partition(": ")[2].split(", ")
    assert listed and [name for name in listed if not (run / name).exists()] == []
    assert len(following) == 3


def test_a_run_of_an_older_version_has_none_and_a_damaged_one_is_named(tmp_path):
    assert read_summary(tmp_path) is None
    for text in ("[1", "[]", json.dumps({"seconds": 1})):
        (tmp_path / "summary.json").write_text(text, "utf-8")
        with pytest.raises(ValueError, match="summary.json is damaged: remove it"):
            read_summary(tmp_path)
