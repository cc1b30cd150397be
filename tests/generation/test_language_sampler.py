"""What the sampler draws from a language model: the distribution it says."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import LanguageModel, LanguageSampler
from tests.models.transformer_cases import random_language_model
from tests.reference import numpy_transformer as reference

PROMPTS = np.array([[9, 4, 17], [8, 0, 0]], "int32")


@pytest.fixture(scope="module")
def model():
    return random_language_model(np.random.default_rng(3), norm_first=True, pad_id=0)


def drawn(sampler, prompts, length, **options):
    result = sampler(prompts, length, **options)
    return ops.convert_to_numpy(result.ids)[:, 0], result


def next_logits(model, row):
    """Logits of the token after a row of ids."""
    ids = np.array([[1, *row]], "int32")
    return ops.convert_to_numpy(model(ids))[0, -1].astype("float64")


def test_temperature_0_takes_the_best_token_at_every_step(model):
    ids, result = drawn(LanguageSampler(model), PROMPTS, 11, temperature=0)
    for row, prompt in zip(ids, ([9, 4, 17], [8]), strict=True):
        expected = list(prompt)
        while len(expected) < 11 and expected[-1] != 2:
            logits = next_logits(model, expected)
            logits[:2] = -np.inf  # Padding and start are never drawn.
            expected.append(int(logits.argmax()))
        assert row.tolist() == expected + [0] * (11 - len(expected))
    assert (ops.convert_to_numpy(result.lengths) <= 11).all()


@pytest.mark.parametrize("filters", ({"top_k": 3}, {"top_p": 0.4}))
def test_log_probabilities_are_the_models_for_the_whole_text(model, filters):
    """And every token drawn is among those that the filter leaves."""
    ids, result = drawn(LanguageSampler(model, **filters), PROMPTS[:1], 7, seed=5)
    length = int(ops.convert_to_numpy(result.lengths)[0, 0])
    row = ids[0, :length]
    logits = ops.convert_to_numpy(model(np.array([[1, *row[:-1]]], "int32")))[0]
    scores = reference.log_softmax(logits)
    for position in range(3, length):
        better = scores[position, 2:] > scores[position, row[position]]
        mass = np.exp(scores[position, 2:])
        share = mass[better].sum() / mass.sum()
        assert better.sum() < 3 if "top_k" in filters else share < 0.4
    expected = scores[np.arange(length), row].sum()
    actual = ops.convert_to_numpy(result.log_probabilities)[0, 0]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_row_depends_on_its_own_prompt_and_seed_alone(model):
    sampler = LanguageSampler(model)
    together, _ = drawn(sampler, PROMPTS, 9, seed=20)
    alone, _ = drawn(sampler, PROMPTS[1:, :1], 9, seed=21)
    np.testing.assert_array_equal(alone[0], together[1])
    again, _ = drawn(sampler, PROMPTS, 9, seed=20)
    np.testing.assert_array_equal(again, together)
    other, _ = drawn(sampler, PROMPTS, 9, seed=22)
    assert (other != together).any()


def test_a_text_may_begin_with_nothing_and_must_not_end_too_early(model):
    sampler = LanguageSampler(model, min_length=8, no_repeat_ngram_size=1)
    ids, result = drawn(sampler, np.zeros((3, 0), "int32"), 9, temperature=2.0)
    assert (ops.convert_to_numpy(result.lengths) >= 8).all()
    assert all(len(set(row[row > 0])) == (row > 0).sum() for row in ids)


@pytest.mark.parametrize("columns", (0, 3))
def test_no_prompt_gives_no_text(model, columns):
    sampler = LanguageSampler(model, top_k=3, no_repeat_ngram_size=2)
    result = sampler(np.zeros((0, columns), "int32"), 7)
    assert [tuple(x.shape) for x in result] == [(0, 1, 7), (0, 1), (0, 1), (0, 1)]
    types = [keras.backend.standardize_dtype(x.dtype) for x in result]
    assert types == ["int32", "int32", "float32", "float32"]


def test_an_ngram_longer_than_any_text_bans_nothing_and_costs_nothing(model):
    free, _ = drawn(LanguageSampler(model), PROMPTS, 9, seed=3)
    sampler = LanguageSampler(model, no_repeat_ngram_size=10**6)
    np.testing.assert_array_equal(drawn(sampler, PROMPTS, 9, seed=3)[0], free)


def test_new_weights_are_used(model):
    """The graph that draws must not keep those of its first call."""
    copy = LanguageModel.from_config(model.get_config())
    sampler = LanguageSampler(copy)
    before, _ = drawn(sampler, PROMPTS, 9, temperature=0)
    copy.set_weights(model.get_weights())
    after, _ = drawn(sampler, PROMPTS, 9, temperature=0)
    expected, _ = drawn(LanguageSampler(model), PROMPTS, 9, temperature=0)
    np.testing.assert_array_equal(after, expected)
    assert (before != after).any()


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (PROMPTS[0], {}, r"`prompts` must have one row a text.*shape \(3,\)"),
        (PROMPTS - 1, {}, "from 0 to 28. Received: ids from -1 to 16"),
        (PROMPTS + 20, {}, "from 0 to 28. Received: ids from 20 to 37"),
        (PROMPTS, {"length": 2}, "`length` must be at least 1 and that of the prompts"),
        (PROMPTS, {"temperature": -1.0}, "`temperature` must be finite and at least 0"),
        (PROMPTS, {"length": 20}, "max_positions=19"),
    ],
)
def test_wrong_arguments_are_refused(prompts, options, message):
    model = random_language_model(np.random.default_rng(4), positions="learned")
    with pytest.raises(ValueError, match=message):
        LanguageSampler(model)(prompts, **({"length": 5} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "`top_k` must be at least 1"),
        ({"top_p": 1.5}, "`top_p` must be at most 1.0"),
        ({"min_length": 0}, "`min_length` must be at least 1. Received: min_length=0"),
        ({"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size` must be at least 0"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_drawn(model, options, message):
    with pytest.raises(ValueError, match=message):
        LanguageSampler(model, **options)
