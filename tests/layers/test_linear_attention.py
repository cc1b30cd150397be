"""Linear attention against the NumPy reference, and its laws."""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.decoding import Place
from keras_transformer.kernels.few_passes import prepare_mask
from keras_transformer.layers import DecoderLayer
from keras_transformer.layers.linear_attention import LinearAttention
from keras_transformer.masks import causal_mask, valid_length_mask
from keras_transformer.testing import assert_serializable
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import (
    MODES,
    check_state_follows_the_hypotheses,
    decode_steps,
)
from tests.reference import numpy_attention as reference

NUM_HEADS, KEY_DIM, VALUE_DIM, OUTPUT_DIM, LENGTH = 3, 5, 7, 13, 17
SHAPE = (2, LENGTH, 11)


class WithoutDropout(LayerBattery):
    """There are no weights to drop from."""

    layer_class = LinearAttention

    def test_rates_must_lie_below_one(self):
        assert "dropout_rate" not in self.layer().get_config()

    def test_dropout_acts_in_training_only(self, rng):
        layer, inputs = self.layer(), self.inputs(rng)
        silent, training = layer(*inputs), layer(*inputs, training=True)
        assert_close(training, ops.convert_to_numpy(silent))


class TestBatteryOfSelfAttention(WithoutDropout):
    options = {
        "num_heads": NUM_HEADS,
        "key_dim": KEY_DIM,
        "value_dim": VALUE_DIM,
        "output_dim": OUTPUT_DIM,
        "causal": True,
        "use_bias": False,
    }
    input_shapes = (SHAPE,)
    output_shape = (2, LENGTH, OUTPUT_DIM)


class TestBatteryOfCrossAttention(WithoutDropout):
    options = TestBatteryOfSelfAttention.options
    exact_options = {"causal": False}
    input_shapes = ((2, 5, 11), (2, 7, 17), (2, 7, 13))
    output_shape = (2, 5, OUTPUT_DIM)

    def test_config_and_file_give_the_same_layer(self, rng):
        # Attention to something else cannot be causal.
        assert_serializable(self.layer(), tuple(self.inputs(rng)))


@pytest.fixture(params=[4, 64])
def block(request, monkeypatch):
    """17 positions are five blocks, or one."""
    # By its name: the package's `linear_attention` is the function.
    module = sys.modules[LinearAttention.__module__]
    monkeypatch.setattr(module, "BLOCK", request.param)


def random_layer(rng, *shapes, **options):
    layer = LinearAttention(NUM_HEADS, KEY_DIM, value_dim=VALUE_DIM, **options)
    layer.build(*(shapes or [SHAPE]))
    return randomise(layer, rng)


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


@pytest.mark.parametrize("use_bias", [False, True])
def test_cross_attention_agrees_with_the_reference(rng, use_bias):
    shapes = ((2, 5, 11), (2, 7, 17), (2, 7, 13))
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    layer = random_layer(rng, *shapes, use_bias=use_bias, output_dim=OUTPUT_DIM)
    weights = weights_of(layer, "attention")
    mask = valid_length_mask([4, 7], 7)
    query, value, key = inputs
    expected = reference.linear_attention(
        query, key, value, weights, NUM_HEADS, ops.convert_to_numpy(mask)
    )
    assert_close(layer(*inputs, mask=mask), expected)
    expected = reference.linear_attention(query, key, value, weights, NUM_HEADS)
    assert_close(layer(*inputs), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_causal_attention_agrees_with_the_reference(rng, block, masked):
    layer, inputs = random_layer(rng, causal=True), random_inputs(rng)
    mask = np.tril(np.ones((1, LENGTH, LENGTH), bool))
    row_mask = np.arange(LENGTH) < np.array([[LENGTH], [7]])
    if masked:
        mask = mask & row_mask[:, None]
    expected = reference.linear_attention(
        inputs, inputs, inputs, weights_of(layer, "attention"), NUM_HEADS, mask
    )
    assert_close(layer(inputs, mask=row_mask if masked else None), expected)


def test_later_position_changes_no_earlier_output(rng, block):
    layer, inputs = random_layer(rng, causal=True), random_inputs(rng)
    changed = inputs.copy()
    changed[:, 9:] += 5
    before, after = (ops.convert_to_numpy(layer(x)) for x in (inputs, changed))
    np.testing.assert_array_equal(before[:, :9], after[:, :9])
    assert np.abs(before - after)[:, 9:].max(axis=(0, 2)).min() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_row_with_nothing_to_attend_to_gives_zeros(rng, causal):
    layer = random_layer(rng, causal=causal, use_bias=False)
    inputs = random_inputs(rng)
    output = ops.convert_to_numpy(layer(inputs, mask=valid_length_mask([3, 0], LENGTH)))
    assert not output[1].any()
    assert output[0].all()


@pytest.mark.parametrize("mode", MODES)
def test_steps_equal_call_with_a_state_of_constant_size(rng, mode):
    layer = random_layer(rng, causal=True, use_bias=True)
    inputs = random_inputs(rng)
    (found,) = decode_steps(layer, inputs, mode=mode)
    assert_close(found, ops.convert_to_numpy(layer(inputs)))
    for length in (7, 7000):
        (sums,) = layer.initial_cache(2, 3, length)
        assert sums.shape == (2, 3, NUM_HEADS * KEY_DIM * (VALUE_DIM + 1))


def test_length_that_is_not_known_beforehand(rng, block):
    layer, inputs = random_layer(rng, causal=True), random_inputs(rng)
    query = keras.Input((None, SHAPE[-1]))
    model = keras.Model(query, layer(query))
    expected = ops.convert_to_numpy(layer(inputs))
    assert_close(model.predict(inputs, verbose=0), expected)


def test_other_features_can_be_written(rng):
    """Features of one unit, always 1: the mean of all values."""

    class Mean(LinearAttention):
        def feature_map(self, inputs):
            return ops.ones_like(inputs[..., :1])

    layer = Mean(1, 11)
    layer.build(SHAPE)
    layer.value_kernel.assign(np.eye(11))
    layer.output_kernel.assign(np.eye(11))
    inputs = random_inputs(rng)
    expected = np.broadcast_to(inputs.mean(axis=1, keepdims=True), SHAPE)
    assert_close(layer(inputs), expected)


@pytest.mark.parametrize("mode", MODES)
def test_state_follows_the_hypotheses(rng, mode):
    check_state_follows_the_hypotheses(random_layer(rng, causal=True), rng, mode)


def test_mask_of_queries_is_refused(rng):
    layer = random_layer(rng, causal=True)
    with pytest.raises(ValueError, match="`mask` must be the same for all queries"):
        layer(random_inputs(rng), mask=causal_mask(LENGTH))


def test_value_of_causal_attention_is_refused(rng):
    inputs = random_inputs(rng)
    with pytest.raises(ValueError, match="Causal attention is self-attention"):
        random_layer(rng, causal=True)(inputs, inputs)


def test_an_attention_that_is_causal_cannot_see_the_future(rng):
    inputs, source = random_inputs(rng), rng.standard_normal((2, 5, 7)).astype("f")
    layer = LinearDecoderLayer(3, d_ff=8, key_dim=5)
    message = "`use_causal_mask` must be True .* a LinearAttention with causal=True"
    with pytest.raises(ValueError, match=message):
        layer(inputs, source, use_causal_mask=False)


class LinearDecoderLayer(DecoderLayer):
    def make_attention(self, name, d_model):
        if name == "cross_attention":
            return super().make_attention(name, d_model)
        return LinearAttention(self.num_heads, KEY_DIM, causal=True, name=name)


def test_decoder_layer_takes_it_for_its_self_attention(rng):
    """Step by step too, in one state."""
    inputs, source = random_inputs(rng), rng.standard_normal((2, 5, 7)).astype("f")
    layer = LinearDecoderLayer(3, d_ff=8, key_dim=5, dropout_rate=0.0)
    layer.build(inputs.shape, source.shape)
    randomise(layer, rng)
    expected = ops.convert_to_numpy(layer(inputs, source))
    cache = layer.initial_cache(2, 1, LENGTH)
    projected = layer.project_encoder_output(ops.convert_to_tensor(source))
    weights = layer.decoding_weights()
    everything = prepare_mask(ops.ones((1, 1, 1, 1), "bool"), "float32")
    for index in range(LENGTH):
        output, cache, _ = layer.step(
            ops.convert_to_tensor(inputs[:, index : index + 1]), cache, projected,
            Place(index, None), (everything, everything), weights,
        )  # fmt: skip
        assert_close(output[:, 0], expected[:, index])
