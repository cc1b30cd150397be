"""Additive attention against the NumPy reference, laws and worked numbers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import AdditiveAttention
from keras_transformer.masks import valid_length_mask
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.reference import numpy_attention as reference

BATCH, TARGET_LENGTH, SOURCE_LENGTH, UNITS = 2, 3, 5, 7
# Of the query, the value and the key.
SHAPES = ((2, 3, 11), (2, 5, 17), (2, 5, 13))


def random_layer(rng, shapes=SHAPES, **options):
    layer = AdditiveAttention(UNITS, **options)
    layer.build(*shapes)
    return randomise(layer, rng)


def random_inputs(rng):
    return [rng.standard_normal(shape).astype("float32") for shape in SHAPES]


MASKS = {
    "none": None,
    "of rows": valid_length_mask([4, 2], SOURCE_LENGTH),
    "of queries": valid_length_mask([[1, 5, 3], [0, 2, 4]], SOURCE_LENGTH),
}


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_agrees_with_the_reference(rng, mask, use_bias):
    layer, inputs = random_layer(rng, use_bias=use_bias), random_inputs(rng)
    mask = MASKS[mask]
    output, attention_weights = layer(*inputs, mask=mask, return_attention_scores=True)
    array = None if mask is None else ops.convert_to_numpy(mask)
    query, value, key = inputs
    expected = reference.additive_attention(
        query, key, value, weights_of(layer, "attention"), array
    )
    assert_close(output, expected[0])
    assert_close(attention_weights, expected[1])
    assert_close(layer(*inputs, mask=mask), expected[0])


def test_equal_keys_give_the_mean_of_the_valid_values(rng):
    """Values 0 to 39, valid lengths 2 and 6: the means of the first 2 and 6 rows."""
    value = np.arange(40, dtype="float32").reshape(1, 10, 4).repeat(2, axis=0)
    query = rng.standard_normal((2, 1, 20)).astype("float32")
    layer = AdditiveAttention(8)
    mask = valid_length_mask([2, 6], 10)
    output = layer(query, value, np.ones((2, 10, 2), "float32"), mask=mask)
    assert_close(output, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]])


def test_query_with_nothing_to_attend_to_gives_zeros(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    mask = valid_length_mask([[1, 5, 3], [0, 2, 4]], SOURCE_LENGTH)
    output = ops.convert_to_numpy(layer(*inputs, mask=mask))
    assert not output[1, 0].any()
    assert output[1, 1:].all()


def test_padding_changes_nothing(rng):
    layer, (query, value, key) = random_layer(rng), random_inputs(rng)
    expected = ops.convert_to_numpy(layer(query, value, key))
    more = [
        np.pad(x, ((0, 0), (0, 2), (0, 0)), constant_values=9) for x in (value, key)
    ]
    mask = valid_length_mask([SOURCE_LENGTH] * 2, SOURCE_LENGTH + 2)
    assert_close(layer(query, *more, mask=mask), expected)


def test_keys_projected_once_serve_every_query(rng):
    layer, (query, value, key) = random_layer(rng), random_inputs(rng)
    mask = MASKS["of rows"]
    expected = layer(query, value, key, mask=mask, return_attention_scores=True)
    projected = layer.key_dense(key)
    for t in range(TARGET_LENGTH):
        found = layer.attend(query[:, t : t + 1], projected, value, mask=mask)
        for one, whole in zip(found, expected, strict=True):
            assert_close(one[:, 0], ops.convert_to_numpy(whole)[:, t])


def test_key_defaults_to_value_and_the_mask_to_that_of_the_key(rng):
    embedding = keras.layers.Embedding(11, 17, mask_zero=True)
    ids = np.array([[3, 4, 5, 6, 0], [7, 8, 0, 0, 0]])
    value = embedding(ids)
    layer = random_layer(rng, SHAPES[:2])
    query = random_inputs(rng)[0]
    expected = layer(query, ops.convert_to_numpy(value), mask=ids != 0)
    assert_close(layer(query, value), ops.convert_to_numpy(expected))


def test_symbolic_attention_weights_have_their_shape():
    layer = AdditiveAttention(UNITS)
    output, attention_weights = layer(
        keras.Input((None, 11)), keras.Input((7, 13)), return_attention_scores=True
    )
    assert output.shape == (None, None, 13)
    assert attention_weights.shape == (None, None, 7)
