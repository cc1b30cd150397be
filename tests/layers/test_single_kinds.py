"""What one kind of attention alone has: a state, random features, positions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import SSRU, MultiHeadAttention, PerformerAttention
from keras_transformer.layers.adaptation import enable_lora
from keras_transformer.layers.linear_attention import orthogonal_gaussians
from keras_transformer.layers.relative_positions import (
    RelativePositions,
    alibi_slopes,
    rotate,
)
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import (
    MODES,
    check_state_follows_the_hypotheses,
    decode_steps,
)
from tests.reference import numpy_transformer as reference
from tests.reference.numpy_attention import rotation

SHAPE, OF_PERFORMER = (2, 7, 11), (2, 17, 11)


def normal(rng, shape):
    return rng.standard_normal(shape).astype("float32")


def ssru(rng):
    layer = SSRU()
    layer.build(SHAPE)
    return randomise(layer, rng)


def performer(rng):
    layer = PerformerAttention(3, 5, value_dim=7, seed=1)
    layer.build(OF_PERFORMER)
    return randomise(layer, rng)


def attention(rng, positions):
    layer = MultiHeadAttention(6, 4, positions=positions)
    layer.build(SHAPE)
    return randomise(layer, rng)


def test_outputs_of_an_ssru_agree_with_the_reference(rng):
    layer, inputs = ssru(rng), normal(rng, SHAPE)
    expected = reference.ssru(inputs, weights_of(layer, "ssru"))
    assert 0.2 < (expected > 0).mean() < 0.8
    assert_close(layer(inputs), expected)
    paths = {
        weight.path.partition("/")[2]: tuple(weight.shape) for weight in layer.weights
    }
    square = (11, 11)
    assert paths == {
        "input/kernel": square, "forget/kernel": square, "forget/bias": (11,)
    }  # fmt: skip


def test_a_masked_position_of_an_ssru_leaves_the_state_as_it_is(rng):
    """What follows it is as if it were not there."""
    layer, inputs = ssru(rng), normal(rng, SHAPE)
    mask = np.ones((2, 7), bool)
    mask[0, [0, 3, 4]] = False
    outputs = ops.convert_to_numpy(layer(inputs, mask=mask))
    shorter = ops.convert_to_numpy(layer(inputs[:1, mask[0]]))
    assert_close(outputs[:1, mask[0]], shorter)
    assert_close(outputs[1:], ops.convert_to_numpy(layer(inputs))[1:])
    np.testing.assert_array_equal(outputs[0, 4], outputs[0, 2])
    assert_close(layer(inputs, mask=mask[:, None]), outputs)


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_an_ssru_equal_call_with_a_state_of_constant_size(rng, mode):
    layer, inputs = ssru(rng), normal(rng, SHAPE)
    expected = ops.convert_to_numpy(layer(inputs))
    for found in decode_steps(layer, inputs, hypotheses=2, mode=mode):
        assert_close(found, expected)
    for length in (7, 7000):
        (state,) = layer.initial_cache(2, 3, length)
        assert state.shape == (2, 3, 11)
    check_state_follows_the_hypotheses(layer, rng, mode)


def test_an_ssru_of_half_precision_adds_up_in_float32():
    """With almost nothing forgotten, bfloat16 would soon add nothing more."""
    layer = SSRU(dtype="bfloat16")
    layer.build((1, None, 2))
    layer.input_dense.kernel.assign(np.eye(2))
    layer.forget_dense.kernel.assign(np.zeros((2, 2)))
    layer.forget_dense.bias.assign([6.0, 6.0])  # sigmoid(6) = 0.9975
    outputs = layer(np.ones((1, 800, 2), "float32"))
    last = ops.convert_to_numpy(ops.cast(outputs, "float32"))[0, -1]
    kept = 1 / (1 + np.exp(-6.0))
    np.testing.assert_allclose(last, 1 - kept**800, rtol=0.02)


def test_adapters_and_integers_of_an_ssru_stay_close(rng):
    layer, inputs = ssru(rng), normal(rng, SHAPE)
    exact = ops.convert_to_numpy(layer(inputs))
    enable_lora(layer, 2)
    assert_close(layer(inputs), exact)  # B is zero at first.
    for dense in (layer.input_dense, layer.forget_dense):
        dense.lora_kernel_b.assign(rng.standard_normal((2, 11)))
    adapted = ops.convert_to_numpy(layer(inputs))
    assert np.abs(adapted - exact).max() > 0.1
    (found,) = decode_steps(layer, inputs)
    assert_close(found, adapted)
    integers = ssru(np.random.default_rng(5))
    expected = ops.convert_to_numpy(integers(inputs))
    for dense in (integers.input_dense, integers.forget_dense):
        dense.quantize("int8")
    quantized = ops.convert_to_numpy(integers(inputs))
    assert 0 < np.abs(quantized - expected).max() < 0.1
    (found,) = decode_steps(integers, inputs)
    assert_close(found, quantized)


def vectors_of(layer):
    return ops.convert_to_numpy(layer.random_features).astype(np.float64)


def test_features_estimate_the_exponential_without_bias(rng):
    """Lemma 1: over many draws the mean of phi(q) . phi(k) is exp(q . k / sqrt(K))."""
    draws = 20000
    layer = PerformerAttention(1, 5, num_features=draws * 5, seed=1)
    layer.build(OF_PERFORMER)
    query, key = 0.7 * rng.standard_normal((2, 1, 1, 3, 5)).astype("float32")
    queries, keys = (
        ops.convert_to_numpy(layer.feature_map(x))[0, 0].astype(np.float64)
        for x in (query, key)
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
    layer, inputs = performer(rng), rng.standard_normal(OF_PERFORMER).astype("float32")
    output = ops.convert_to_numpy(layer(scale * inputs, use_causal_mask=True))
    assert np.isfinite(output).all()
    states = keras.Input(OF_PERFORMER[1:])
    model = keras.Model(states, layer(states, use_causal_mask=True))
    model.compile(optimizer=keras.optimizers.SGD(1e-9), loss="mse")
    model.train_on_batch(scale * inputs, np.zeros(output.shape))
    assert all(np.isfinite(ops.convert_to_numpy(w)).all() for w in layer.weights)


def test_rotation_agrees_with_the_matrix_of_the_paper(rng):
    vectors = rng.standard_normal((2, 3, 5, 8)).astype("float32")
    positions = np.array([0, 1, 7, 30, 100])
    found = rotate(ops.convert_to_tensor(vectors), positions, base=100.0)
    for place, position in enumerate(positions):
        matrix = rotation(position, 8, base=100.0)
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


def test_rotary_attention_is_the_same_at_any_distance_from_the_start(rng):
    """Padding in front moves all positions and no weight."""
    layer = attention(rng, positions="rotary")
    inputs = normal(rng, SHAPE)
    moved = np.pad(inputs, ((0, 0), (5, 0), (0, 0)))
    mask = np.arange(7 + 5) >= 5
    found = layer(moved, mask=np.tile(mask, (2, 1)))
    assert_close(found[:, 5:], ops.convert_to_numpy(layer(inputs)))


def test_other_positions_can_be_written(rng):
    class Nearest(RelativePositions):
        """Lets each position see itself alone, by a low bias."""

        def bias(self, num_heads, query_positions, key_positions):
            same = ops.equal(query_positions[:, None], key_positions[None, :])
            return ops.where(same, 0.0, -1e9)[None]

    layer = attention(rng, positions=Nearest())
    _, attention_weights = layer(normal(rng, SHAPE), return_attention_scores=True)
    expected = np.broadcast_to(np.eye(7), attention_weights.shape)
    assert_close(attention_weights, expected)
