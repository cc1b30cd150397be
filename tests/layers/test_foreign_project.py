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


def with_our_import():
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


def compare(name):
    """Builds a model of either project, takes the weights over and compares."""
    theirs = getattr(foreign_project, name)(np.random.default_rng(3))
    changed = with_our_import()
    ours = getattr(changed, name)(np.random.default_rng(3))
    take_over(ours[0], theirs[0])
    assert len(ours[0].trainable_weights) < len(ours[0].weights) or name != "classifier"
    expected, found = foreign_project.numbers(*theirs), changed.numbers(*ours)
    assert list(found) == list(expected)
    tolerance = 0.03 if name == "half_precision" else 2e-5
    for key in expected:
        pairs = zip(*map(keras.tree.flatten, (found[key], expected[key])), strict=True)
        for one, other in pairs:
            one, other = np.asarray(one, "float64"), np.asarray(other, "float64")
            np.testing.assert_allclose(
                one, other, rtol=tolerance, atol=tolerance, err_msg=f"{name}: {key}"
            )
    return expected


@pytest.mark.one_case
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize(
    "name",
    [
        "classifier",
        "half_precision",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in foreign_project.MODELS
            if name != "classifier"
        ),
    ],
)
def test_the_project_gives_the_same_numbers(name):
    numbers = compare(name)
    assert numbers["losses"][2] < numbers["losses"][0]
    before, int8 = (np.concatenate([x.ravel() for x in numbers[key]])
                    for key in ("before", "int8"))  # fmt: skip
    assert 0 < np.abs(int8 - before).max() < 0.1 * np.abs(before).max()
    assert numbers["int8 weights"] > 700
    tolerance = 0.03 if name == "half_precision" else 2e-5
    ways = [key.split(",")[0] for key in numbers if key.endswith(", moved")]
    assert len(ways) == (1 if name == "forecaster" else 3)
    for way in ways:
        for one, other in zip(
            numbers[f"{way}, untrained"], numbers["before"], strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        assert numbers[f"{way}, moved"] == [True]  # Adapters, and nothing else.
        assert numbers[f"{way}, change"]
        assert numbers[f"{way}, error"] < tolerance


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("name", ("classifier", "pictures"))
def test_a_file_of_the_rounded_model_comes_back(name):
    """One of Keras' attention does not."""
    model, inputs, _ = getattr(with_our_import(), name)(np.random.default_rng(3))
    model.quantize("int8")
    found, expected = (
        foreign_project.outputs_of(m, inputs)
        for m in (foreign_project.loaded(model), model)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
