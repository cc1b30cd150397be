"""The feed-forward network against the NumPy reference."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.layers import FeedForward
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_transformer as reference


def test_agrees_with_the_reference(rng):
    layer = FeedForward(d_ff=7)
    inputs = rng.standard_normal((2, 3, 5)).astype("float32")
    layer(inputs)
    randomise(layer, rng)
    expected = reference.feed_forward(inputs, weights_of(layer, "feed_forward"))
    assert_close(layer(inputs), expected)


def test_worked_example():
    """Two hidden units, one of them stopped by ReLU: (2 - 1) * 3 + 0.5 = 3.5."""
    layer = FeedForward(d_ff=2)
    layer.build((None, None, 1))
    layer.hidden_dense.kernel.assign([[1.0, -1.0]])
    layer.hidden_dense.bias.assign([-1.0, 1.0])
    layer.output_dense.kernel.assign([[3.0], [5.0]])
    layer.output_dense.bias.assign([0.5])
    assert_close(layer(np.array([[[2.0]]], "float32")), [[[3.5]]])


def test_activation_is_a_name_or_a_function(rng):
    inputs = rng.standard_normal((2, 3, 5)).astype("float32")
    by_name, by_function = (
        FeedForward(d_ff=7, activation=activation)
        for activation in ("tanh", keras.activations.tanh)
    )
    by_name(inputs)
    randomise(by_name, rng)
    by_function.build(inputs.shape)
    by_function.set_weights(by_name.get_weights())
    expected = reference.feed_forward(
        inputs, weights_of(by_name, "feed_forward"), activation=np.tanh
    )
    assert_close(by_name(inputs), expected)
    assert_close(by_function(inputs), expected)


def test_any_number_of_positions_is_taken(rng):
    layer, inputs = FeedForward(d_ff=7), rng.standard_normal((2, 6)).astype("float32")
    outputs = ops.convert_to_numpy(layer(inputs))
    for shape in ((1, 2, 6), (2, 1, 1, 6)):
        found = ops.reshape(layer(inputs.reshape(shape)), (2, 6))
        assert_close(found, outputs)
