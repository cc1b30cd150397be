"""The tagger against NumPy, and its laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedAccuracy, MaskedCrossentropy
from keras_transformer.models.tagger import Tagger
from keras_transformer.testing import assert_padding_invariant
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import (
    FEATURES,
    IDS,
    linear_weights_of,
    text_encoder,
    text_states,
)
from tests.reference import numpy_encoders, numpy_transformer

NUM_TAGS = 11
TAGS = np.array([[3, 10, 1, 1, 7, 2, 5], [4, 1, 9, 6, 0, 0, 0]], "int32")


class TestBattery(EncoderModelBattery):
    model_class = Tagger
    inputs = IDS
    targets = TAGS
    loss = MaskedCrossentropy()

    def model(self, **options):
        return Tagger(text_encoder(dtype=options.get("dtype")), NUM_TAGS, **options)


@pytest.mark.slow
class TestBatteryOfFeatures(TestBattery):
    inputs = FEATURES

    def model(self, **options):
        encoder = text_encoder(num_features=3, dtype=options.get("dtype"))
        return Tagger(encoder, NUM_TAGS, **options)


@pytest.fixture(params=["tokens", "features"])
def case(request, rng):
    """A tagger and its ids."""
    num_features, ids = {"tokens": (None, IDS), "features": (3, FEATURES)}[
        request.param
    ]
    tagger = Tagger(text_encoder(num_features=num_features), NUM_TAGS)
    return randomise(tagger, rng), ids


def logits_of(tagger, ids):
    return ops.convert_to_numpy(tagger(ids))


def reference_logits(tagger, ids):
    states = text_states(tagger.encoder, ids)
    return numpy_encoders.linear(states, linear_weights_of(tagger.output_map))


def test_logits_agree_with_the_reference(case):
    tagger, ids = case
    logits = logits_of(tagger, ids)
    assert logits.shape == (2, 7, NUM_TAGS)
    assert_close(logits, reference_logits(tagger, ids))


def test_loss_and_accuracy_leave_padding_out(case):
    tagger, ids = case
    logits = reference_logits(tagger, ids)
    tagger.compile("sgd", MaskedCrossentropy(), metrics=[MaskedAccuracy()])
    results = tagger.evaluate(ids, TAGS, verbose=0, return_dict=True)
    expected = numpy_transformer.label_smoothed_cross_entropy(logits, TAGS, 0.0)
    np.testing.assert_allclose(results["loss"], expected, rtol=1e-5)
    accuracy = numpy_transformer.masked_accuracy(logits, TAGS)
    np.testing.assert_allclose(results["accuracy"], accuracy, rtol=1e-6)


def test_padding_and_other_rows_change_nothing(case):
    tagger, ids = case
    assert_padding_invariant(tagger, ids)


def test_every_token_bears_on_every_tag(case):
    tagger, ids = case
    before = logits_of(tagger, ids)
    for position in (0, 6):
        changed = ids.copy()
        changed[0, position] = 13
        after = logits_of(tagger, changed)
        assert (np.abs(after - before)[0].max(axis=-1) > 1e-4).all()
        assert_close(after[1], before[1])


def test_taggers_of_one_encoder_share_its_weights():
    encoder = text_encoder()
    first, second = Tagger(encoder, 3), Tagger(encoder, 5)
    shared = {id(weight) for weight in encoder.weights}
    assert shared and shared == {id(w) for w in first.weights} & {
        id(w) for w in second.weights
    }


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="`encoder` must be a `TextEncoder`"):
        Tagger(keras.layers.Dense(3), 3)
    with pytest.raises(ValueError, match="`num_tags` must be a positive integer"):
        Tagger(text_encoder(), 0)
