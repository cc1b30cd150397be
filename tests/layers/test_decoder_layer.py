"""The decoder layer against NumPy and PyTorch, causality, and step-by-step decoding."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.decoding import cache_place
from keras_transformer.kernels.few_passes import prepare_mask
from keras_transformer.layers import DecoderLayer
from keras_transformer.masks import attention_mask
from tests.layers.layer_battery import (
    EXACT_RESIDUAL_LAYER,
    RESIDUAL_LAYER_OPTIONS,
    LayerBattery,
)
from tests.layers.reference_weights import (
    assert_close,
    layer_weights_of,
    past_mask,
    randomise,
    set_weights,
)
from tests.reference import numpy_transformer as reference
from tests.reference import torch_witness

NUM_HEADS, D_MODEL, D_ENCODER, TARGET_LENGTH, SOURCE_LENGTH = 3, 15, 19, 5, 7
SIZES = {"num_heads": NUM_HEADS, "d_ff": 11}


class TestBattery(LayerBattery):
    layer_class = DecoderLayer
    options = RESIDUAL_LAYER_OPTIONS
    exact_options = EXACT_RESIDUAL_LAYER
    input_shapes = ((2, 5, 13), (2, 7, 17))
    output_shape = (2, 5, 13)
    # It adds the same number to all scores of a query, which the softmax removes.
    weights_without_gradient = ("key_bias",)


def random_inputs(rng):
    return [
        rng.standard_normal((2, TARGET_LENGTH, D_MODEL)).astype("float32"),
        rng.standard_normal((2, SOURCE_LENGTH, D_ENCODER)).astype("float32"),
    ]


def random_layer(rng, **options):
    layer = DecoderLayer(**(SIZES | options))
    layer.build((None, None, D_MODEL), (None, None, D_ENCODER))
    return randomise(layer, rng)


def masks():
    """Boolean (B, T) and (B, S); the second row is padded."""
    target = np.arange(TARGET_LENGTH) < np.array([[TARGET_LENGTH], [3]])
    source = np.arange(SOURCE_LENGTH) < np.array([[SOURCE_LENGTH], [4]])
    return {"mask": target, "encoder_output_mask": source}


def reference_masks():
    return {name: mask[:, None] for name, mask in masks().items()}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"key_dim": 7, "value_dim": 13, "use_bias": True}]
)
def test_agrees_with_the_reference(rng, norm_first, options):
    layer = random_layer(rng, norm_first=norm_first, **options)
    inputs, weights = random_inputs(rng), layer_weights_of(layer)
    expected = reference.decoder_layer(
        *inputs, weights, NUM_HEADS, norm_first=norm_first, **reference_masks()
    )
    assert_close(layer(*inputs, **masks()), expected)
    without_masks = reference.decoder_layer(
        *inputs, weights, NUM_HEADS, norm_first=norm_first
    )
    assert_close(layer(*inputs), without_masks)


@pytest.mark.parametrize("norm_first", [False, True])
def test_agrees_with_torch(norm_first):
    case = torch_witness.load(f"decoder_layer_{'pre' if norm_first else 'post'}_norm")
    layer = DecoderLayer(**SIZES, norm_first=norm_first, use_bias=True)
    layer.build(case["inputs"].shape, case["encoder_output"].shape)
    set_weights(layer, {name: case[name] for name in layer_weights_of(layer)})
    output = layer(
        case["inputs"].astype("float32"),
        case["encoder_output"].astype("float32"),
        mask=case["mask"],
        encoder_output_mask=case["encoder_output_mask"],
    )
    assert_close(output, case["outputs"])


@pytest.mark.parametrize("norm_first", [False, True])
def test_reference_agrees_with_torch(norm_first):
    case = torch_witness.load(f"decoder_layer_{'pre' if norm_first else 'post'}_norm")
    output = reference.decoder_layer(
        case["inputs"], case["encoder_output"], case, NUM_HEADS, case["mask"][:, None],
        case["encoder_output_mask"][:, None], norm_first,
    )  # fmt: skip
    np.testing.assert_allclose(output, case["outputs"], atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_later_position_cannot_change_an_earlier_one(rng, training, masked):
    """With dropout configured too: it must not cost the causal mask (same seed)."""
    target, source = random_inputs(rng)
    changed = target.copy()
    changed[:, 2:] += 5.0

    def outputs(target):
        keras.utils.set_random_seed(7)  # The same weights and the same dropout.
        layer = DecoderLayer(**SIZES)
        assert layer.attention_dropout_rate > 0
        options = masks() if masked else {}
        return ops.convert_to_numpy(layer(target, source, training=training, **options))

    before, after = outputs(target), outputs(changed)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert np.abs(before[0, 2:] - after[0, 2:]).min(axis=-1).all()


def test_source_padding_does_not_change_the_output(rng):
    layer = random_layer(rng)
    target, source = random_inputs(rng)
    mask = np.arange(SOURCE_LENGTH) < np.array([[4], [4]])
    changed = source.copy()
    changed[:, 4:] += 100.0
    before, after = (
        ops.convert_to_numpy(layer(target, x, encoder_output_mask=mask))
        for x in (source, changed)
    )
    np.testing.assert_array_equal(before, after)
    assert_close(layer(target, source[:, :4]), before)


def test_source_with_nothing_to_attend_to_gives_finite_output(rng):
    layer = random_layer(rng)
    inputs = random_inputs(rng)
    mask = np.zeros((2, SOURCE_LENGTH), bool)
    expected = reference.decoder_layer(
        *inputs, layer_weights_of(layer), NUM_HEADS, encoder_output_mask=mask[:, None]
    )
    assert np.isfinite(expected).all()
    assert_close(layer(*inputs, encoder_output_mask=mask), expected)


def test_one_row_equals_a_row_of_a_batch(rng):
    layer = random_layer(rng)
    target, source = random_inputs(rng)
    whole = ops.convert_to_numpy(layer(target, source, **masks()))
    alone = {name: mask[1:] for name, mask in masks().items()}
    assert_close(layer(target[1:], source[1:], **alone), whole[1:])


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("rows_per_sentence", [1, 3])
def test_step_equals_call(rng, norm_first, rows_per_sentence):
    """The rows of a sentence share its projected keys and values."""
    layer = random_layer(rng, norm_first=norm_first, value_dim=7, use_bias=True)
    source = random_inputs(rng)[1]
    rows = 2 * rows_per_sentence
    target = rng.standard_normal((rows, TARGET_LENGTH, D_MODEL)).astype("float32")
    mask = masks()["encoder_output_mask"]
    expected = ops.convert_to_numpy(
        layer(
            target,
            np.repeat(source, rows_per_sentence, axis=0),
            encoder_output_mask=np.repeat(mask, rows_per_sentence, axis=0),
        )
    )
    projected = layer.project_encoder_output(ops.convert_to_tensor(source))
    target = ops.convert_to_tensor(target)
    cache = layer.initial_cache(2, rows_per_sentence, TARGET_LENGTH + 2)
    weights = layer.decoding_weights()
    source_mask = prepare_mask(attention_mask(mask)[:, None], "float32")
    for index in range(TARGET_LENGTH):
        step_masks = past_mask(index, TARGET_LENGTH + 2, rows_per_sentence), source_mask
        place = cache_place(cache[0], rows_per_sentence, ops.convert_to_tensor(index))
        inputs = ops.reshape(target[:, index], (2, rows_per_sentence, D_MODEL))
        output, cache, attention_weights = layer.step(
            inputs, cache, projected, place, step_masks, weights
        )
        assert_close(ops.reshape(output, (rows, D_MODEL)), expected[:, index])
        _, expected_weights = layer.call_with_attention(
            target,
            np.repeat(source, rows_per_sentence, axis=0),
            encoder_output_mask=np.repeat(mask, rows_per_sentence, axis=0),
        )
        by_row = ops.transpose(attention_weights, (0, 2, 1, 3))
        assert_close(
            ops.reshape(by_row, (rows, *by_row.shape[2:])),
            ops.convert_to_numpy(expected_weights)[:, :, index],
        )
