"""Scaled dot-product attention against the NumPy reference and worked numbers."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import (
    masked_softmax,
    scaled_dot_product_attention,
)
from keras_transformer.masks import valid_length_mask
from tests.layers.reference_weights import assert_close
from tests.reference import numpy_transformer as reference

BATCH, TARGET_LENGTH, SOURCE_LENGTH, KEY_DIM, VALUE_DIM = 2, 3, 5, 7, 11


@pytest.fixture
def tensors(rng):
    shapes = (
        (BATCH, TARGET_LENGTH, KEY_DIM),
        (BATCH, SOURCE_LENGTH, KEY_DIM),
        (BATCH, SOURCE_LENGTH, VALUE_DIM),
    )
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def test_agrees_with_the_reference(tensors):
    actual = scaled_dot_product_attention(*map(ops.convert_to_tensor, tensors))
    expected = reference.dot_product_attention(*tensors)
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1])


def test_agrees_with_the_reference_under_a_mask(tensors, rng):
    mask = rng.random((BATCH, TARGET_LENGTH, SOURCE_LENGTH)) < 0.5
    mask[1, 2] = False
    output, attention_weights = scaled_dot_product_attention(
        *map(ops.convert_to_tensor, tensors), mask=mask
    )
    expected = reference.dot_product_attention(*tensors, mask)
    assert_close(output, expected[0])
    assert_close(attention_weights, expected[1])
    assert not ops.convert_to_numpy(output)[1, 2].any()


@pytest.mark.parametrize("key_value", [1.0, -3.0])
def test_equal_keys_give_the_mean_of_the_valid_values(rng, key_value):
    """Values 0 to 39, valid lengths 2 and 6: the means of the first 2 and 6 rows."""
    query = ops.convert_to_tensor(rng.standard_normal((2, 1, 2)).astype("float32"))
    key = ops.full((2, 10, 2), key_value)
    value = ops.reshape(ops.arange(40, dtype="float32"), (1, 10, 4))
    value = ops.concatenate([value, value])
    mask = valid_length_mask([2, 6], 10)
    output, attention_weights = scaled_dot_product_attention(query, key, value, mask)
    assert_close(output, [[[2, 3, 4, 5]], [[10, 11, 12, 13]]])
    expected = np.zeros((2, 1, 10))
    expected[0, 0, :2], expected[1, 0, :6] = 1 / 2, 1 / 6
    assert_close(attention_weights, expected)


def test_valid_lengths_of_queries_give_the_mean_of_each_query(rng):
    query = ops.convert_to_tensor(rng.standard_normal((1, 3, 2)).astype("float32"))
    key = ops.ones((1, 10, 2))
    value = ops.reshape(ops.arange(40, dtype="float32"), (1, 10, 4))
    mask = valid_length_mask([[1, 2, 6]], 10)
    output, _ = scaled_dot_product_attention(query, key, value, mask)
    assert_close(output, [[[0, 1, 2, 3], [2, 3, 4, 5], [10, 11, 12, 13]]])


def test_scores_are_divided_by_the_root_of_the_key_width():
    """Scores 4 / sqrt(4) = 2 and 0: the first weight is e^2 / (e^2 + 1)."""
    query = ops.ones((1, 1, 4))
    key = ops.stack([ops.ones((1, 4)), ops.zeros((1, 4))], axis=1)
    _, attention_weights = scaled_dot_product_attention(query, key, key)
    first = np.exp(2) / (np.exp(2) + 1)
    assert_close(attention_weights, [[[first, 1 - first]]])


def test_leading_axes_are_free(tensors):
    stacked = [
        ops.stack([x, 2 * x], axis=1) for x in map(ops.convert_to_tensor, tensors)
    ]
    output, _ = scaled_dot_product_attention(*stacked)
    expected = reference.dot_product_attention(*(2 * x for x in tensors))[0]
    assert_close(output[:, 1], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_masked_softmax_survives_large_scores(dtype):
    scores = ops.cast([[60000.0, -60000.0, 60000.0], [1.0, 2.0, 3.0]], dtype)
    mask = np.array([[True, True, False], [False, False, False]])
    weights = masked_softmax(scores, mask)
    assert weights.dtype == scores.dtype
    assert_close(ops.cast(weights, "float32"), [[1, 0, 0], [0, 0, 0]])


def test_masked_softmax_of_very_low_scores_ignores_masked_ones():
    """Allowed scores near the lowest number still beat masked ones."""
    scores = ops.convert_to_tensor([[-1e30, -1e30, 5.0]])
    weights = masked_softmax(scores, np.array([[True, True, False]]))
    assert_close(weights, [[0.5, 0.5, 0.0]])
