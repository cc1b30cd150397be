"""A run that waits for XLA only where its plan repays that, and how waits are told."""

from __future__ import annotations

import importlib
import io
from types import SimpleNamespace

import keras
import pytest

from keras_transformer import RunConfig, TrainingConfig
from keras_transformer.training import intervals, report, state
from keras_transformer.training.intervals import Waits

model = importlib.import_module("keras_transformer.training.run_model")


def corpus(*buckets):
    """Batches of these length buckets, in this order."""
    shapes = dict.fromkeys(buckets, 1)
    return SimpleNamespace(bucket=lambda step: buckets[step], shapes=shapes)


@pytest.fixture
def clock(monkeypatch):
    """The time, in a list."""
    now = [0.0]
    monkeypatch.setattr(intervals.time, "monotonic", lambda: now[0])
    return now


WAITS = {
    False: (["tracing the step", None, None, None, None], 10),
    True: (
        ["compiling shape 1 of 2", None, "compiling shape 2 of 2", None, None],
        10 + 40,
    ),
}


@pytest.mark.parametrize("is_compiled", WAITS)
def test_a_graph_is_traced_once_and_each_shape_compiled_once(is_compiled, clock):
    waits, said = Waits(corpus(4, 4, 7, 4, 7), is_compiled), []
    for step, seconds in enumerate((10, 1, 40, 2, 3)):
        said.append(waits.begin(step))
        clock[0] += seconds
        waits.end()
    assert (said, waits.seconds) == WAITS[is_compiled]


def test_the_expected_time_leaves_out_the_waits(monkeypatch):
    now, stream = [0.0], io.StringIO()
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    console = report.Console(file=stream)
    with report.TrainingBar(console, 1000, TrainingConfig(), state.State()) as bar:
        for now[0], step, waited in ((60, 2, 59.0), (200, 32, 184.0), (208, 48, 184.0)):
            bar.show(step, 12.345, waited)
    assert stream.getvalue().strip().endswith(" more, at 2 batches a second")


# Whether XLA compiles three shapes, of 1,500 batches an epoch and two epochs: 3,000
# updates are enough.
PLANS = {
    "enough": ({}, True),
    "fewer": ({"max_updates": 2999}, False),
    "accumulated": ({"gradient_accumulation_steps": 2}, False),
    "never": ({"jit_compile": False}, False),
    "always": ({"jit_compile": True, "max_updates": 1}, True),
    "replicas": ({"distribute": "mirrored"}, False),
}


@pytest.mark.parametrize("plan", PLANS)
def test_the_plan_says_whether_xla_compiles_on_one_gpu(plan, monkeypatch):
    options, compiles = PLANS[plan]
    config = RunConfig(training=TrainingConfig(epochs=2)).with_options(**options)
    planned_for = SimpleNamespace(num_batches=1500, shapes=dict.fromkeys("abc", 500))
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    for has_gpu in (True, False):
        monkeypatch.setattr(model, "has_gpu", lambda found=has_gpu: found)
        chosen = model.with_device_defaults(config, planned_for).training.jit_compile
        assert chosen == (compiles and (has_gpu or plan == "always"))
    # Few shapes are made before the plan is known.
    monkeypatch.setattr(model, "has_gpu", lambda: True)
    may_compile = plan not in ("never", "replicas")
    shapes = model.with_device_defaults(config).data.batch_shapes
    assert shapes == (6 if may_compile else None)
