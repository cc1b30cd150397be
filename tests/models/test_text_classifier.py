"""The sentence classifier against NumPy, and its laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models.text_classifier import TextClassifier
from keras_transformer.testing import assert_padding_invariant
from tests.layers.reference_weights import assert_close, randomise
from tests.models.encoder_battery import EncoderModelBattery
from tests.models.encoder_cases import (
    FEATURES,
    IDS,
    array,
    embedding_output,
    linear_weights_of,
    stack_output,
    text_encoder,
    text_states,
)
from tests.reference import numpy_encoders

NUM_CLASSES = 5
CLASSES = np.array([3, 1], "int32")
MASK = IDS != 0


class TestBatteryOfTheMean(EncoderModelBattery):
    model_class = TextClassifier
    inputs = IDS
    targets = CLASSES
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    pooling = "mean"

    def model(self, **options):
        encoder = text_encoder(dtype=options.get("dtype"))
        return TextClassifier(encoder, NUM_CLASSES, self.pooling, **options)


@pytest.mark.slow
class TestBatteryOfTheClassToken(TestBatteryOfTheMean):
    pooling = "class_token"


@pytest.fixture(params=["mean", "class_token"])
def model(request, rng):
    return randomise(TextClassifier(text_encoder(), NUM_CLASSES, request.param), rng)


def logits_of(model, ids):
    return ops.convert_to_numpy(model(ids))


def reference_state(model, ids):
    if model.pooling == "mean":
        return numpy_encoders.masked_mean(text_states(model.encoder, ids), ids != 0)
    states = numpy_encoders.with_class_token(
        embedding_output(model.encoder, ids), array(model.class_token.token)
    )
    mask = np.pad(ids != 0, ((0, 0), (1, 0)), constant_values=True)
    return stack_output(model.encoder.stack, states, mask[:, None])[:, 0]


def test_logits_agree_with_the_reference(model):
    expected = numpy_encoders.linear(
        reference_state(model, IDS), linear_weights_of(model.output_map)
    )
    assert expected.shape == (2, NUM_CLASSES)
    assert_close(logits_of(model, IDS), expected)
    assert_close(model.sentence_state(IDS), reference_state(model, IDS))


@pytest.mark.parametrize("pooling", ["mean", "class_token"])
def test_tokens_may_have_features(rng, pooling):
    encoder = text_encoder(num_features=3)
    model = randomise(TextClassifier(encoder, NUM_CLASSES, pooling), rng)
    assert_close(logits_of(model, FEATURES)[1:], logits_of(model, FEATURES[1:, :4]))


def test_padding_and_other_rows_change_nothing(model):
    assert_padding_invariant(model, IDS)


def test_every_token_bears_on_the_class(model):
    before = logits_of(model, IDS)
    for position in (0, 3, 6):
        changed = IDS.copy()
        changed[0, position] = 13
        after = logits_of(model, changed)
        assert np.abs(after - before)[0].max() > 1e-3
        assert_close(after[1], before[1])


def test_a_sentence_of_padding_alone_is_finite(model):
    padding = np.zeros((2, 3), "int32")
    state = ops.convert_to_numpy(model.sentence_state(padding))
    assert np.isfinite(state).all()
    if model.pooling == "mean":
        np.testing.assert_array_equal(state, np.zeros((2, 13)))


def test_bad_arguments_are_refused():
    with pytest.raises(TypeError, match="`encoder` must be a `TextEncoder`"):
        TextClassifier(None, 3)
    with pytest.raises(ValueError, match="`num_classes` must be a positive integer"):
        TextClassifier(text_encoder(), 0)
    with pytest.raises(ValueError, match="`pooling` must be 'mean' or 'class_token'"):
        TextClassifier(text_encoder(), 3, pooling="max")
