"""The encoder layer against NumPy and PyTorch, its masks, and how it is extended."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import EncoderLayer, FeedForward
from tests.layers.layer_battery import (
    EXACT_RESIDUAL_LAYER,
    NO_DROPOUT,
    RESIDUAL_LAYER_OPTIONS,
    LayerBattery,
)
from tests.layers.reference_weights import (
    assert_close,
    layer_weights_of,
    randomise,
    set_weights,
)
from tests.reference import numpy_transformer as reference
from tests.reference import torch_witness

NUM_HEADS, D_MODEL, LENGTH = 3, 15, 7
SIZES = {"num_heads": NUM_HEADS, "d_ff": 11}


class TestBattery(LayerBattery):
    layer_class = EncoderLayer
    options = RESIDUAL_LAYER_OPTIONS
    exact_options = EXACT_RESIDUAL_LAYER
    input_shapes = ((2, 7, 13),)
    output_shape = (2, 7, 13)
    # It adds the same number to all scores of a query, which the softmax removes.
    weights_without_gradient = ("key_bias",)


def random_inputs(rng):
    return rng.standard_normal((2, LENGTH, D_MODEL)).astype("float32")


def random_layer(rng, layer_class=EncoderLayer, **options):
    layer = layer_class(**(SIZES | options))
    layer.build((None, None, D_MODEL))
    return randomise(layer, rng)


def padding(valid_lengths=(LENGTH, 4)):
    return np.arange(LENGTH) < np.array(valid_lengths)[:, None]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"key_dim": 7, "value_dim": 13, "use_bias": True}]
)
def test_agrees_with_the_reference(rng, norm_first, options):
    layer = random_layer(rng, norm_first=norm_first, **options)
    inputs, mask = random_inputs(rng), padding()
    expected = reference.encoder_layer(
        inputs, layer_weights_of(layer), NUM_HEADS, mask[:, None], norm_first
    )
    assert_close(layer(inputs, mask=mask), expected)
    without_mask = reference.encoder_layer(
        inputs, layer_weights_of(layer), NUM_HEADS, norm_first=norm_first
    )
    assert_close(layer(inputs), without_mask)


@pytest.mark.parametrize("norm_first", [False, True])
def test_agrees_with_torch(norm_first):
    case = torch_witness.load(f"encoder_layer_{'pre' if norm_first else 'post'}_norm")
    layer = EncoderLayer(**SIZES, norm_first=norm_first, use_bias=True)
    layer.build(case["inputs"].shape)
    set_weights(layer, {name: case[name] for name in layer_weights_of(layer)})
    output = layer(case["inputs"].astype("float32"), mask=case["mask"])
    assert_close(output, case["outputs"])


@pytest.mark.parametrize("norm_first", [False, True])
def test_reference_agrees_with_torch(norm_first):
    case = torch_witness.load(f"encoder_layer_{'pre' if norm_first else 'post'}_norm")
    output = reference.encoder_layer(
        case["inputs"], case, NUM_HEADS, case["mask"][:, None], norm_first
    )
    np.testing.assert_allclose(output, case["outputs"], atol=1e-12)


def test_fully_masked_row_gives_finite_output(rng):
    """Nothing to attend to: only the residual connection and the feed-forward act."""
    layer = random_layer(rng)
    inputs, mask = random_inputs(rng), padding((LENGTH, 0))
    expected = reference.encoder_layer(
        inputs, layer_weights_of(layer), NUM_HEADS, mask[:, None]
    )
    assert np.isfinite(expected).all()
    assert_close(layer(inputs, mask=mask), expected)


def test_padding_does_not_change_the_other_positions(rng):
    layer = random_layer(rng)
    inputs, mask = random_inputs(rng), padding((4, 4))
    changed = inputs.copy()
    changed[:, 4:] += 100.0
    before, after = (
        ops.convert_to_numpy(layer(x, mask=mask))[:, :4] for x in (inputs, changed)
    )
    np.testing.assert_array_equal(before, after)
    assert_close(layer(inputs[:, :4]), before)


def test_one_row_equals_a_row_of_a_batch(rng):
    layer = random_layer(rng)
    inputs, mask = random_inputs(rng), padding()
    whole = ops.convert_to_numpy(layer(inputs, mask=mask))
    assert_close(layer(inputs[1:], mask=mask[1:]), whole[1:])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "rate", ["dropout_rate", "attention_dropout_rate", "activation_dropout_rate"]
)
def test_each_dropout_rate_acts_alone(rng, rate, norm_first):
    rates = NO_DROPOUT | {rate: 0.5}
    layer = random_layer(rng, norm_first=norm_first, **rates)
    inputs = random_inputs(rng)
    difference = ops.convert_to_numpy(layer(inputs, training=True) - layer(inputs))
    assert np.abs(difference).max() > 1e-3


def test_width_that_heads_do_not_divide_is_refused():
    layer = EncoderLayer(num_heads=2, d_ff=11)
    with pytest.raises(ValueError, match="multiple of `num_heads`.*width=15"):
        layer.build((None, None, 15))


class MeanAttention(keras.layers.Layer):
    """Each position receives the mean of all: the simplest other attention."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs, mask=None, training=None):
        return ops.mean(inputs, axis=1, keepdims=True) * self.scale


@keras.saving.register_keras_serializable(package="tests")
class MeanEncoderLayer(EncoderLayer):
    def make_attention(self, name, d_model):
        return MeanAttention(name=name)


@keras.saving.register_keras_serializable(package="tests")
class WideEncoderLayer(EncoderLayer):
    def make_feed_forward(self, name):
        return FeedForward(d_ff=2 * self.d_ff, activation="tanh", name=name)


def test_subclass_swaps_the_attention(rng, tmp_path):
    layer = random_layer(rng, MeanEncoderLayer)
    inputs = random_inputs(rng)
    scale = ops.convert_to_numpy(layer.self_attention.scale)
    weights = layer_weights_of(layer)
    hidden = reference.residual(
        inputs.astype("float64"),
        lambda x: x.mean(axis=1, keepdims=True) * scale,
        weights["self_attention_norm"],
        norm_first=False,
    )
    expected = reference.residual(
        hidden,
        lambda x: reference.feed_forward(x, weights["feed_forward"]),
        weights["feed_forward_norm"],
        norm_first=False,
    )
    assert_close(layer(inputs), expected)

    symbolic = keras.Input((None, D_MODEL))
    model = keras.Model(symbolic, layer(symbolic))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.layers[-1], MeanEncoderLayer)
    assert_close(loaded(inputs), expected)


def test_subclass_swaps_the_feed_forward(rng):
    layer = random_layer(rng, WideEncoderLayer)
    assert tuple(layer.feed_forward.hidden_kernel.shape) == (D_MODEL, 22)
    inputs = random_inputs(rng)
    weights = layer_weights_of(layer)
    hidden = reference.residual(
        inputs.astype("float64"),
        lambda x: reference.multi_head_attention(
            x, x, x, weights["self_attention"], NUM_HEADS
        )[0],
        weights["self_attention_norm"],
        norm_first=False,
    )
    expected = reference.residual(
        hidden,
        lambda x: reference.feed_forward(x, weights["feed_forward"], np.tanh),
        weights["feed_forward_norm"],
        norm_first=False,
    )
    assert_close(layer(inputs), expected)
