"""Encoder, causal and decoder layers: NumPy, PyTorch, KerasHub, steps, own parts."""

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.kernels.caches import cache_place
from keras_transformer.nn.layers import (
    CausalLayer,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
)
from keras_transformer.nn.layers.attention import prepare_mask
from keras_transformer.nn.masks import attention_mask
from tests.examples.test_examples import load
from tests.nn.layers.reference_weights import (
    assert_close,
    layer_weights_of,
    past_mask,
    randomise,
    set_weights,
)
from tests.reference import numpy_transformer as reference
from tests.reference import torch_witness

HEADS, WIDTH, SOURCE_WIDTH, TARGET, SOURCE = 3, 15, 19, 5, 7
SIZES = {"num_heads": HEADS, "d_ff": 11}
SHAPES = {
    EncoderLayer: ((None, None, WIDTH),),
    CausalLayer: ((None, None, WIDTH),),
    DecoderLayer: ((None, None, WIDTH), (None, None, SOURCE_WIDTH)),
}
classes = pytest.mark.parametrize("layer_class", SHAPES)
orders = pytest.mark.parametrize("norm_first", (False, True))
array = ops.convert_to_numpy
from_keras_hub = load("from_keras_hub").from_keras_hub


def random_layer(rng, layer_class, **options):
    layer = layer_class(**(SIZES | options))
    base = next(base for base in layer_class.mro() if base in SHAPES)
    layer.build(*SHAPES[base])
    return randomise(layer, rng)


def random_inputs(rng, layer_class):
    shapes = (2, TARGET, WIDTH), (2, SOURCE, SOURCE_WIDTH)
    shapes = shapes[: len(SHAPES[layer_class])]
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def masks(layer_class, lengths=((TARGET, 3), (SOURCE, 4))):
    """Boolean (B, T) and (B, S); the second row is padded."""
    names = {"mask": TARGET, "encoder_output_mask": SOURCE}
    return {
        name: np.arange(length) < np.array(valid)[:, None]
        for (name, length), valid, _ in zip(
            names.items(), lengths, SHAPES[layer_class], strict=False
        )
    }


def expected_of(layer, inputs, given=()):
    """The reference's output of a layer, with masks as of the call."""
    weights = layer_weights_of(layer)
    given = {name: mask[:, None] for name, mask in dict(given).items()}
    if isinstance(layer, DecoderLayer):
        return reference.decoder_layer(
            *inputs, weights, HEADS, norm_first=layer.norm_first, **given
        )
    mask = given.get("mask", np.ones((1, 1, inputs[0].shape[1]), bool))
    if layer.causal:
        mask = mask & reference.causal_mask(inputs[0].shape[1])
    return reference.encoder_layer(inputs[0], weights, HEADS, mask, layer.norm_first)


@classes
@orders
@pytest.mark.parametrize(
    "options", ({}, {"key_dim": 7, "value_dim": 13, "use_bias": True})
)
def test_agrees_with_the_reference(rng, layer_class, norm_first, options):
    layer = random_layer(rng, layer_class, norm_first=norm_first, **options)
    inputs = random_inputs(rng, layer_class)
    for given in (
        {},
        masks(layer_class),
        masks(layer_class, ((TARGET, 0), (SOURCE, 0))),
    ):
        expected = expected_of(layer, inputs, given)
        assert np.isfinite(expected).all()
        assert_close(layer(*inputs, **given), expected)


def steps_of(layer, target, source=None, hypotheses=1, mask=None):
    """Outputs (B * N, T, D) of `step`."""
    mask = np.ones((2, SOURCE), bool) if mask is None else mask
    projected, source_mask = None, None
    if source is not None:
        projected = layer.keys_and_values(ops.convert_to_tensor(source))
        source_mask = prepare_mask(attention_mask(mask)[:, None], "float32")
    cache = layer.initial_cache(2, hypotheses, TARGET + 2)
    weights, outputs = layer.step_weights(), []
    target = ops.convert_to_tensor(target)
    for index in range(TARGET):
        both = past_mask(index, TARGET + 2, hypotheses), source_mask
        place = cache_place(cache[0], hypotheses, ops.convert_to_tensor(index))
        inputs = ops.reshape(target[:, index], (2, hypotheses, WIDTH))
        output, cache = layer.step(inputs, cache, place, both, weights, projected)
        outputs.append(ops.reshape(output, (2 * hypotheses, WIDTH)))
    return np.stack([array(x) for x in outputs], axis=1)


@orders
@pytest.mark.parametrize("hypotheses", (1, 3))
@pytest.mark.parametrize("layer_class", (CausalLayer, DecoderLayer))
def test_step_equals_call(rng, layer_class, norm_first, hypotheses):
    """The hypotheses of a sentence share its projected keys and values."""
    options = {"norm_first": norm_first, "value_dim": 7, "use_bias": True}
    layer, rows = random_layer(rng, layer_class, **options), 2 * hypotheses
    source = random_inputs(rng, layer_class)[1:]
    target = rng.standard_normal((rows, TARGET, WIDTH)).astype("float32")
    arguments, mask = {}, None
    if source:
        mask = masks(layer_class)["encoder_output_mask"]
        arguments = {"encoder_output_mask": np.repeat(mask, hypotheses, axis=0)}
    repeated = [np.repeat(x, hypotheses, axis=0) for x in source]
    expected = array(layer(target, *repeated, **arguments))
    source = source[0] if source else None
    assert_close(steps_of(layer, target, source, hypotheses, mask), expected)


@pytest.mark.parametrize("layer_class", (EncoderLayer, DecoderLayer))
@orders
def test_agrees_with_torch(layer_class, norm_first):
    name = "encoder_layer" if layer_class is EncoderLayer else "decoder_layer"
    case = torch_witness.load(f"{name}_{'pre' if norm_first else 'post'}_norm")
    names = ("inputs", "encoder_output")[: len(SHAPES[layer_class])]
    layer = layer_class(**SIZES, norm_first=norm_first, use_bias=True)
    layer.build(*(case[n].shape for n in names))
    set_weights(layer, {n: case[n] for n in layer_weights_of(layer)})
    given = {n: case[n] for n in ("mask", "encoder_output_mask") if n in case}
    output = layer(*(case[n].astype("float32") for n in names), **given)
    assert_close(output, case["outputs"])
    function = reference.encoder_layer if len(names) == 1 else reference.decoder_layer
    by_names = {n: mask[:, None] for n, mask in given.items()}
    expected = function(
        *(case[n] for n in names), case, HEADS, norm_first=norm_first, **by_names
    )
    np.testing.assert_allclose(expected, case["outputs"], atol=1e-12)


@orders
@pytest.mark.parametrize("rate", ("dropout", "attention_dropout", "activation_dropout"))
def test_each_dropout_rate_acts_alone(rng, rate, norm_first):
    rates = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    rates |= {"activation_dropout_rate": 0.0, f"{rate}_rate": 0.5}
    layer = random_layer(rng, EncoderLayer, norm_first=norm_first, **rates)
    (inputs,) = random_inputs(rng, EncoderLayer)
    difference = array(layer(inputs, training=True) - layer(inputs))
    assert np.abs(difference).max() > 1e-3


# Other parts.


class MeanAttention(keras.layers.Layer):
    """Each position receives the mean of all: the simplest other attention."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs, mask=None, training=None):
        return ops.mean(inputs, axis=1, keepdims=True) * self.scale


class MeanEncoderLayer(EncoderLayer):
    def make_attention(self, name, d_model):
        return MeanAttention(name=name)

    def make_feed_forward(self, name):
        return FeedForward(d_ff=2 * self.d_ff, activation="tanh", name=name)


def test_a_subclass_swaps_the_attention_and_the_feed_forward(rng):
    layer = random_layer(rng, MeanEncoderLayer)
    assert tuple(layer.feed_forward.hidden_dense.kernel.shape) == (WIDTH, 22)
    (inputs,) = random_inputs(rng, EncoderLayer)
    scale, weights = array(layer.self_attention.scale), layer_weights_of(layer)
    hidden = reference.residual(
        inputs.astype("float64"),
        lambda x: x.mean(axis=1, keepdims=True) * scale,
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


class AdditiveDecoderLayer(DecoderLayer):
    def make_attention(self, name, d_model):
        kind = load("additive_attention").MultiHeadAdditiveAttention
        return kind(HEADS, 5, use_bias=False, name=name)


class LinearLookUpLayer(DecoderLayer):
    """Attends to the source without weights."""

    def make_attention(self, name, d_model):
        if name == "cross_attention":
            return load("linear_attention").LinearAttention(HEADS, 5, name=name)
        return super().make_attention(name, d_model)


@pytest.mark.parametrize("own", (AdditiveDecoderLayer, LinearLookUpLayer))
def test_a_subclass_swaps_the_attentions_of_a_decoder(rng, own):
    """The attention to the source, too, one position at a time."""
    layer = random_layer(rng, own)
    inputs = random_inputs(rng, DecoderLayer)
    outputs = steps_of(layer, *inputs)
    assert_close(outputs, array(layer(*inputs)))


# Layers of KerasHub.

OF_HUB = (
    {},
    {"normalize_first": True, "activation": "gelu", "layer_norm_epsilon": 1e-3},
    {"num_heads": 2},  # It does not divide the width.
)
# KerasHub's, and what they call masks of (B, T), (B, T, T), (B, S), (B, T, S).
HUB = {
    EncoderLayer: (
        keras_hub.layers.TransformerEncoder, ("padding_mask", "attention_mask"),
    ),
    CausalLayer: (
        keras_hub.layers.TransformerDecoder,
        ("decoder_padding_mask", "decoder_attention_mask"),
    ),
    DecoderLayer: (
        keras_hub.layers.TransformerDecoder,
        ("decoder_padding_mask", "decoder_attention_mask",
         "encoder_padding_mask", "encoder_attention_mask"),
    ),
}  # fmt: skip


def theirs_of(layer_class, rng, **options):
    options = {"intermediate_dim": 13, "num_heads": 3, "dropout": 0.3} | options
    theirs = HUB[layer_class][0](**options)
    theirs(*random_inputs(rng, layer_class))
    return randomise(theirs, rng)


def drawn(rng, *shape):
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("options", OF_HUB)
@classes
def test_the_same_masks_give_the_numbers_of_keras_hub(rng, layer_class, options):
    names, inputs = HUB[layer_class][1], random_inputs(rng, layer_class)
    theirs = theirs_of(layer_class, rng, **options)
    ours = from_keras_hub(theirs)
    assert type(ours) is layer_class
    rows, pairs = drawn(rng, 2, TARGET), drawn(rng, 2, TARGET, TARGET)
    of_source = drawn(rng, 2, SOURCE), drawn(rng, 2, TARGET, SOURCE)
    given = dict(zip(names, (rows, pairs, *of_source), strict=False))
    # Ours is one mask of each attention.
    all_of_ours = {"mask": rows[:, None] & pairs}
    calls = [({}, {}), ({names[0]: rows}, {"mask": rows})]
    if len(names) == 4:
        all_of_ours["encoder_output_mask"] = of_source[0][:, None] & of_source[1]
        calls += [({names[2]: of_source[0]}, {"encoder_output_mask": of_source[0]})]
    for call, of_ours in [*calls, (given, all_of_ours)]:
        expected = array(theirs(*inputs, **call))
        assert_close(ours(*inputs, **of_ours), expected)
    assert ours.d_ff == 13 and ours.num_heads == theirs.num_heads
    assert ours.layer_norm_epsilon == theirs.layer_norm_epsilon
    assert (ours.dropout_rate, ours.activation_dropout_rate) == (0.3, 0.0)
    assert ours.count_params() == theirs.count_params()
    assert ours.name == theirs.name


@pytest.mark.parametrize(
    "part", ("self_attention.query", "cross_attention.output", "feedforward_output")
)
def test_integers_of_keras_hub_are_not_taken_for_weights(rng, part):
    theirs = theirs_of(DecoderLayer, rng)
    attention, _, name = part.partition(".")
    dense = getattr(theirs, f"_{attention}_dense", None)
    if name:
        dense = getattr(getattr(theirs, f"_{attention}_layer"), f"_{name}_dense")
    dense.quantize("int8")
    with pytest.raises(ValueError, match="must hold floats: .*, quantized"):
        from_keras_hub(theirs)


class NormOfKeras(EncoderLayer):
    def make_norm(self, name):
        return keras.layers.RMSNormalization(dtype=self.dtype_policy, name=name)


def test_a_norm_of_keras_takes_masked_states_without_a_warning():
    states = keras.layers.Embedding(9, WIDTH, mask_zero=True)(np.array([[1, 2, 0]]))
    assert NormOfKeras(HEADS, 11, norm_first=True)(states).shape == (1, 3, WIDTH)
