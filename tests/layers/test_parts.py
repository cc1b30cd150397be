"""Dot-product and additive attention and the feed-forward network, worked by hand."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    AdditiveAttention,
    FeedForward,
    masked_softmax,
    scaled_dot_product_attention,
)
from keras_transformer.layers.score_attentions import masked_relu
from keras_transformer.masks import valid_length_mask
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_attention
from tests.reference import numpy_transformer as reference

# Of a query, a value and a key.
SHAPES = ((2, 3, 7), (2, 5, 17), (2, 5, 13))
MASKS = {
    "none": None,
    "of rows": valid_length_mask([4, 2], 5),
    "of queries": valid_length_mask([[1, 5, 3], [0, 2, 4]], 5),
}


def floats(rng, *shapes):
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def array(tensor):
    return None if tensor is None else ops.convert_to_numpy(tensor)


@pytest.mark.parametrize("mask", MASKS)
def test_dot_product_attention_agrees_with_the_reference(rng, mask):
    query, value, key = floats(rng, SHAPES[0], SHAPES[1], (2, 5, 7))
    tensors = list(map(ops.convert_to_tensor, (query, key, value)))
    mask = MASKS[mask]
    output, weights = scaled_dot_product_attention(*tensors, mask=mask)
    expected = reference.dot_product_attention(query, key, value, array(mask))
    assert_close(output, expected[0])
    assert_close(weights, expected[1])
    # Leading axes are free.
    stacked = [ops.stack([x, 2 * x], axis=1) for x in tensors]
    output, _ = scaled_dot_product_attention(*stacked)
    expected = reference.dot_product_attention(2 * query, 2 * key, 2 * value)
    assert_close(output[:, 1], expected[0])


@pytest.mark.parametrize("key_value", (1.0, -3.0))
def test_equal_keys_give_the_mean_of_the_valid_values(rng, key_value):
    """Values 0 to 39, valid lengths 2 and 6: the means of the first 2 and 6 rows."""
    value = np.arange(40, dtype="float32").reshape(1, 10, 4).repeat(2, axis=0)
    query, keys = floats(rng, (2, 1, 2))[0], np.full((2, 10, 2), key_value, "float32")
    mask, means = valid_length_mask([2, 6], 10), [[[2, 3, 4, 5]], [[10, 11, 12, 13]]]
    output, weights = scaled_dot_product_attention(query, keys, value, mask)
    assert_close(output, means)
    shares = np.zeros((2, 1, 10))
    shares[0, 0, :2], shares[1, 0, :6] = 1 / 2, 1 / 6
    assert_close(weights, shares)
    assert_close(AdditiveAttention(8)(query, value, keys, mask=mask), means)
    # Of each query its own.
    query, mask = floats(rng, (1, 3, 2))[0], valid_length_mask([[1, 2, 6]], 10)
    output, _ = scaled_dot_product_attention(query, keys[:1], value[:1], mask)
    assert_close(output, [[[0, 1, 2, 3], [2, 3, 4, 5], [10, 11, 12, 13]]])


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_masked_softmax_survives_large_scores(dtype):
    scores = ops.cast([[60000.0, -60000.0, 60000.0], [1.0, 2.0, 3.0]], dtype)
    mask = np.array([[True, True, False], [False, False, False]])
    weights = masked_softmax(scores, mask)
    assert weights.dtype == scores.dtype
    assert_close(ops.cast(weights, "float32"), [[1, 0, 0], [0, 0, 0]])
    # Allowed scores near the lowest number still beat masked ones.
    scores = ops.convert_to_tensor([[-1e30, -1e30, 5.0]])
    weights = masked_softmax(scores, np.array([[True, True, False]]))
    assert_close(weights, [[0.5, 0.5, 0.0]])


def test_masked_relu_closed_form():
    scores = ops.convert_to_tensor([[3.0, -1.0, 6.0], [2.0, 4.0, 8.0]])
    assert_close(masked_relu(scores), [[1, 0, 2], [2 / 3, 4 / 3, 8 / 3]])
    mask = np.array([[True, True, False], [False, False, False]])
    assert_close(masked_relu(scores, mask), [[1.5, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("use_bias", (False, True))
@pytest.mark.parametrize("mask", MASKS)
def test_additive_attention_agrees_with_the_reference(rng, mask, use_bias):
    layer, mask = AdditiveAttention(7, use_bias=use_bias), MASKS[mask]
    query, value, key = floats(rng, *SHAPES)
    layer.build(*SHAPES)
    randomise(layer, rng)
    expected = numpy_attention.additive_attention(
        query, key, value, weights_of(layer, "attention"), array(mask)
    )
    found = layer(query, value, key, mask=mask, return_attention_scores=True)
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])
    assert_close(layer(query, value, key, mask=mask), expected[0])
    if mask is not None and mask.shape[1] == 3:  # One may attend to nothing.
        np.testing.assert_array_equal(array(found[0]).any(-1), array(mask).any(-1))
        return
    # Padding changes nothing, and keys that are projected once serve every query.
    given = np.ones((2, 5), bool) if mask is None else array(mask)[:, 0]
    more = [
        np.pad(x, ((0, 0), (0, 2), (0, 0)), constant_values=9) for x in (value, key)
    ]
    given = np.pad(given, ((0, 0), (0, 2)))
    assert_close(layer(query, *more, mask=given), expected[0])
    projected = layer.key_dense(key)
    for t in range(3):
        one = layer.attend(query[:, t : t + 1], projected, value, mask=mask)
        for part, whole in zip(one, expected, strict=True):
            assert_close(part[:, 0], whole[:, t])


def test_symbolic_additive_weights_have_their_shape():
    inputs = keras.Input((None, 11)), keras.Input((7, 13))
    output, weights = AdditiveAttention(7)(*inputs, return_attention_scores=True)
    assert output.shape == (None, None, 13)
    assert weights.shape == (None, None, 7)


def test_feed_forward_agrees_with_the_reference(rng):
    """By the activation's name or function, for any number of positions."""
    (inputs,) = floats(rng, (2, 3, 5))
    for activation, function in (
        ("relu", reference.relu), ("tanh", np.tanh), (keras.activations.tanh, np.tanh)
    ):  # fmt: skip
        layer = FeedForward(d_ff=7, activation=activation)
        layer.build(inputs.shape)
        weights = weights_of(randomise(layer, rng), "feed_forward")
        expected = reference.feed_forward(inputs, weights, activation=function)
        assert_close(layer(inputs), expected)
        assert_close(layer(inputs[0]), expected[0])
        assert_close(layer(inputs[:, None]), expected[:, None])
