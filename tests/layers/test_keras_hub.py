"""Encoder and decoder layers with the weights of KerasHub's give their numbers."""

from __future__ import annotations

import keras
import keras_hub
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import CausalLayer, DecoderLayer, EncoderLayer
from tests.layers.reference_weights import assert_close, randomise

BATCH, TARGET, SOURCE, WIDTH, SOURCE_WIDTH = 2, 5, 7, 8, 11
OPTIONS = (
    {},
    {"normalize_first": True, "activation": "gelu", "layer_norm_epsilon": 1e-3},
    {"num_heads": 3},  # It does not divide the width.
)
# Ours, KerasHub's, and what they call masks of (B, T), (B, T, T), (B, S), (B, T, S).
KINDS = {
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


@pytest.fixture
def inputs(rng):
    shapes = (BATCH, TARGET, WIDTH), (BATCH, SOURCE, SOURCE_WIDTH)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def theirs_of(layer_class, rng, inputs, **options):
    options = {"intermediate_dim": 13, "num_heads": 2, "dropout": 0.3} | options
    theirs = KINDS[layer_class][0](**options)
    theirs(*inputs)
    return randomise(theirs, rng)


def drawn(rng, *shape):
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True
    return mask


@pytest.mark.one_case
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layer_class", KINDS)
def test_the_same_masks_give_the_same_numbers(rng, inputs, layer_class, options):
    names = KINDS[layer_class][1]
    inputs = inputs if len(names) == 4 else inputs[:1]
    theirs = theirs_of(layer_class, rng, inputs, **options)
    ours = layer_class.from_keras(theirs)
    rows, pairs = drawn(rng, BATCH, TARGET), drawn(rng, BATCH, TARGET, TARGET)
    of_source = drawn(rng, BATCH, SOURCE), drawn(rng, BATCH, TARGET, SOURCE)
    given = dict(zip(names, (rows, pairs, *of_source), strict=False))
    # Ours is one mask of each attention.
    calls = [({}, {})]
    calls += [({names[0]: rows}, {"mask": rows}), ({names[1]: pairs}, {"mask": pairs})]
    all_of_ours = {"mask": rows[:, None] & pairs}
    if len(names) == 4:
        masks = (
            {"encoder_output_mask": of_source[0]},
            {"encoder_output_mask": of_source[1]},
        )
        calls += [({names[2 + i]: of_source[i]}, masks[i]) for i in range(2)]
        all_of_ours["encoder_output_mask"] = of_source[0][:, None] & of_source[1]
    for call, of_ours in [*calls, (given, all_of_ours)]:
        expected = ops.convert_to_numpy(theirs(*inputs, **call))
        assert_close(ours(*inputs, **of_ours), expected)
    assert ours.d_ff == 13 and ours.num_heads == theirs.num_heads
    assert ours.layer_norm_epsilon == theirs.layer_norm_epsilon
    assert (ours.dropout_rate, ours.activation_dropout_rate) == (0.3, 0.0)
    assert ours.count_params() == theirs.count_params()
    assert ours.name == theirs.name


def test_training_the_layer_leaves_the_one_of_keras_hub_as_it_was(rng, inputs):
    """On JAX they must share no array."""
    target = inputs[0]
    theirs = theirs_of(EncoderLayer, rng, [target])
    ours = EncoderLayer.from_keras(theirs)
    before = ops.convert_to_numpy(theirs(target)).copy()
    model = keras.Sequential([keras.Input(target.shape[1:]), ours])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(target, target)
    assert_close(theirs(target), before)
    assert np.abs(ops.convert_to_numpy(ours(target)) - before).max() > 1e-3


def test_other_layers_are_refused(rng, inputs):
    encoder = keras_hub.layers.TransformerEncoder(13, 2)
    decoder = keras_hub.layers.TransformerDecoder(13, 2)
    pairs = (EncoderLayer, decoder), (DecoderLayer, encoder), (CausalLayer, encoder)
    for ours, layer in pairs:
        with pytest.raises(TypeError, match="`layer` must be a `keras_hub.layers"):
            ours.from_keras(layer)
    with pytest.raises(ValueError, match="call it or its model once"):
        EncoderLayer.from_keras(encoder)
    for ours, other, given, words in (
        (DecoderLayer, CausalLayer, inputs[:1], "built without it"),
        (CausalLayer, DecoderLayer, inputs, "built with it"),
    ):
        with pytest.raises(ValueError, match=f"`encoder_sequence` for a.*{words}"):
            ours.from_keras(theirs_of(other, rng, given))


@pytest.mark.parametrize(
    "part", ("self_attention.query", "cross_attention.output", "feedforward_output")
)
def test_integers_are_not_taken_for_weights(rng, part, inputs):
    theirs = theirs_of(DecoderLayer, rng, inputs)
    attention, _, name = part.partition(".")
    dense = getattr(theirs, f"_{attention}_dense", None)
    if name:
        dense = getattr(getattr(theirs, f"_{attention}_layer"), f"_{name}_dense")
    dense.quantize("int8")
    with pytest.raises(ValueError, match="must hold floats: .*, quantized"):
        DecoderLayer.from_keras(theirs)
