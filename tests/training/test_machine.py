"""What decides how a run's sums are rounded."""

from __future__ import annotations

import json

import keras
import pytest

from keras_transformer.exact_training import cores as cores
from keras_transformer.training import machine as machine_module
from keras_transformer.training.distribution import Distribution
from keras_transformer.training.machine import differences, machine


@pytest.fixture
def here():
    return machine(Distribution())


def test_a_machine_goes_through_json_and_is_its_own_equal(here):
    assert json.loads(json.dumps(here)) == here
    assert differences(here, machine(Distribution())) == []
    assert here["backend"].split()[0] == keras.backend.backend()
    assert here["threads"] >= 1
    assert here["replicas"] == 1


def test_what_differs_is_told_and_what_is_not_known_is_not(here):
    before = here | {"threads": 64, "processor": "abacus"}
    assert differences(before, here) == [
        f"processor {here['processor']} (before: abacus)",
        f"threads {here['threads']} (before: 64)",
    ]
    assert differences({}, here) == []


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="The variable is TensorFlow's"
)
def test_the_threads_are_those_of_the_environment_or_the_cores(monkeypatch):
    monkeypatch.setattr(cores, "_num_parts", 3)
    monkeypatch.setattr(machine_module, "available_cores", lambda: 5)
    for value, expected in (("7", 7), ("0", 5), ("many", 5), ("", 5)):
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", value)
        found = machine(Distribution())
        assert (found["threads"], found["parts"]) == (expected, 3)
