"""Scores of given outputs against the NumPy reference and against the search."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding import sample
from keras_transformer.decoding.tokens import score_in_parts, token_log_probabilities
from tests.decoding.table_steps import (
    IDS,
    history_state,
    history_step,
    next_logits,
    numpy,
    random_logits,
)
from tests.layers.reference_weights import model_weights_of
from tests.models.transformer_cases import (
    SIZES,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    random_model,
)
from tests.reference import numpy_transformer as reference


def test_the_models_scores_are_the_references(rng):
    model = random_model(rng)
    logits = model((SOURCE, TARGET_IN))
    expected = reference.log_softmax(
        reference.transformer(
            SOURCE, TARGET_IN, model_weights_of(model), SIZES["num_heads"]
        )
    )
    expected = np.take_along_axis(expected, TARGET_OUT[..., None], axis=-1)[..., 0]
    expected[TARGET_OUT == 0] = 0.0
    result = numpy(token_log_probabilities(logits, TARGET_OUT))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert result[TARGET_OUT == 0].tolist() == [0.0, 0.0]


def test_an_output_has_the_score_that_drew_it():
    table = random_logits(1, sentences=5, vocabulary=11)
    result = sample(
        history_step(table), history_state(range(5)), temperature=np.full(5, 2.0),
        uniforms=np.random.default_rng(1).random((5, 7)), max_lengths=[3, 5, 7, 7, 7],
        limit=7, special_ids=IDS,
    )  # fmt: skip
    ids = numpy(result.ids)[:, 0]
    logits = np.array(
        [
            [next_logits(table[row], tokens[:position]) for position in range(7)]
            for row, tokens in enumerate(ids)
        ]
    )
    totals = numpy(token_log_probabilities(logits, ids, IDS.pad_id)).sum(axis=1)
    np.testing.assert_allclose(totals, numpy(result.log_probabilities)[:, 0], rtol=1e-5)


def test_a_search_and_a_score_share_the_closed_form():
    logits = np.zeros((1, 3, 8), "float32")
    result = token_log_probabilities(logits, np.array([[5, 2, 0]]))
    np.testing.assert_allclose(numpy(result), [[-np.log(8), -np.log(8), 0]], rtol=1e-6)


@pytest.mark.parametrize("value", [-np.inf, np.nan, np.inf])
def test_padding_is_zero_whatever_its_logits(value):
    logits = np.zeros((1, 2, 5), "float32")
    logits[0, 1] = value
    result = token_log_probabilities(logits, np.array([[3, 0]]))
    np.testing.assert_allclose(numpy(result), [[-np.log(5), 0.0]], rtol=1e-6)


def test_padding_may_have_any_id():
    logits = np.zeros((1, 3, 5), "float32")
    result = token_log_probabilities(logits, np.array([[0, 2, 4]]), pad_id=4)
    np.testing.assert_allclose(numpy(result), [[-np.log(5)] * 2 + [0.0]], rtol=1e-6)


def test_large_and_bfloat16_logits_are_normalised_in_float32():
    large = np.full((1, 1, 1000), 3e4, "float32")
    for logits in (large, ops.cast(large, "bfloat16")):
        result = token_log_probabilities(logits, np.array([[7]]))
        np.testing.assert_allclose(numpy(result), [[-np.log(1000)]], rtol=1e-3)


def test_what_cannot_be_has_minus_infinity():
    logits = np.zeros((1, 2, 5), "float32")
    logits[0, 0, 3] = -np.inf
    target = np.array([[3, 2]])
    assert numpy(token_log_probabilities(logits, target))[0, 0] == -np.inf


@pytest.mark.parametrize("batch,length", [(3, 1), (3, 8), (2, 19), (1, 16), (0, 5)])
def test_scoring_in_parts_is_scoring_at_once(batch, length, rng):
    states = rng.normal(size=(batch, length, 5)).astype("float32")
    kernel = rng.normal(size=(5, 11)).astype("float32")
    target_out = rng.integers(1, 11, (batch, length))
    target_out[:, length // 2 + 1 :] = 0
    widest = []

    def project(states):
        widest.append(states.shape[1])
        return ops.matmul(states, kernel)

    result = numpy(score_in_parts(project, states, target_out))
    expected = token_log_probabilities(ops.matmul(states, kernel), target_out)
    np.testing.assert_allclose(result, numpy(expected), rtol=1e-5, atol=1e-6)
    assert set(widest) == {8}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow graph")
def test_scoring_in_parts_needs_no_shape_before_it_runs(rng):
    import tensorflow as tf

    kernel = rng.normal(size=(5, 11)).astype("float32")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None, 5], "float32"),
            tf.TensorSpec([None, None], "int32"),
        ]
    )
    def score(states, target_out):
        return score_in_parts(lambda x: ops.matmul(x, kernel), states, target_out)

    for batch, length in ((3, 11), (2, 0), (0, 7)):
        states = rng.normal(size=(batch, length, 5)).astype("float32")
        target_out = rng.integers(0, 11, (batch, length)).astype("int32")
        expected = token_log_probabilities(states @ kernel, target_out)
        result = score(states, target_out)
        np.testing.assert_allclose(result, numpy(expected), rtol=1e-5, atol=1e-6)
