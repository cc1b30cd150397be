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


IDS, PAIRS = np.array([[5, 7, 0], [4, 0, 0]]), np.array([[1, 0, 1], [1, 1, 0]], bool)
BY_HAND = {
    "padding_mask(IDS)": [[[1, 1, 0]], [[1, 0, 0]]],
    "padding_mask(np.array([[0, 3, 9]]), pad_id=3)": [[[1, 0, 1]]],
    "causal_mask(3)": [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]],
    "padding_mask(IDS[:1]) & causal_mask(3)": [[[1, 0, 0], [1, 1, 0], [1, 1, 0]]],
    "valid_length_mask([2, 0, 3], 3)": [[[1, 1, 0]], [[0, 0, 0]], [[1, 1, 1]]],
    "valid_length_mask([[1, 3], [0, 2]], 3)": [
        [[1, 0, 0], [1, 1, 1]], [[0, 0, 0], [1, 1, 0]]
    ],
    "local_window_mask(4, window=1)": [
        [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    ],
    "local_window_mask(4, window=2, causal=True)": [
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    ],
    "local_window_mask(3, window=0)": np.eye(3)[None],
    "attention_mask(PAIRS)": PAIRS[:, None],
    "mask_of_keys(attention_mask(PAIRS))": PAIRS,
}  # fmt: skip
REFUSED = {
    "local_window_mask(3, window=-1)": (ValueError, "`window` must be at least 0.*=-1"),
    "valid_length_mask(3, 3)": (ValueError, "`valid_lengths` must have the shape"),
    "valid_length_mask([[[1]]], 3)": (ValueError, "`valid_lengths` must have the sh"),
    "attention_mask(IDS * 1.0)": (TypeError, "`mask` must be boolean.*float64"),
    "attention_mask(PAIRS[0])": (ValueError, r"`mask` must have the shape.*\(3,\)"),
    "mask_of_keys(causal_mask(3))": (ValueError, "`mask` must be the same for all qu"),
}


@pytest.mark.parametrize("call", BY_HAND)
def test_masks_by_hand(call):
    assert_mask(eval(call, globals() | vars(masks)), BY_HAND[call])


@pytest.mark.parametrize("call", REFUSED)
def test_what_is_no_mask_is_refused(call):
    error, words = REFUSED[call]
    with pytest.raises(error, match=words):
        eval(call, globals() | vars(masks))


def test_no_mask_stays_none():
    assert masks.attention_mask(None) is None


VALUES = np.zeros((2, 3, 5), "float32")
QUERIES = np.zeros((2, 2, 7), "float32")
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
