"""Scores of given outputs: in closed form, and in parts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding.tokens import score_in_parts, token_log_probabilities
from tests.decoding.table_steps import (
    numpy,
)


@pytest.mark.parametrize("of_padding", [0.0, -np.inf, np.nan, np.inf])
@pytest.mark.parametrize("pad_id", [0, 4])
def test_equal_logits_cost_the_log_of_their_number_and_padding_nothing(
    pad_id, of_padding
):
    logits = np.zeros((1, 3, 5), "float32")
    logits[0, 2] = of_padding
    found = numpy(token_log_probabilities(logits, np.array([[3, 2, pad_id]]), pad_id))
    np.testing.assert_allclose(found, [[-np.log(5), -np.log(5), 0.0]], rtol=1e-6)
    logits[0, 0, 3] = -np.inf  # What cannot be.
    found = numpy(token_log_probabilities(logits, np.array([[3, 2, pad_id]]), pad_id))
    assert found[0, 0] == -np.inf


def test_large_and_bfloat16_logits_are_normalised_in_float32():
    large = np.full((1, 1, 1000), 3e4, "float32")
    for logits in (large, ops.cast(large, "bfloat16")):
        result = token_log_probabilities(logits, np.array([[7]]))
        np.testing.assert_allclose(numpy(result), [[-np.log(1000)]], rtol=1e-3)


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
