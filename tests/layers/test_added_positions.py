"""The layers that add a vector to each position."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.embedding import (
    LearnedPositionalEmbedding,
    SinusoidalPositionalEncoding,
)
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import assert_close, randomise
from tests.reference import numpy_transformer as reference

SHAPE = (2, 5, 7)
LAYERS = {
    "learned": lambda: LearnedPositionalEmbedding(11),
    "sinusoidal": SinusoidalPositionalEncoding,
}


class TestBatteryOfLearned(LayerBattery):
    layer_class = LearnedPositionalEmbedding
    options = {"max_length": 11, "dropout_rate": 0.5}
    exact_options = {"dropout_rate": 0.0}
    input_shapes = (SHAPE,)
    output_shape = SHAPE

    def test_gradient_reaches_every_weight(self, rng):
        """All rows of the table need an input of their number."""
        layer = LearnedPositionalEmbedding(SHAPE[1])
        model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
        before = ops.convert_to_numpy(layer.position_embeddings).copy()
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
        model.train_on_batch(*rng.standard_normal((2, *SHAPE)))
        after = ops.convert_to_numpy(layer.position_embeddings)
        assert np.abs(after - before).max(axis=1).min() > 1e-3


class TestBatteryOfSinusoidal(LayerBattery):
    layer_class = SinusoidalPositionalEncoding
    options = {"dropout_rate": 0.5}
    exact_options = {"dropout_rate": 0.0}
    input_shapes = (SHAPE,)
    output_shape = SHAPE

    def test_gradient_reaches_every_weight(self, rng):
        """It has none."""
        layer = self.layer()
        layer(*self.inputs(rng))
        assert layer.weights == []


def random_layer(rng, name):
    layer = LAYERS[name]()
    layer.build(SHAPE)
    return randomise(layer, rng)


def test_learned_vectors_are_added(rng):
    layer = random_layer(rng, "learned")
    inputs = rng.standard_normal(SHAPE).astype("float32")
    table = ops.convert_to_numpy(layer.position_embeddings)
    assert_close(layer(inputs), inputs + table[:5])


def test_sinusoids_are_added(rng):
    inputs = rng.standard_normal(SHAPE).astype("float32")
    expected = inputs + reference.sinusoidal_positions(5, 7)
    assert_close(SinusoidalPositionalEncoding()(inputs), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_start_moves_the_positions(rng, name):
    layer = random_layer(rng, name)
    inputs = rng.standard_normal(SHAPE).astype("float32")
    whole = ops.convert_to_numpy(layer(inputs))
    assert_close(layer(inputs[:, 2:], start=2), whole[:, 2:])
    assert_close(layer(inputs[:, 2:], start=ops.convert_to_tensor(2)), whole[:, 2:])
    assert np.abs(whole[:, 2:] - ops.convert_to_numpy(layer(inputs[:, 2:]))).max() > 0.1


@pytest.mark.parametrize("name", LAYERS)
def test_output_carries_the_mask_of_the_inputs(rng, name):
    layer = random_layer(rng, name)
    vectors = keras.layers.Embedding(11, 7, mask_zero=True)(np.array([[3, 4, 0, 0, 0]]))
    outputs = layer(vectors)
    found = keras.layers.GlobalAveragePooling1D()(outputs)
    assert_close(found, ops.convert_to_numpy(outputs)[:, :2].mean(axis=1))


def test_input_longer_than_the_learned_positions_is_refused():
    layer = LearnedPositionalEmbedding(4)
    with pytest.raises(ValueError, match="longer than the learned.*max_length=4"):
        layer(np.ones((1, 5, 3), "float32"))
    with pytest.raises(ValueError, match="start=2, max_length=4"):
        layer(np.ones((1, 3, 3), "float32"), start=2)


@pytest.mark.parametrize("shape", [(5, 7), (1, 2, 5, 7)])
@pytest.mark.parametrize("name", LAYERS)
def test_inputs_of_another_rank_are_refused(name, shape):
    with pytest.raises(ValueError, match="expected ndim=3"):
        LAYERS[name]()(np.ones(shape, "float32"))


def test_sinusoids_behind_the_training_length_keep_their_likeness():
    """What two positions have in common depends on their distance alone."""
    layer = SinusoidalPositionalEncoding()
    vectors = ops.convert_to_numpy(layer(np.zeros((1, 2003, 16), "float32")))[0]
    likeness = (vectors[:-3] * vectors[3:]).sum(axis=-1)
    np.testing.assert_allclose(likeness, likeness[0], atol=1e-3)
    longer = ops.convert_to_numpy(layer(np.zeros((1, 4001, 16), "float32")))[0]
    np.testing.assert_array_equal(longer[:2003], vectors)
