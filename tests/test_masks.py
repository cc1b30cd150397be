"""Masks, each value worked out by hand."""

from __future__ import annotations

import keras
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


def test_local_window_reaches_to_both_sides():
    expected = [[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]]
    assert_mask(masks.local_window_mask(4, window=1), expected)


def test_causal_local_window_reaches_back_only():
    expected = [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]]
    assert_mask(masks.local_window_mask(4, window=2, causal=True), expected)


def test_local_window_of_zero_is_the_position_itself():
    assert_mask(masks.local_window_mask(3, window=0), np.eye(3)[None])


def test_negative_window_is_refused():
    with pytest.raises(ValueError, match="`window` must be at least 0.*window=-1"):
        masks.local_window_mask(3, window=-1)


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


VALUES = np.zeros((2, 3, 5), "float32")
QUERIES = np.zeros((2, 2, 7), "float32")
PAIRS = np.array([[1, 0, 1], [1, 1, 0]], bool)
COMBINED = {
    "nothing": ({}, None),
    "mask": ({"mask": PAIRS}, PAIRS[:, None, None]),
    "value and key": (
        {"value_mask": PAIRS, "key_mask": PAIRS[::-1].astype("int32")},
        [[[[1, 0, 0]]], [[[1, 0, 0]]]],
    ),
    "mask wins": (
        {"mask": PAIRS, "value_mask": PAIRS[::-1]}, PAIRS[:, None, None]
    ),
    "scores (T, S)": ({"scores_mask": PAIRS}, PAIRS[None, None]),
    "scores and mask": (
        {"scores_mask": PAIRS, "mask": PAIRS},
        [[[[1, 0, 1], [1, 0, 0]]], [[[1, 0, 0], [1, 1, 0]]]],
    ),
    "scores of heads": (
        {"scores_mask": np.broadcast_to(PAIRS, (2, 4, 2, 3))},
        np.broadcast_to(PAIRS, (2, 4, 2, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMBINED)
def test_masks_of_a_call_are_combined(case):
    masks_of_call, expected = COMBINED[case]
    found = masks.combined_mask(QUERIES, VALUES, VALUES, **masks_of_call)
    if expected is None:
        assert found is None
    else:
        assert_mask(found, expected)


def test_masks_that_tensors_carry_are_combined():
    embedding = keras.layers.Embedding(7, 5, mask_zero=True)
    value, key = (embedding(np.array([ids])) for ids in ([3, 0, 4], [0, 2, 2]))
    assert_mask(masks.combined_mask(value, value, value), [[[[1, 0, 1]]]])
    assert_mask(masks.combined_mask(value, value, key), [[[[0, 0, 1]]]])
    given = {"value_mask": np.ones((1, 3), bool)}
    assert_mask(masks.combined_mask(value, value, value, **given), [[[[1, 1, 1]]]])


@pytest.mark.parametrize(
    "given, error, words",
    [
        ({"mask": np.ones((2, 4), bool)}, ValueError, "`mask` must fit the inputs"),
        ({"key_mask": np.ones((2, 4), bool)}, ValueError, "`key_mask` must fit"),
        ({"mask": np.ones((2, 3), int)}, TypeError, "`mask` must be boolean, True"),
        ({"value_mask": np.ones((2, 3))}, TypeError, "boolean or of integers"),
        ({"scores_mask": np.ones((2, 4), bool)}, ValueError, "`attention_mask` must"),
        ({"scores_mask": np.ones(3, bool)}, ValueError, "`attention_mask` must fit"),
    ],
)
def test_masks_that_do_not_fit_are_refused(given, error, words):
    with pytest.raises(error, match=words):
        masks.combined_mask(QUERIES, VALUES, VALUES, **given)


def test_mask_of_keys_is_the_same_for_all_queries():
    assert_mask(masks.mask_of_keys(masks.attention_mask(PAIRS)), PAIRS)
    with pytest.raises(ValueError, match="`mask` must be the same for all queries"):
        masks.mask_of_keys(masks.causal_mask(3))
