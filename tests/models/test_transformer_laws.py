"""What must hold for every Transformer, whatever its weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import Transformer, TransformerConfig
from keras_transformer.testing import (
    assert_cached_equals_uncached,
    assert_causal,
    assert_padding_invariant,
)
from tests.layers.reference_weights import assert_close
from tests.models.transformer_cases import (
    SIZES,
    SOURCE,
    TARGET_IN,
    VARIANTS,
    random_model,
)

LENGTH = TARGET_IN.shape[1]


@pytest.fixture(params=list(VARIANTS))
def model(request, rng):
    return random_model(rng, **VARIANTS[request.param])


def logits_of(model, source, target, **options):
    return ops.convert_to_numpy(model((source, target), **options))


def own_places(sentences, beam_size):
    """Parents (B, k) of hypotheses that all keep their place."""
    return np.tile(np.arange(beam_size, dtype="int32"), (sentences, 1))


@pytest.mark.one_case
def test_later_token_cannot_change_an_earlier_logit(model):
    def scores(target, source):
        return model((source, target))

    assert_causal(scores, (TARGET_IN, SOURCE), ids_below=29, tolerance=0)


@pytest.mark.one_case
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_later_token_cannot_change_an_earlier_logit_in_training(variant):
    """Dropout of attention weights must not cost the causal mask (same seed)."""
    config = TransformerConfig(**(SIZES | VARIANTS[variant]))
    kinds_without = "linear", "performer", "lsh"
    assert config.attention_dropout_rate > 0 or config.attention in kinds_without
    changed = TARGET_IN.copy()
    changed[:, 2:] = 13

    def logits(target):
        keras.utils.set_random_seed(7)  # The same weights and the same dropout.
        return logits_of(Transformer(config), SOURCE, target, training=True)

    before, after = logits(TARGET_IN), logits(changed)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[:, 2] != after[:, 2]).any()


@pytest.mark.one_case
def test_padding_and_other_rows_change_nothing(model):
    def scores(target, source):
        return model((source, target))

    assert_padding_invariant(scores, (TARGET_IN, SOURCE))


@pytest.mark.one_case
def test_rows_do_not_see_each_other(model):
    swapped = logits_of(model, SOURCE[::-1].copy(), TARGET_IN[::-1].copy())
    assert_close(swapped[::-1], logits_of(model, SOURCE, TARGET_IN))


@pytest.mark.one_case
def test_order_of_the_source_matters(model):
    """Without positions the encoder could not tell a sentence from its reverse."""
    reversed_source = SOURCE[:1, ::-1].copy()
    before = logits_of(model, SOURCE[:1], TARGET_IN[:1])
    after = logits_of(model, reversed_source, TARGET_IN[:1])
    assert np.abs(before - after).max() > 1e-3


@pytest.mark.one_case
@pytest.mark.parametrize("beam_size", [1, 3])
def test_cached_decoding_equals_uncached(model, beam_size):
    """Each hypothesis of a sentence goes its own way, in a state that is resized."""
    assert_cached_equals_uncached(model, SOURCE, beam_size=beam_size)


def test_hypotheses_may_change_places_between_steps(rng):
    """Each hypothesis must find its own past in the caches, and only it."""
    model = random_model(rng)
    target = rng.integers(4, 29, size=(4, LENGTH))
    source = np.repeat(SOURCE, 2, axis=0)
    order = np.array([1, 0, 2, 2])  # Swap in sentence 0, copy in sentence 1.
    parents = own_places(2, 2)
    state = model.start_decoding(SOURCE, LENGTH, beam_size=2)
    for position in range(2):
        ids = ops.convert_to_tensor(target[:, position])
        _, state = model.decode_step(ids, parents, state)
    ids = ops.convert_to_tensor(target[:, 2])
    moved_parents = np.array([[1, 0], [0, 0]], "int32")
    logits, state = model.decode_step(ids, moved_parents, state)
    moved = np.concatenate([target[order, :2], target[:, 2:]], axis=1)
    assert_close(logits, logits_of(model, source, moved)[:, 2])
    # What follows goes on from there.
    ids = ops.convert_to_tensor(target[:, 3])
    logits, _ = model.decode_step(ids, parents, state)
    assert_close(logits, logits_of(model, source, moved)[:, 3])


def test_a_resized_state_goes_on_as_before(rng):
    """Fewer sentences and more room change nothing for the sentences that stay."""
    model = random_model(rng)
    target = rng.integers(4, 29, size=(4, LENGTH))
    state = model.start_decoding(SOURCE, 2, beam_size=2, coverage=True)
    parents = own_places(2, 2)
    for position in range(2):
        ids = ops.convert_to_tensor(target[:, position])
        _, state = model.decode_step(ids, parents, state)
    state = model.resize_decoding(state, np.array([1], "int32"), LENGTH)
    source = np.repeat(SOURCE[1:], 2, axis=0)
    expected = logits_of(model, source, target[2:])
    for position in range(2, LENGTH):
        ids = ops.convert_to_tensor(target[2:, position])
        logits, state = model.decode_step(ids, parents[:1], state)
        assert_close(logits, expected[:, position])
    encoded = model.encode(source)
    attention = model.attention(target[2:], *encoded)
    summed = ops.convert_to_numpy(attention).mean(axis=1).sum(axis=1)
    assert_close(state["coverage"][0], summed)


def test_a_source_of_padding_decodes_alike_with_and_without_cache(rng):
    model = random_model(rng)
    source = np.zeros_like(SOURCE)
    expected = logits_of(model, source, TARGET_IN)
    state = model.start_decoding(source, LENGTH)
    for position in range(LENGTH):
        ids = ops.convert_to_tensor(TARGET_IN[:, position])
        logits, state = model.decode_step(ids, own_places(2, 1), state)
        assert_close(logits, expected[:, position])


def test_sinusoidal_model_reads_sentences_longer_than_any_setting(rng):
    model = random_model(rng)
    length = 3 * SIZES["max_positions"]
    source = rng.integers(4, 29, size=(1, length))
    assert np.isfinite(logits_of(model, source, TARGET_IN[:1])).all()
