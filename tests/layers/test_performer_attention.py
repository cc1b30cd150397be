"""Random features of the softmax: unbiased, better with their number, and causal."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import PerformerAttention
from keras_transformer.layers.linear_attention import orthogonal_gaussians
from keras_transformer.masks import valid_length_mask
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import (
    MODES,
    check_state_follows_the_hypotheses,
    decode_steps,
)
from tests.reference import numpy_attention as reference
from tests.reference import numpy_transformer

NUM_HEADS, KEY_DIM, VALUE_DIM, LENGTH = 3, 5, 7, 17
SHAPE = (2, LENGTH, 11)
SHAPES = ((2, 5, 11), (2, 7, 17), (2, 7, 13))


class TestBattery(LayerBattery):
    layer_class = PerformerAttention
    options = {
        "num_heads": NUM_HEADS,
        "key_dim": KEY_DIM,
        "value_dim": VALUE_DIM,
        "output_dim": 13,
        "causal": True,
        "use_bias": False,
        "num_features": 19,
        "seed": 3,
    }
    input_shapes = (SHAPE,)
    output_shape = (2, LENGTH, 13)
    weights_without_gradient = ("random_features",)

    def test_rates_must_lie_below_one(self):
        assert "dropout_rate" not in self.layer().get_config()

    def test_dropout_acts_in_training_only(self, rng):
        layer, inputs = self.layer(), self.inputs(rng)
        silent, training = layer(*inputs), layer(*inputs, training=True)
        assert_close(training, ops.convert_to_numpy(silent))


def random_layer(rng, *shapes, **options):
    """Random weights, but the random features as they were drawn."""
    options = {"value_dim": VALUE_DIM, "seed": 1} | options
    layer = PerformerAttention(NUM_HEADS, KEY_DIM, **options)
    layer.build(*(shapes or [SHAPE]))
    drawn = ops.convert_to_numpy(layer.random_features)
    randomise(layer, rng)
    layer.random_features.assign(drawn)
    return layer


def random_inputs(rng, *shapes):
    shapes = shapes or [SHAPE]
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def vectors_of(layer):
    return ops.convert_to_numpy(layer.random_features).astype(np.float64)


@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention_agrees_with_the_reference(rng, masked):
    layer = random_layer(rng, *SHAPES)
    query, value, key = random_inputs(rng, *SHAPES)
    mask = np.arange(7) < np.array([[[4]], [[0]]]) if masked else None
    expected = reference.performer_attention(
        query, key, value, weights_of(layer, "attention"), NUM_HEADS,
        vectors_of(layer), mask,
    )  # fmt: skip
    given = None if mask is None else mask[:, 0]
    assert_close(layer(query, value, key, mask=given), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_causal_attention_agrees_with_the_reference(rng, masked):
    layer, (inputs,) = random_layer(rng, causal=True), random_inputs(rng)
    mask = np.tril(np.ones((1, LENGTH, LENGTH), bool))
    row_mask = np.arange(LENGTH) < np.array([[LENGTH], [7]])
    mask = mask & row_mask[:, None] if masked else mask
    expected = reference.performer_attention(
        inputs, inputs, inputs, weights_of(layer, "attention"), NUM_HEADS,
        vectors_of(layer), mask,
    )  # fmt: skip
    assert_close(layer(inputs, mask=row_mask if masked else None), expected)


def test_features_estimate_the_exponential_without_bias(rng):
    """Lemma 1: over many draws the mean of phi(q) . phi(k) is exp(q . k / sqrt(K))."""
    draws = 20000
    layer = PerformerAttention(1, KEY_DIM, num_features=draws * KEY_DIM, seed=1)
    layer.build(SHAPE)
    query, key = 0.7 * rng.standard_normal((2, 1, 1, 3, KEY_DIM)).astype("float32")
    queries, keys = (
        ops.convert_to_numpy(layer.feature_map(x))[0, 0].astype(np.float64)
        for x in (query, key)
    )
    # Each block of K is a draw of its own.
    products = (queries[:, None] * keys).reshape(3, 3, draws, KEY_DIM)
    products = products.sum(axis=-1) * draws
    expected = np.exp(query[0, 0] @ key[0, 0].T / np.sqrt(KEY_DIM))
    error = products.std(axis=-1) / np.sqrt(draws)
    assert (np.abs(products.mean(axis=-1) - expected) < 4 * error).all()
    assert (error < 0.03 * expected).all()


def test_error_falls_with_the_number_of_features(rng):
    """To a tenth of the error or less with a thousand times as many."""
    (inputs,) = random_inputs(rng)
    inputs, errors = 0.7 * inputs, []
    for number in (4, 64, 4096):
        layer = random_layer(np.random.default_rng(5), num_features=number)
        weights = weights_of(layer, "attention")
        softmax = numpy_transformer.multi_head_attention(
            inputs, inputs, inputs, weights, NUM_HEADS
        )
        exact = softmax[0] if isinstance(softmax, tuple) else softmax
        errors.append(np.abs(ops.convert_to_numpy(layer(inputs)) - exact).mean())
    assert errors[2] < 0.1 * errors[0]
    assert errors[1] < errors[0] and errors[2] < errors[1] < 1


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
        layer.build(SHAPE)
    drawn = vectors_of(first)
    assert drawn.shape == (6, 4)  # 4 ln 4, rounded up
    np.testing.assert_array_equal(drawn, vectors_of(second))
    first.redraw(seed=8)
    assert np.abs(drawn - vectors_of(first)).min() > 0
    first.redraw()
    second.redraw()
    assert np.abs(vectors_of(first) - vectors_of(second)).max() > 0


@pytest.mark.parametrize("scale", [30.0, 1e3])
def test_large_inputs_give_finite_outputs_and_gradients(rng, scale):
    layer = random_layer(rng, causal=True)
    (inputs,) = random_inputs(rng)
    output = ops.convert_to_numpy(layer(scale * inputs))
    assert np.isfinite(output).all()
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    model.compile(optimizer=keras.optimizers.SGD(1e-9), loss="mse")
    model.train_on_batch(scale * inputs, np.zeros(output.shape))
    assert all(np.isfinite(ops.convert_to_numpy(w)).all() for w in layer.weights)


def test_later_position_changes_no_earlier_output(rng):
    layer, (inputs,) = random_layer(rng, causal=True), random_inputs(rng)
    changed = inputs.copy()
    changed[:, 9:] += 50
    before, after = (ops.convert_to_numpy(layer(x)) for x in (inputs, changed))
    np.testing.assert_array_equal(before[:, :9], after[:, :9])
    assert np.abs(before - after)[:, 9:].max(axis=(0, 2)).min() > 1e-3


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
def test_steps_equal_call_with_a_state_of_constant_size(rng, mode):
    layer, (inputs,) = random_layer(rng, causal=True), random_inputs(rng)
    (found,) = decode_steps(layer, inputs, mode=mode)
    assert_close(found, ops.convert_to_numpy(layer(inputs)))
    size = NUM_HEADS * layer.feature_dim * (VALUE_DIM + 1)
    assert layer.initial_cache(2, 3, 7000)[0].shape == (2, 3, size)
    check_state_follows_the_hypotheses(layer, rng, mode)


def test_padding_changes_nothing(rng):
    layer, (inputs,) = random_layer(rng), random_inputs(rng)
    padded = np.pad(inputs, ((0, 0), (0, 3), (0, 0)), constant_values=50)
    mask = valid_length_mask([LENGTH] * 2, LENGTH + 3)
    expected = ops.convert_to_numpy(layer(inputs))
    assert_close(layer(padded, mask=mask)[:, :LENGTH], expected)
