"""What one kind of attention alone has, and the functions below all, worked by hand."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import masks
from keras_transformer.nn.layers import (
    SSRU,
    AdditiveAttention,
    FeedForward,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
    PerformerAttention,
    masked_softmax,
    scaled_dot_product_attention,
)
from keras_transformer.nn.layers.linear_attention import orthogonal_gaussians
from keras_transformer.nn.layers.relative_positions import (
    RelativePositions,
    alibi_slopes,
    rotate,
)
from keras_transformer.nn.layers.score_attentions import masked_relu
from keras_transformer.nn.masks import valid_length_mask
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_attention
from tests.reference import numpy_transformer as reference

SHAPE, OF_PERFORMER = (2, 7, 11), (2, 17, 11)
# Of a query, a value and a key.
SHAPES = ((2, 3, 7), (2, 5, 17), (2, 5, 13))
MASKS = {
    "none": None,
    "of rows": valid_length_mask([4, 2], 5),
    "of queries": valid_length_mask([[1, 5, 3], [0, 2, 4]], 5),
}
array = ops.convert_to_numpy


def normal(rng, shape):
    return rng.standard_normal(shape).astype("float32")


def random_layer(layer, rng, *shapes):
    layer.build(*shapes)
    return randomise(layer, rng)


# Scores and weights.


def test_dot_product_attention_agrees_with_the_reference(rng):
    query, value, key = (normal(rng, s) for s in (SHAPES[0], SHAPES[1], (2, 5, 7)))
    tensors, mask = [query, key, value], MASKS["of queries"]
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
    assert_close(AdditiveAttention(8)(query, value, keys, mask=mask), means)


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


# Additive scores.


@pytest.mark.parametrize("use_bias", (False, True))
@pytest.mark.parametrize("mask", MASKS)
def test_additive_attention_agrees_with_the_reference(rng, mask, use_bias):
    mask = MASKS[mask]
    layer = random_layer(AdditiveAttention(7, use_bias=use_bias), rng, *SHAPES)
    query, value, key = (normal(rng, shape) for shape in SHAPES)
    expected = numpy_attention.additive_attention(
        query,
        key,
        value,
        weights_of(layer, "attention"),
        None if mask is None else array(mask),
    )
    found = layer(query, value, key, mask=mask, return_attention_scores=True)
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])
    assert_close(layer(query, value, key, mask=mask), expected[0])
    if mask is not None and mask.shape[1] == 3:
        return
    # Keys that are projected once serve every query.
    projected = layer.key_dense(key)
    for t in range(3):
        one = layer.attend(query[:, t : t + 1], projected, value, mask=mask)
        for part, whole in zip(one, expected, strict=True):
            assert_close(part[:, 0], whole[:, t])


def test_initializers_take_the_width_of_a_head_for_the_inputs_of_its_scores():
    layer = MultiHeadAdditiveAttention(3, 400, kernel_initializer="lecun_normal")
    layer.build(SHAPE)
    squares = np.square(array(layer.score_kernel)).sum(axis=0)
    np.testing.assert_allclose(squares, np.ones(3), atol=0.3)


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


# Random features.


def vectors_of(layer):
    return array(layer.random_features).astype(np.float64)


def test_features_estimate_the_exponential_without_bias(rng):
    """Lemma 1: over many draws the mean of phi(q) . phi(k) is exp(q . k / sqrt(K))."""
    draws = 20000
    layer = PerformerAttention(1, 5, num_features=draws * 5, seed=1)
    layer.build(OF_PERFORMER)
    query, key = 0.7 * rng.standard_normal((2, 1, 1, 3, 5)).astype("float32")
    queries, keys = (
        array(layer.feature_map(x))[0, 0].astype(np.float64) for x in (query, key)
    )
    # Each block of K is a draw of its own.
    products = (queries[:, None] * keys).reshape(3, 3, draws, 5)
    products = products.sum(axis=-1) * draws
    expected = np.exp(query[0, 0] @ key[0, 0].T / np.sqrt(5))
    error = products.std(axis=-1) / np.sqrt(draws)
    assert (np.abs(products.mean(axis=-1) - expected) < 4 * error).all()
    assert (error < 0.03 * expected).all()


def test_vectors_are_orthogonal_in_blocks_with_the_lengths_of_gaussians():
    generator = np.random.default_rng(1)
    vectors = orthogonal_gaussians(4000, 8, generator)
    blocks = vectors.reshape(-1, 8, 8)
    products = blocks @ blocks.transpose(0, 2, 1)
    off_diagonal = products * (1 - np.eye(8))
    assert np.abs(off_diagonal).max() < 1e-9
    # |w|^2 has the mean K and the variance 2 K; each unit has the variance 1.
    squares = (vectors**2).sum(axis=1)
    assert squares.mean() == pytest.approx(8, abs=0.3)
    assert squares.var() == pytest.approx(16, abs=2)
    assert np.abs(vectors.mean(axis=0)).max() < 0.08
    assert orthogonal_gaussians(5, 8, generator).shape == (5, 8)


def test_a_seed_draws_the_same_and_redraw_draws_others():
    first, second = (PerformerAttention(2, 4, seed=7) for _ in range(2))
    for layer in (first, second):
        layer.build(OF_PERFORMER)
    drawn = vectors_of(first)
    assert drawn.shape == (6, 4)  # 4 ln 4, rounded up
    np.testing.assert_array_equal(drawn, vectors_of(second))
    first.redraw(seed=8)
    assert np.abs(drawn - vectors_of(first)).min() > 0
    first.redraw()
    second.redraw()
    assert np.abs(vectors_of(first) - vectors_of(second)).max() > 0


@pytest.mark.parametrize("scale", [30.0, 1e3])
def test_large_inputs_of_random_features_give_finite_outputs_and_gradients(rng, scale):
    layer = random_layer(PerformerAttention(3, 5, value_dim=7), rng, OF_PERFORMER)
    inputs, states = scale * normal(rng, OF_PERFORMER), keras.Input(OF_PERFORMER[1:])
    model = keras.Model(states, layer(states, use_causal_mask=True))
    output = array(model(inputs))
    model.compile(keras.optimizers.SGD(1e-9), "mse")
    model.train_on_batch(inputs, np.zeros(output.shape))
    assert all(np.isfinite(array(x)).all() for x in (output, *layer.weights))


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

        def bias(self, num_heads, query_positions, key_positions):
            same = ops.equal(query_positions[:, None], key_positions[None, :])
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
    "local_window_mask(4, window=1)": [
        [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    ],
    "local_window_mask(4, window=2, causal=True)": [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    ],
    "local_window_mask(3, window=0)": np.eye(3)[None],
    "attention_mask(PAIRS)": PAIRS[:, None],
    "mask_of_keys(attention_mask(PAIRS))": PAIRS,
}  # fmt: skip


@pytest.mark.parametrize("call", BY_HAND)
def test_masks_by_hand(call):
    assert_mask(eval(call, globals() | vars(masks)), BY_HAND[call])


def test_no_mask_stays_none():
    assert masks.attention_mask(None) is None
