"""Encoder and decoder layers beside those of KerasHub: calls, weights, errors."""

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


@pytest.fixture
def target(rng):
    return rng.standard_normal((BATCH, TARGET, WIDTH)).astype("float32")


@pytest.fixture
def source(rng):
    return rng.standard_normal((BATCH, SOURCE, SOURCE_WIDTH)).astype("float32")


@pytest.fixture(params=OPTIONS)
def encoders(request, rng, target):
    """KerasHub's layer and ours with its weights."""
    options = {"intermediate_dim": 13, "num_heads": 2, "dropout": 0.3} | request.param
    theirs = keras_hub.layers.TransformerEncoder(**options)
    theirs(target)
    randomise(theirs, rng)
    return theirs, EncoderLayer.from_keras(theirs)


@pytest.fixture(params=OPTIONS)
def decoders(request, rng, target, source):
    options = {"intermediate_dim": 13, "num_heads": 2, "dropout": 0.3} | request.param
    theirs = keras_hub.layers.TransformerDecoder(**options)
    theirs(target, source)
    randomise(theirs, rng)
    return theirs, DecoderLayer.from_keras(theirs)


@pytest.fixture(params=OPTIONS)
def causal_layers(request, rng, target):
    """KerasHub's decoder layer without a source, and ours."""
    options = {"intermediate_dim": 13, "num_heads": 2, "dropout": 0.3} | request.param
    theirs = keras_hub.layers.TransformerDecoder(**options)
    theirs(target)
    randomise(theirs, rng)
    return theirs, CausalLayer.from_keras(theirs)


def test_training_the_layer_leaves_the_one_of_keras_hub_as_it_was(rng, target):
    """On JAX they must share no array."""
    theirs = keras_hub.layers.TransformerEncoder(intermediate_dim=13, num_heads=2)
    theirs(target)
    ours = EncoderLayer.from_keras(randomise(theirs, rng))
    before = ops.convert_to_numpy(theirs(target)).copy()
    model = keras.Sequential([keras.Input(target.shape[1:]), ours])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(target, target)
    assert_close(theirs(target), before)
    assert np.abs(ops.convert_to_numpy(ours(target)) - before).max() > 1e-3


def padding(rng, length):
    mask = rng.random((BATCH, length)) < 0.6
    mask[:, 0] = True
    return mask


def pairs(rng, queries, keys):
    mask = rng.random((BATCH, queries, keys)) < 0.6
    mask[:, :, 0] = True
    return mask


@pytest.mark.parametrize("dtype", ("bool", "int32"))
def test_encoder_gives_the_same_numbers_for_the_same_call(encoders, rng, target, dtype):
    theirs, ours = encoders
    masks = {
        "padding_mask": padding(rng, TARGET).astype(dtype),
        "attention_mask": pairs(rng, TARGET, TARGET).astype(dtype),
    }
    for names in ((), ("padding_mask",), ("attention_mask",), tuple(masks)):
        call = {name: masks[name] for name in names}
        assert_close(ours(target, **call), ops.convert_to_numpy(theirs(target, **call)))
    output, scores = ours(target, return_attention_scores=True, **masks)
    expected = theirs(target, return_attention_scores=True, **masks)
    assert_close(output, ops.convert_to_numpy(expected[0]))
    assert_close(scores, ops.convert_to_numpy(expected[1]))


@pytest.mark.one_case
@pytest.mark.parametrize("dtype", ("bool", "int32"))
def test_decoder_gives_the_same_numbers_for_the_same_call(
    decoders, rng, target, source, dtype
):
    theirs, ours = decoders
    masks = {
        "decoder_padding_mask": padding(rng, TARGET).astype(dtype),
        "decoder_attention_mask": pairs(rng, TARGET, TARGET).astype(dtype),
        "encoder_padding_mask": padding(rng, SOURCE).astype(dtype),
        "encoder_attention_mask": pairs(rng, TARGET, SOURCE).astype(dtype),
    }
    calls = [{}, *({name: mask} for name, mask in masks.items()), masks]
    for call in (*calls, {"use_causal_mask": False}):
        expected = ops.convert_to_numpy(theirs(target, source, **call))
        assert_close(ours(target, source, **call), expected)


@pytest.mark.parametrize("dtype", ("bool", "int32"))
def test_causal_layer_gives_the_same_numbers_for_the_same_call(
    causal_layers, rng, target, dtype
):
    theirs, ours = causal_layers
    masks = padding(rng, TARGET).astype(dtype), pairs(rng, TARGET, TARGET).astype(dtype)
    names = ("padding_mask", "attention_mask")
    for used in ((), (0,), (1,), (0, 1)):
        expected = theirs(target, **{f"decoder_{names[i]}": masks[i] for i in used})
        found = ours(target, **{names[i]: masks[i] for i in used})
        assert_close(found, ops.convert_to_numpy(expected))
    assert ours.count_params() == theirs.count_params()


@pytest.mark.one_case
def test_options_are_taken_over(encoders, decoders):
    for theirs, ours in (encoders, decoders):
        assert ours.d_ff == 13 and ours.num_heads == theirs.num_heads
        assert ours.layer_norm_epsilon == theirs.layer_norm_epsilon
        assert (ours.dropout_rate, ours.activation_dropout_rate) == (0.3, 0.0)
        assert ours.count_params() == theirs.count_params()
        assert ours.name == theirs.name


def test_masks_of_both_kinds_must_allow(rng, target):
    layer = EncoderLayer(2, 13)
    one, other = padding(rng, TARGET), padding(rng, TARGET)
    both = ops.convert_to_numpy(layer(target, mask=one, padding_mask=other))
    assert_close(layer(target, mask=one & other), both)
    every = pairs(rng, TARGET, TARGET)
    found = layer(target, mask=one, attention_mask=every)
    assert_close(layer(target, mask=one[:, None] & every), ops.convert_to_numpy(found))


def test_a_causal_layer_takes_the_masks_too(rng, target):
    layer, mask = CausalLayer(2, 13), padding(rng, TARGET)
    expected = ops.convert_to_numpy(layer(target, mask=mask))
    assert_close(layer(target, padding_mask=mask.astype("int32")), expected)


def test_scores_of_a_functional_model(target):
    inputs = keras.Input((None, WIDTH))
    outputs = EncoderLayer(2, 13)(inputs, return_attention_scores=True)
    states, scores = keras.Model(inputs, outputs)(target)
    assert tuple(states.shape) == (BATCH, TARGET, WIDTH)
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.sum(scores, -1)), np.ones((BATCH, 2, TARGET)), 1e-5
    )


@pytest.mark.parametrize(
    "name",
    (
        "self_attention_cache", "self_attention_cache_update_index",
        "cross_attention_cache", "cross_attention_cache_update_index",
    ),
)  # fmt: skip
def test_a_cache_is_refused_by_its_name(name, target, source):
    with pytest.raises(ValueError, match=f"`{name}` is KerasHub's; .* `step`"):
        DecoderLayer(2, 13)(target, source, **{name: np.zeros(1)})


def test_a_decoder_without_a_source_is_another_layer(target):
    with pytest.raises(ValueError, match="`CausalLayer` is the layer"):
        DecoderLayer(2, 13)(target)
    theirs = keras_hub.layers.TransformerDecoder(13, 2)
    theirs(target)
    with pytest.raises(ValueError, match="built without `encoder_sequence`"):
        DecoderLayer.from_keras(theirs)


def test_masks_of_other_shapes_are_refused(rng, target):
    layer = EncoderLayer(2, 13)
    with pytest.raises(
        ValueError, match=r"`padding_mask` must have the shape \(B, S\)"
    ):
        layer(target, padding_mask=pairs(rng, TARGET, TARGET))
    with pytest.raises(ValueError, match=r"`attention_mask` must .* \(B, T, S\)"):
        layer(target, attention_mask=padding(rng, TARGET))


def test_other_layers_are_refused(target):
    encoder = keras_hub.layers.TransformerEncoder(13, 2)
    for ours, layer in (
        (EncoderLayer, keras.layers.Dense(3)),
        (EncoderLayer, keras_hub.layers.TransformerDecoder(13, 2)),
        (DecoderLayer, encoder),
        (CausalLayer, encoder),
    ):
        with pytest.raises(TypeError, match="`layer` must be a `keras_hub.layers"):
            ours.from_keras(layer)
    with pytest.raises(ValueError, match="call it or its model once"):
        EncoderLayer.from_keras(encoder)


def test_a_decoder_with_a_source_is_no_causal_layer(target, source):
    theirs = keras_hub.layers.TransformerDecoder(13, 2)
    theirs(target, source)
    with pytest.raises(ValueError, match="must attend to no source: `DecoderLayer`"):
        CausalLayer.from_keras(theirs)


@pytest.mark.parametrize(
    "part",
    ("self_attention.query", "cross_attention.output", "feedforward_output"),
)
def test_integers_are_not_taken_for_weights(part, target, source):
    theirs = keras_hub.layers.TransformerDecoder(13, 2)
    theirs(target, source)
    attention, _, name = part.partition(".")
    dense = getattr(theirs, f"_{attention}_dense", None)
    if name:
        dense = getattr(getattr(theirs, f"_{attention}_layer"), f"_{name}_dense")
    dense.quantize("int8")
    with pytest.raises(ValueError, match="must hold floats: .*, quantized"):
        DecoderLayer.from_keras(theirs)
