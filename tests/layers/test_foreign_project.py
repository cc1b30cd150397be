"""A project written for Keras' attention runs on ours; only its import changes."""

from __future__ import annotations

import types
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_transformer import MultiHeadAttention
from tests.layers import foreign_project

OF_KERAS = "from keras.layers import MultiHeadAttention\n"
OURS = "from keras_transformer import MultiHeadAttention\n"


@pytest.fixture(scope="module")
def changed():
    """The project as a module of its own, with one line changed."""
    source = Path(foreign_project.__file__).read_text("utf-8")
    assert source.count(OF_KERAS) == 1
    module = types.ModuleType("changed_project")
    exec(
        compile(source.replace(OF_KERAS, OURS), "changed_project", "exec"), vars(module)
    )
    return module


def parts_of(layer):
    """The layers that hold weights themselves, and attention whole."""
    attention = keras.layers.MultiHeadAttention, MultiHeadAttention
    children = [] if isinstance(layer, attention) else layer._layers
    return [part for child in children for part in parts_of(child)] or [layer]


def take_over(ours, theirs):
    count = 0
    for one, other in zip(parts_of(ours), parts_of(theirs), strict=True):
        if isinstance(one, MultiHeadAttention):
            other, count = MultiHeadAttention.from_keras(other), count + 1
        one.set_weights(other.get_weights())
    assert count >= 2


@pytest.mark.one_case
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("name", foreign_project.MODELS)
def test_the_project_gives_the_same_numbers(changed, name):
    theirs = foreign_project.MODELS[name](np.random.default_rng(3))
    ours = changed.MODELS[name](np.random.default_rng(3))
    take_over(ours[0], theirs[0])
    is_frozen = len(ours[0].trainable_weights) < len(ours[0].weights)
    assert is_frozen or name == "forecaster"
    tolerance = 0.03 if name == "half_precision" else 2e-5
    # Of what Keras' own layers do otherwise: heads share B, ours share neither.
    tuned, integers = changed.adapted(*ours), changed.rounded(*ours[:2])
    expected, found = foreign_project.numbers(*theirs), changed.numbers(*ours)
    assert list(found) == list(expected)
    for key in expected:
        np.testing.assert_allclose(
            found[key], expected[key], rtol=tolerance, atol=tolerance,
            err_msg=f"{name}: {key}",
        )  # fmt: skip
    assert found["losses"][2] < found["losses"][0]
    assert 0 < np.abs(integers["int8"] - found["before"]).max() < 0.1
    assert integers["integers"] > 700
    np.testing.assert_allclose(tuned["untrained"], found["before"], atol=tolerance)
    assert tuned["moved"] == {True}  # Adapters, and nothing else.
    assert tuned["change"] > 0 and tuned["error"] < tolerance
    assert not tuned["left in the file"]
