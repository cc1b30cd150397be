"""Pre-training by hidden tokens: the model against NumPy, and which are hidden."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedAccuracy, MaskedCrossentropy
from keras_transformer.models.masked_language_model import (
    MaskedLanguageModel,
    MaskedTokens,
    mask_tokens,
)
from keras_transformer.models.tagger import Tagger
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import (
    IDS,
    VOCABULARY_SIZE,
    array,
    text_encoder,
    text_states,
)
from tests.reference import numpy_transformer

MASK_ID, FIRST_ID = 4, 5
MASKING = {
    "mask_id": MASK_ID,
    "first_id": FIRST_ID,
    "vocabulary_size": VOCABULARY_SIZE,
}
TARGETS = np.array([[0, 21, 0, 0, 5, 0, 0], [8, 0, 0, 7, 0, 0, 0]], "int32")


class TestBattery(EncoderModelBattery):
    model_class = MaskedLanguageModel
    inputs = IDS
    targets = TARGETS
    loss = MaskedCrossentropy()

    def model(self, **options):
        return MaskedLanguageModel(text_encoder(dtype=options.get("dtype")), **options)


@pytest.fixture
def model(rng):
    return randomise(MaskedLanguageModel(text_encoder()), rng)


def test_logits_agree_with_the_reference(model):
    expected = text_states(model.encoder, IDS) @ array(model.output_rows()).T
    assert_close(model(IDS), expected)
    states = model(IDS, return_states=True)
    assert_close(states, text_states(model.encoder, IDS))


def test_loss_is_that_of_the_hidden_tokens(model):
    """Without a metric of the logits no more than the hidden tokens' are computed."""
    logits = ops.convert_to_numpy(model(IDS))
    expected = numpy_transformer.label_smoothed_cross_entropy(logits, TARGETS, 0.0)
    for metrics in ([], [MaskedAccuracy()]):
        model.compile("sgd", MaskedCrossentropy(), metrics=metrics)
        results = model.evaluate(IDS, TARGETS, verbose=0, return_dict=True)
        np.testing.assert_allclose(results["loss"], expected, rtol=1e-5)
    accuracy = numpy_transformer.masked_accuracy(logits, TARGETS)
    np.testing.assert_allclose(results["accuracy"], accuracy, rtol=1e-6)


def test_a_subclass_with_its_own_logits_trains_on_them(model, rng):
    class Tempered(MaskedLanguageModel):
        trains_without_logits = False

        def logits(self, states):
            return 0.3 * super().logits(states)

    tempered = Tempered(model.encoder)
    logits = ops.convert_to_numpy(tempered(IDS))
    assert_close(logits, 0.3 * ops.convert_to_numpy(model(IDS)))
    expected = numpy_transformer.label_smoothed_cross_entropy(logits, TARGETS, 0.0)
    tempered.compile("sgd", MaskedCrossentropy())
    loss = tempered.evaluate(IDS, TARGETS, verbose=0)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_only_the_encoder_has_weights_and_goes_on_to_another_model(model):
    assert {id(w) for w in model.weights} == {id(w) for w in model.encoder.weights}
    tagger = Tagger(model.encoder, 3)
    assert_close(tagger.encoder(IDS), text_states(model.encoder, IDS))


def test_what_is_hidden_and_how():
    """15 %, of which 80 % are masks, 10 % random and 10 % as they were."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY_SIZE, (500, 401), "int32")
    shown, targets = mask_tokens(ids, np.random.default_rng(2), **MASKING)
    assert shown.dtype == targets.dtype == ids.dtype
    ordinary, chosen = ids >= FIRST_ID, targets != 0
    assert not chosen[~ordinary].any()
    np.testing.assert_array_equal(targets[chosen], ids[chosen])
    np.testing.assert_array_equal(shown[~chosen], ids[~chosen])
    assert chosen[ordinary].mean() == pytest.approx(0.15, abs=0.004)
    of_chosen, before = shown[chosen], ids[chosen]
    assert (of_chosen == MASK_ID).mean() == pytest.approx(0.8, abs=0.01)
    others = of_chosen[of_chosen != MASK_ID]
    assert set(others) == set(range(FIRST_ID, VOCABULARY_SIZE))
    # One random token in 24 is the one that was there.
    same = (of_chosen == before).mean()
    assert same == pytest.approx(0.1 + 0.1 / 24, abs=0.01)
    changed = others[others != before[of_chosen != MASK_ID]]
    counts = np.bincount(changed)[FIRST_ID:]
    assert counts.max() < 2 * counts.min()


def test_rate_is_the_share_of_the_hidden():
    ids = np.full((100, 100), 7)
    for rate in (0.3, 1.0):
        _, targets = mask_tokens(ids, np.random.default_rng(1), **MASKING, rate=rate)
        assert (targets != 0).mean() == pytest.approx(rate, abs=0.02)


def rows_of(targets):
    return sorted(map(tuple, targets))


def test_an_epoch_has_every_row_once():
    ids = np.arange(FIRST_ID, FIRST_ID + 21).reshape(7, 3)
    batches = MaskedTokens(ids, 3, **MASKING, rate=1.0)
    assert [len(batches[i][0]) for i in range(len(batches))] == [3, 3, 1]
    epochs = []
    for _ in range(2):
        epochs.append(np.concatenate([batches[i][1] for i in range(3)]))
        batches.on_epoch_end()
    assert rows_of(epochs[0]) == rows_of(epochs[1]) == rows_of(ids)
    assert (epochs[0] != epochs[1]).any()


def test_masks_are_new_every_epoch_and_the_same_with_the_same_seed():
    ids = np.tile(np.arange(FIRST_ID, 29), (5, 1))

    def two_epochs(seed):
        batches = MaskedTokens(ids, 5, **MASKING, seed=seed)
        first = batches[0]
        np.testing.assert_array_equal(batches[0], first)
        batches.on_epoch_end()
        return np.stack([first, batches[0]])

    once = two_epochs(seed=1)
    np.testing.assert_array_equal(two_epochs(seed=1), once)
    assert (once[0, 1] != once[1, 1]).any()
    assert (two_epochs(seed=2) != once).any()


@pytest.mark.slow
def test_pre_training_learns_what_stands_beside_what():
    """Every other token is the one before it, so a hidden one can be told."""
    rng = np.random.default_rng(1)
    ids = np.repeat(rng.integers(FIRST_ID, 13, (96, 4)), 2, axis=1)
    batches = MaskedTokens(ids, 32, MASK_ID, FIRST_ID, 13)
    model = MaskedLanguageModel(text_encoder())
    model.compile("adam", MaskedCrossentropy())
    model.optimizer.learning_rate = 0.01
    losses = model.fit(batches, epochs=25, verbose=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="`encoder` must have one id a token"):
        MaskedLanguageModel(text_encoder(num_features=3))
    generator = np.random.default_rng(1)
    for rate in (0, 1.1):
        with pytest.raises(ValueError, match=r"`rate` must be in \(0, 1\]"):
            mask_tokens(IDS, generator, **MASKING, rate=rate)
    for wrong in ({"mask_id": 0}, {"first_id": 4}, {"vocabulary_size": 5}):
        with pytest.raises(ValueError, match="The ids must be 0 < `mask_id` <"):
            MaskedTokens(IDS, 2, **(MASKING | wrong))
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer"):
        MaskedTokens(IDS, 0, **MASKING)
