"""What one kind of attention alone has, and the functions below all, worked by hand."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import masks
from keras_transformer.nn.layers import (
    SSRU,
    FeedForward,
    MultiHeadAttention,
    masked_softmax,
    scaled_dot_product_attention,
)
from keras_transformer.nn.layers.relative_positions import (
    RelativePositions,
    alibi_slopes,
    rotate,
)
from keras_transformer.nn.masks import valid_length_mask
from tests.nn.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_attention
from tests.reference import numpy_transformer as reference

SHAPE = (2, 7, 11)
array = ops.convert_to_numpy


def normal(rng, shape):
    return rng.standard_normal(shape).astype("float32")


def random_layer(layer, rng, *shapes):
    layer.build(*shapes)
    return randomise(layer, rng)


# Scores and weights.


def test_dot_product_attention_agrees_with_the_reference(rng):
    query, value, key = (normal(rng, s) for s in ((2, 3, 7), (2, 5, 17), (2, 5, 7)))
    tensors, mask = [query, key, value], valid_length_mask([[1, 5, 3], [0, 2, 4]], 5)
    expected = reference.dot_product_attention(query, key, value, array(mask))
    for found, wanted in zip(
        scaled_dot_product_attention(*tensors, mask=mask), expected, strict=True
    ):
        assert_close(found, wanted)
    # Leading axes are free.
    stacked = [np.stack([x, 2 * x], axis=1) for x in tensors]
    output, _ = scaled_dot_product_attention(*stacked)
    expected = reference.dot_product_attention(2 * query, 2 * key, 2 * value)
    assert_close(output[:, 1], expected[0])


def test_equal_keys_give_the_mean_of_the_valid_values(rng):
    """Values 0 to 39, valid lengths 2 and 6: the means of the first 2 and 6 rows."""
    value = np.arange(40, dtype="float32").reshape(1, 10, 4).repeat(2, axis=0)
    query, keys = normal(rng, (2, 1, 2)), np.full((2, 10, 2), -3.0, "float32")
    mask, means = valid_length_mask([2, 6], 10), [[[2, 3, 4, 5]], [[10, 11, 12, 13]]]
    output, weights = scaled_dot_product_attention(query, keys, value, mask)
    assert_close(output, means)
    shares = np.zeros((2, 1, 10))
    shares[0, 0, :2], shares[1, 0, :6] = 1 / 2, 1 / 6
    assert_close(weights, shares)


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


def test_feed_forward_agrees_with_the_reference(rng):
    """By the activation's name or function, for any number of positions."""
    inputs = normal(rng, (2, 3, 5))
    for activation, function in (
        ("relu", reference.relu),
        ("tanh", np.tanh),
        (keras.activations.tanh, np.tanh),
    ):
        layer = random_layer(FeedForward(7, activation=activation), rng, inputs.shape)
        weights = weights_of(layer, "feed_forward")
        expected = reference.feed_forward(inputs, weights, activation=function)
        assert_close(layer(inputs), expected)
        assert_close(layer(inputs[0]), expected[0])
        assert_close(layer(inputs[:, None]), expected[:, None])


def test_an_ssru_of_half_precision_adds_up_in_float32():
    """With almost nothing forgotten, bfloat16 would soon add nothing more."""
    layer = SSRU(dtype="bfloat16")
    layer.build((1, None, 2))
    layer.input_dense.kernel.assign(np.eye(2))
    layer.forget_dense.kernel.assign(np.zeros((2, 2)))
    layer.forget_dense.bias.assign([6.0, 6.0])  # sigmoid(6) = 0.9975
    outputs = layer(np.ones((1, 800, 2), "float32"))
    last = array(ops.cast(outputs, "float32"))[0, -1]
    kept = 1 / (1 + np.exp(-6.0))
    np.testing.assert_allclose(last, 1 - kept**800, rtol=0.02)


# Positions.


def test_rotation_agrees_with_the_matrix_of_the_paper(rng):
    vectors = normal(rng, (2, 3, 5, 8))
    positions = np.array([0, 1, 7, 30, 100])
    found = rotate(ops.convert_to_tensor(vectors), positions, base=100.0)
    for place, position in enumerate(positions):
        matrix = numpy_attention.rotation(position, 8, base=100.0)
        assert_close(found[:, :, place], vectors[:, :, place] @ matrix.T)


@pytest.mark.parametrize(
    "num_heads, expected",
    [
        (8, [2**-i for i in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (1, [2**-8]),
    ],
)
def test_slopes_of_alibi_are_those_of_the_paper(num_heads, expected):
    assert alibi_slopes(num_heads) == expected


def test_other_positions_can_be_written(rng):
    class Nearest(RelativePositions):
        """Lets each position see itself alone, by a low bias."""

        def bias(self, num_heads, query_indices, key_indices):
            same = ops.equal(query_indices[:, None], key_indices[None, :])
            return ops.where(same, 0.0, -1e9)[None]

    layer = random_layer(MultiHeadAttention(6, 4, positions=Nearest()), rng, SHAPE)
    _, attention_weights = layer(normal(rng, SHAPE), return_attention_scores=True)
    expected = np.broadcast_to(np.eye(7), attention_weights.shape)
    assert_close(attention_weights, expected)


# Masks, each value worked out by hand.


def assert_mask(mask, expected):
    mask = ops.convert_to_numpy(mask)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, np.array(expected, bool))


IDS, PAIRS = np.array([[5, 7, 0], [4, 0, 0]]), np.array([[1, 0, 1], [1, 1, 0]], bool)
BY_HAND = {
    "padding_mask(IDS)": [[[1, 1, 0]], [[1, 0, 0]]],
    "padding_mask(np.array([[0, 3, 9]]), pad_id=3)": [[[1, 0, 1]]],
    "causal_mask(3)": [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]],
    "padding_mask(IDS[:1]) & causal_mask(3)": [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]],
    "valid_length_mask([2, 0, 3], 3)": [[[1, 1, 0]], [[0, 0, 0]], [[1, 1, 1]]],
    "valid_length_mask([[1, 3], [0, 2]], 3)": [
        [[1, 0, 0], [1, 1, 1]], [[0, 0, 0], [1, 1, 0]]
    ],
    "attention_mask(PAIRS)": PAIRS[:, None],
    "mask_of_keys(attention_mask(PAIRS))": PAIRS,
}  # fmt: skip


@pytest.mark.parametrize("call", BY_HAND)
def test_masks_by_hand(call):
    assert_mask(eval(call, globals() | vars(masks)), BY_HAND[call])


def test_no_mask_stays_none():
    assert masks.attention_mask(None) is None
