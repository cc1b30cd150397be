"""Additive scores in every head against the NumPy reference, and their laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import (
    AdditiveAttention,
    DecoderLayer,
    MultiHeadAdditiveAttention,
    MultiHeadAttention,
)
from keras_transformer.masks import causal_mask, valid_length_mask
from tests.layers.layer_battery import ATTENTION_OPTIONS, AttentionBattery
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import MODES, decode_steps
from tests.reference import numpy_attention as reference

NUM_HEADS, KEY_DIM, LENGTH = 6, 4, 7
SHAPE = (2, LENGTH, 11)
SHAPES = ((2, 5, 11), (2, 7, 17), (2, 7, 13))


class TestBattery(AttentionBattery):
    layer_class = MultiHeadAdditiveAttention
    options = ATTENTION_OPTIONS | {"positions": "alibi"}
    input_shapes = (SHAPE,)
    output_shape = (2, LENGTH, 23)


def random_layer(rng, *shapes, **options):
    options = {"use_bias": False} | options
    layer = MultiHeadAdditiveAttention(NUM_HEADS, KEY_DIM, **options)
    layer.build(*(shapes or [SHAPE]))
    return randomise(layer, rng)


def random_inputs(rng, *shapes):
    shapes = shapes or [SHAPE]
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_the_reference(rng, masked, use_bias):
    layer = random_layer(rng, *SHAPES, use_bias=use_bias, value_dim=3, output_dim=19)
    query, value, key = random_inputs(rng, *SHAPES)
    mask = rng.random((2, 5, 7)) < 0.7 if masked else None
    if masked:
        mask[1, 3] = False
    found = layer(query, value, key, mask=mask, return_attention_weights=True)
    expected = reference.multi_head_additive_attention(
        query, key, value, weights_of(layer, "attention"), NUM_HEADS, mask
    )
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])
    assert_close(layer(query, value, key, mask=mask), expected[0])


def test_one_head_is_additive_attention_of_projected_values(rng):
    """Bahdanau's layer, whose values are not projected, on the values of the head."""
    layer = MultiHeadAdditiveAttention(1, KEY_DIM, value_dim=3, use_bias=False)
    layer.build(*SHAPES)
    randomise(layer, rng)
    query, value, key = random_inputs(rng, *SHAPES)
    additive = AdditiveAttention(KEY_DIM)
    values = value @ ops.convert_to_numpy(layer.value_kernel)
    additive.build(query.shape, values.shape, key.shape)
    for name in ("query_kernel", "key_kernel"):
        getattr(additive, name).assign(getattr(layer, name))
    additive.score_kernel.assign(layer.score_kernel[:, 0])
    expected = ops.convert_to_numpy(additive(query, values, key))
    expected = expected @ ops.convert_to_numpy(layer.output_kernel)
    assert_close(layer(query, value, key), expected)


@pytest.mark.parametrize("options", [{}, {"positions": "alibi"}])
def test_fewer_heads_of_keys_serve_several_heads_of_queries(rng, options):
    """As many heads with copies of their weights give the same."""
    few = random_layer(rng, num_key_value_heads=2, **options)
    many = random_layer(rng, **options)
    for weight in few.weights:
        value = ops.convert_to_numpy(weight)
        if weight.name in ("key_kernel", "value_kernel"):
            value = value.reshape(11, 2, KEY_DIM).repeat(3, axis=1).reshape(11, -1)
        getattr(many, weight.name).assign(value)
    (inputs,) = random_inputs(rng)
    assert_close(few(inputs), ops.convert_to_numpy(many(inputs)))


def test_large_queries_bound_the_scores(rng):
    """|score| <= sum |w|: unlike a product, it does not grow with the queries."""
    layer, (inputs,) = random_layer(rng), random_inputs(rng)
    _, weights = layer(1e4 * inputs, return_attention_weights=True)
    bound = np.abs(weights_of(layer, "attention")["score_kernel"]).sum(axis=0)
    spread = ops.convert_to_numpy(weights)
    spread = np.log(spread.max(axis=-1) / spread.min(axis=-1)).max(axis=(0, 2))
    assert (spread <= 2 * bound + 1e-4).all()
    product = MultiHeadAttention(NUM_HEADS, KEY_DIM, use_bias=False)
    product.build(SHAPE)
    randomise(product, rng)
    _, weights = product(1e4 * inputs, return_attention_weights=True)
    assert ops.convert_to_numpy(weights).min() == 0


def test_initializers_take_the_width_of_a_head_for_its_inputs():
    layer = MultiHeadAdditiveAttention(3, 400, kernel_initializer="lecun_normal")
    layer.build(*SHAPES)
    squares = np.square(ops.convert_to_numpy(layer.score_kernel)).sum(axis=0)
    np.testing.assert_allclose(squares, np.ones(3), atol=0.3)


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options", [{}, {"positions": "alibi", "num_key_value_heads": 2, "use_gate": True}]
)
@pytest.mark.parametrize("hypotheses", [1, 3])
def test_steps_equal_call_under_the_causal_mask(rng, hypotheses, options, mode):
    layer, (inputs,) = random_layer(rng, **options), random_inputs(rng)
    expected = ops.convert_to_numpy(layer(inputs, mask=causal_mask(LENGTH)))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


def test_padding_changes_nothing(rng):
    layer, (inputs,) = random_layer(rng), random_inputs(rng)
    padded = np.pad(inputs, ((0, 0), (0, 3), (0, 0)), constant_values=5)
    expected = ops.convert_to_numpy(layer(inputs))
    mask = valid_length_mask([LENGTH] * 2, LENGTH + 3)
    assert_close(layer(padded, mask=mask)[:, :LENGTH], expected)


class AdditiveDecoderLayer(DecoderLayer):
    def make_attention(self, name, d_model):
        return MultiHeadAdditiveAttention(
            self.num_heads, self.key_dim, use_bias=False, name=name
        )


def test_decoder_layer_takes_it_for_both_of_its_attentions(rng):
    """The attention to the source too, one position at a time."""
    layer = AdditiveDecoderLayer(3, d_ff=8, key_dim=5, dropout_rate=0.0)
    inputs, source = random_inputs(rng, SHAPE, (2, 5, 7))
    layer.build(inputs.shape, source.shape)
    randomise(layer, rng)
    expected = ops.convert_to_numpy(layer(inputs, source))
    found = decode_steps(Steps(layer, source), inputs)
    assert_close(found[0], expected)


class Steps:
    """A decoder layer with a source, as `decode_steps` takes a layer."""

    def __init__(self, layer, source):
        self.layer, self.initial_cache = layer, layer.initial_cache
        self.source = layer.project_encoder_output(ops.convert_to_tensor(source))

    def decoding_weights(self, *names):
        return self.layer.decoding_weights()

    def step(self, inputs, cache, place, mask, weights):
        source_mask = mask._replace(
            mask=ops.ones((1, 1, 1, 5), "bool"), bias=ops.zeros((1, 1, 1, 5))
        )
        masks = mask, source_mask
        return self.layer.step(inputs, cache, self.source, place, masks, weights)[:2]


def test_what_has_no_meaning_for_it_is_refused():
    with pytest.raises(ValueError, match="no fused kernel has additive scores"):
        MultiHeadAdditiveAttention(2, 4, flash_attention=True)
    with pytest.raises(ValueError, match="`positions` must add to the scores"):
        MultiHeadAdditiveAttention(2, 4, positions="rotary")
    theirs = keras.layers.MultiHeadAttention(2, 4)
    with pytest.raises(TypeError, match="no multi-head attention with additive sc"):
        MultiHeadAdditiveAttention.from_keras(theirs)
