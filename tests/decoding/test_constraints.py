"""Constraints against their definitions, for every history of a tiny vocabulary."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from keras_transformer.decoding import SpecialIds
from keras_transformer.decoding.constraints import (
    Constraints,
    allowed_tokens,
    banned_tokens,
    check_constraints,
    constrain,
    force,
    forced_tokens,
)
from keras_transformer.decoding.tokens import ban
from tests.decoding.table_steps import END, IDS, PAD, START, numpy


def banned_by(history, size):
    """Tokens whose n-gram with the last n - 1 of the history is in it, by sets."""
    ngrams = {tuple(history[i : i + size]) for i in range(len(history) - size + 1)}
    last = tuple(history[len(history) - size + 1 :])
    if len(last) < size - 1 or size > len(history):
        return set()
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == last}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("position", range(8))
def test_every_history_bans_what_would_repeat_an_ngram(size, position):
    histories = list(itertools.product((3, 4), repeat=position))
    # What lies past the history must not matter: two kinds of filling, one of them
    # tokens that could be taken for history.
    for filling in (PAD, 3):
        ids = np.full((len(histories), 7), filling, "int32")
        ids[:, :position] = np.reshape(histories, (len(histories), position))
        found = banned_tokens(ids[:, None], position, size)
        if size >= 7:
            assert found is None
            found = np.zeros_like(ids), np.zeros_like(ids, bool)
        tokens, banned = map(numpy, found)
        assert tokens.shape == banned.shape == ids.shape
        for row, history in enumerate(histories):
            assert set(tokens[row][banned[row]].tolist()) == banned_by(history, size)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow graph")
def test_an_ngram_longer_than_outputs_of_unknown_length_bans_nothing():
    import tensorflow as tf

    signature = [tf.TensorSpec([None, None, None], "int32")]
    found = tf.function(lambda ids: banned_tokens(ids, 3, 11), signature)
    _, banned = found(np.full((2, 1, 3), 5))
    assert not numpy(banned).any()


def test_banning_adds_minus_infinity_to_the_named_tokens_alone(rng):
    logits = rng.normal(size=(3, 7)).astype("float32")
    tokens = np.array([[5, 5, 2], [0, 6, 6], [1, 2, 3]])
    banned = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]], bool)
    expected = logits.copy()
    expected[0, 5] = expected[1, 6] = -np.inf
    np.testing.assert_array_equal(numpy(ban(logits, tokens, banned)), expected)


@pytest.mark.parametrize(
    "special_ids,banned",
    [
        (SpecialIds(0, 1, 2), {0, 1}),
        (SpecialIds(4, 4, 2), {4}),
        (SpecialIds(0, 2, 2), {0}),
        (SpecialIds(2, 1, 2), {1}),
        (SpecialIds(2, 2, 2), set()),
    ],
)
def test_padding_and_start_are_banned_unless_they_end(special_ids, banned):
    tokens = np.array([[4, 1], [3, 2], [0, 0]])
    for constraints, never in (
        (Constraints(), banned),
        (Constraints(min_length=9), banned | {special_ids.end_id}),
        (Constraints(never=3), banned | {3}),
    ):
        allowed = numpy(allowed_tokens(tokens, 7, special_ids, constraints))
        np.testing.assert_array_equal(allowed, ~np.isin(tokens, [*never]))


def test_the_end_is_allowed_from_the_shortest_length_on():
    end = np.array([END])
    rules = Constraints(min_length=4)
    ends = [bool(allowed_tokens(end, n, IDS, rules)[0]) for n in range(6)]
    # After 3 tokens the end is the fourth.
    assert ends == [False, False, False, True, True, True]


def test_constraints_work_together_on_the_hypotheses_of_each_sentence(rng):
    logits = rng.normal(size=(6, 7)).astype("float32")
    ids = np.zeros((3, 2, 5), "int32")
    ids[..., :3] = [[[3, 4, 3], [3, 3, 3]], [[5, 6, 4], [4, 4, 5]], [[6, 5, 6]] * 2]
    result = numpy(constrain(logits, ids, 3, IDS, Constraints(5, 2)))
    expected = logits.copy()
    expected[:, [PAD, START, END]] = -np.inf
    for row, token in ((0, 4), (1, 3), (4, 5), (5, 5)):
        expected[row, token] = -np.inf
    np.testing.assert_array_equal(result, expected)
    free = numpy(constrain(logits, ids, 3, IDS, Constraints()))
    np.testing.assert_array_equal(free[:, END:], logits[:, END:])
    assert np.all(free[:, :END] == -np.inf)


def test_a_prefix_forces_its_tokens_and_no_more():
    prefix = np.array([[5, 6, 7], [8, 0, 0], [0, 0, 0]])
    expected = np.array([[5, 8, 0], [6, 0, 0], [7, 0, 0], [0, 0, 0], [0, 0, 0]])
    for beam_size in (1, 2):
        for position, row in enumerate(expected):
            forced = forced_tokens(prefix, position, PAD, beam_size)
            tokens, is_forced = map(numpy, forced)
            of_rows = np.repeat(row, beam_size)[:, None]
            np.testing.assert_array_equal(tokens, of_rows)
            np.testing.assert_array_equal(is_forced, of_rows != 0)
    assert not numpy(forced_tokens(np.zeros((2, 0)), 0, PAD)[1]).any()
    assert not numpy(forced_tokens(np.full((2, 3), 9), 1, 9)[1]).any()


@pytest.mark.parametrize("count", [1, 3])
def test_a_forced_token_comes_first_and_alone_with_the_models_probability(count):
    rng = np.random.default_rng(47)
    logits = rng.normal(size=(5, 7)).astype("float32")
    logits[2, 4], logits[3, 4], logits[4, 6] = -np.inf, np.nan, np.nan
    normaliser = np.log(np.exp(logits.astype("float64")).sum(axis=1, keepdims=True))
    tokens = np.tile(np.array([3, 5, 6], "int32")[:count], (5, 1))
    added = rng.normal(size=(5, count)).astype("float32")
    forced = np.array([[4], [0], [4], [4], [4]], "int32")
    result = force(
        tokens, added, logits, normaliser.astype("float32"), (forced, forced != PAD)
    )
    result_tokens, result_added = map(numpy, result)
    np.testing.assert_array_equal(result_tokens[1], tokens[1])
    np.testing.assert_array_equal(result_added[1], added[1])
    np.testing.assert_array_equal(result_tokens[[0, 2, 3, 4]], 4)
    assert np.all(result_added[[0, 2, 3, 4], 1:] == -np.inf)
    expected = [logits[0, 4] - normaliser[0, 0], -np.inf, -np.inf, -np.inf]
    np.testing.assert_allclose(result_added[[0, 2, 3, 4], 0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "constraints,message",
    [
        (Constraints(min_length=0), "`min_length` must be at least 1"),
        (Constraints(no_repeat_ngram_size=-1), "`no_repeat_ngram_size` must be at"),
        (Constraints(prefix=np.zeros(3)), "`prefix` must have one row a sentence"),
    ],
)
def test_bad_constraints_are_refused(constraints, message):
    with pytest.raises(ValueError, match=message):
        check_constraints(constraints)
