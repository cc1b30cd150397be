"""A run that waits for XLA only where that pays, and how its waits are told."""

from __future__ import annotations

import importlib
import io
from types import SimpleNamespace

import keras
import pytest

from keras_transformer import TrainingConfig
from keras_transformer.training import compiling, report, state
from keras_transformer.training.compiling import Waits
from tests import tiny_run

model = importlib.import_module("keras_transformer.training.run_model")


def corpus(*buckets):
    """Batches of these length buckets, in this order."""
    shapes = dict.fromkeys(buckets, 1)
    return SimpleNamespace(bucket=lambda step: buckets[step], shapes=shapes)


@pytest.fixture
def clock(monkeypatch):
    """The time, in a list."""
    now = [0.0]
    monkeypatch.setattr(compiling.time, "monotonic", lambda: now[0])
    return now


def test_a_graph_is_traced_once_and_each_shape_compiled_once(clock):
    waits, said = Waits(corpus(4, 4, 7, 4, 7)), []
    steps = [(0, False, 10), (1, False, 1), (2, True, 40), (3, True, 30), (4, True, 2)]
    for step, is_compiled, seconds in steps:
        said.append(waits.begin(step, is_compiled))
        clock[0] += seconds
        waits.end()
    tracing, *compiled = "tracing the step", "compiling shape 1 of 2", None
    assert said == [tracing, None, compiled[0], "compiling shape 2 of 2", None]
    assert waits.seconds == 10 + 40 + 30


def test_xla_must_save_three_seconds_for_each_that_it_takes(clock):
    waits = Waits(corpus(4, 7, 9))
    waits.begin(0, False)
    clock[0] = 10.0
    waits.end()
    # It waits 10 (1 + 1.4 * 3) = 52 s, and saves 1 - 1 / 3.3 of the rest: 156 s.
    rest = 156 / (1 - 1 / 3.3)
    assert waits.are_repaid(batches=1.001 * rest / 0.25, batch_seconds=0.25)
    assert not waits.are_repaid(batches=0.999 * rest / 0.25, batch_seconds=0.25)


def test_the_expected_time_leaves_out_the_waits(monkeypatch):
    now, stream = [0.0], io.StringIO()
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    console = report.Console(file=stream)
    with report.TrainingBar(console, 1000, TrainingConfig(), state.State()) as bar:
        for now[0], step, waited in ((60, 2, 59.0), (200, 32, 184.0), (208, 48, 184.0)):
            bar.show(step, 12.345, waited)
    assert stream.getvalue().strip().endswith(" more, at 2 batches a second")


def test_a_run_goes_over_to_xla_at_a_save_and_resumes_there(tmp_path, monkeypatch):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("other backends compile always or never")
    monkeypatch.setattr(model, "has_gpu", lambda: True)
    asked, modes, screen = [], [], io.StringIO()

    def are_repaid(waits, batches, batch_seconds):
        asked.append(batches)
        return len(asked) > 1

    monkeypatch.setattr(Waits, "are_repaid", are_repaid)
    begin = Waits.begin
    monkeypatch.setattr(
        Waits, "begin", lambda *given: modes.append(given[2]) or begin(*given)
    )
    options = {"batch_shapes": 1, "epochs": 4, "mixed_precision": "none"}
    tiny_run.run_toy(tmp_path / "whole", screen=screen, **options)
    batches = len(modes) // 4
    assert asked == [3 * batches, 2 * batches]
    assert modes == [False] * 2 * batches + [True] * 2 * batches
    assert "XLA compiles the step from here on, for 1 shape" in screen.getvalue()
    asked.clear()
    with pytest.raises(tiny_run.Killed):
        kill = tiny_run.KillAfter(3 * batches - 1)
        tiny_run.run_toy(tmp_path / "run", kill, **options)
    assert tiny_run.last_state(tmp_path / "run").is_compiled
    tiny_run.run_toy(tmp_path / "run", **options)
    states = (tiny_run.last_state(tmp_path / name) for name in ("whole", "run"))
    tiny_run.assert_equal(*(state.values for state in states))


def test_a_run_begins_with_a_graph_on_one_gpu_only(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    monkeypatch.setattr(model, "has_gpu", lambda: True)
    may = model.may_compile_later
    assert may(TrainingConfig())
    assert not may(TrainingConfig(jit_compile=False))
    assert not may(TrainingConfig(jit_compile=True))
    assert not may(TrainingConfig(distribute="mirrored"))
    monkeypatch.setattr(model, "has_gpu", lambda: False)
    assert not may(TrainingConfig())
