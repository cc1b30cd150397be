"""Masks, each value worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import masks


def assert_mask(mask, expected):
    mask = ops.convert_to_numpy(mask)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, np.array(expected, bool))


def test_padding_mask_is_false_on_padding():
    ids = np.array([[5, 7, 0], [4, 0, 0]])
    assert_mask(masks.padding_mask(ids), [[[1, 1, 0]], [[1, 0, 0]]])


def test_padding_mask_uses_the_given_id():
    assert_mask(masks.padding_mask(np.array([[0, 3, 9]]), pad_id=3), [[[1, 0, 1]]])


def test_causal_mask_allows_this_position_and_those_before():
    expected = [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert_mask(masks.causal_mask(3), expected)


def test_valid_lengths_of_rows():
    mask = masks.valid_length_mask(np.array([2, 0, 3]), 3)
    assert_mask(mask, [[[1, 1, 0]], [[0, 0, 0]], [[1, 1, 1]]])


def test_valid_lengths_of_queries():
    mask = masks.valid_length_mask(np.array([[1, 3], [0, 2]]), 3)
    assert_mask(mask, [[[1, 0, 0], [1, 1, 1]], [[0, 0, 0], [1, 1, 0]]])


def test_masks_combine():
    ids = np.array([[5, 7, 0]])
    both = masks.padding_mask(ids) & masks.causal_mask(3)
    assert_mask(both, [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]])


@pytest.mark.parametrize("valid_lengths", [3, [[[1]]]])
def test_valid_lengths_of_another_rank_are_refused(valid_lengths):
    with pytest.raises(ValueError, match="`valid_lengths` must have the shape"):
        masks.valid_length_mask(np.array(valid_lengths), 3)


def test_mask_of_keras_gets_an_axis_for_queries():
    mask = np.array([[True, False]])
    assert_mask(masks.attention_mask(mask), [[[1, 0]]])
    assert masks.attention_mask(None) is None


def test_mask_that_is_not_boolean_is_refused():
    with pytest.raises(TypeError, match="`mask` must be boolean.*float32"):
        masks.attention_mask(np.ones((2, 3), "float32"))


def test_mask_of_another_rank_is_refused():
    with pytest.raises(ValueError, match=r"`mask` must have the shape.*\(3,\)"):
        masks.attention_mask(np.ones(3, bool))
