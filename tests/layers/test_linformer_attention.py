"""Attention to mixtures of positions against the NumPy reference, and its laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import DecoderLayer, LinformerAttention
from keras_transformer.masks import causal_mask, valid_length_mask
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_attention as reference
from tests.reference import numpy_transformer

NUM_HEADS, KEY_DIM, MOST, FEW = 3, 5, 13, 4
SHAPES = ((2, 5, 11), (2, 7, 17), (2, 7, 13))


class TestBattery(LayerBattery):
    layer_class = LinformerAttention
    options = {
        "num_heads": NUM_HEADS,
        "key_dim": KEY_DIM,
        "max_length": 7,
        "projected_length": FEW,
        "value_dim": 3,
        "output_dim": 19,
        "dropout_rate": 0.5,
        "use_bias": False,
    }
    exact_options = {"dropout_rate": 0.0}
    input_shapes = SHAPES
    output_shape = (2, 5, 19)


def random_layer(rng, *shapes, **options):
    options = {"max_length": MOST, "projected_length": FEW, "value_dim": 3} | options
    layer = LinformerAttention(NUM_HEADS, KEY_DIM, **options)
    layer.build(*(shapes or SHAPES))
    return randomise(layer, rng)


def random_inputs(rng, *shapes):
    shapes = shapes or SHAPES
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def all_weights_of(layer):
    mixtures = {
        name: ops.convert_to_numpy(getattr(layer, name)).astype(np.float64)
        for name in ("key_mixture", "value_mixture")
    }
    return weights_of(layer, "attention") | mixtures


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_the_reference(rng, masked, use_bias):
    layer = random_layer(rng, use_bias=use_bias)
    query, value, key = random_inputs(rng)
    mask = np.arange(7) < np.array([[4], [6]]) if masked else None
    expected = reference.linformer_attention(
        query, key, value, all_weights_of(layer), NUM_HEADS, mask
    )
    assert_close(layer(query, value, key, mask=mask), expected)


def test_mixtures_that_mix_nothing_give_full_attention(rng):
    """As many as positions, each of one alone."""
    layer = random_layer(rng, (2, 7, 11), projected_length=7, max_length=7)
    for mixture in (layer.key_mixture, layer.value_mixture):
        mixture.assign(np.eye(7))
    (inputs,) = random_inputs(rng, (2, 7, 11))
    expected = numpy_transformer.multi_head_attention(
        inputs, inputs, inputs, weights_of(layer, "attention"), NUM_HEADS
    )
    assert_close(
        layer(inputs), expected[0] if isinstance(expected, tuple) else expected
    )


def test_padding_changes_nothing_and_padding_alone_gives_zeros(rng):
    layer = random_layer(rng, use_bias=False)
    query, value, key = random_inputs(rng)
    more = [
        np.pad(x, ((0, 0), (0, 3), (0, 0)), constant_values=9) for x in (value, key)
    ]
    expected = ops.convert_to_numpy(layer(query, value, key))
    assert_close(layer(query, *more, mask=valid_length_mask([7, 7], 10)), expected)
    output = layer(query, *more, mask=valid_length_mask([7, 0], 10))
    output = ops.convert_to_numpy(output)
    assert output[0].all() and not output[1].any()


def test_length_that_is_not_known_beforehand(rng):
    layer = random_layer(rng, (2, 7, 11))
    query = keras.Input((None, 11))
    model = keras.Model(query, layer(query))
    (inputs,) = random_inputs(rng, (2, 7, 11))
    expected = ops.convert_to_numpy(layer(inputs))
    assert_close(model.predict(inputs, verbose=0), expected)


def test_what_it_cannot_be_is_refused(rng):
    layer = random_layer(rng, (2, 7, 11))
    with pytest.raises(ValueError, match="must have at most `max_length` positions"):
        layer(np.ones((2, MOST + 1, 11), "float32"))
    with pytest.raises(ValueError, match="and so none that is causal"):
        layer(np.ones((2, 7, 11), "float32"), mask=causal_mask(7))


class LinformerDecoderLayer(DecoderLayer):
    def make_attention(self, name, d_model):
        return LinformerAttention(self.num_heads, 5, 20, 4, name=name)


def test_decoder_refuses_it():
    layer = LinformerDecoderLayer(2, d_ff=8)
    inputs, source = np.ones((2, 3, 6), "float32"), np.ones((2, 5, 6), "float32")
    with pytest.raises(ValueError, match="and so none that is causal"):
        layer(inputs, source)
    with pytest.raises(ValueError, match="use it in encoders"):
        layer.decoding_weights()
