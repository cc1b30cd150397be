"""Decodes with an attention layer one position at a time, for the tests."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.decoding import cache_place
from tests.layers.reference_weights import assert_close, past_mask

# With TensorFlow a step in a graph goes ways of its own.
MODES = ("eager", "graph") if keras.backend.backend() == "tensorflow" else ("eager",)


def decode_steps(layer, inputs, hypotheses=1, room=2, mode="eager"):
    """Runs `layer.step` over inputs (B, T, D), the same for each hypothesis.

    Returns:
        For each hypothesis the outputs (B, T, D), arrays.
    """

    def decode(inputs):
        batch, length, _ = inputs.shape
        cache = layer.initial_cache(batch, hypotheses, length + room)
        weights = layer.step_weights()
        outputs = []
        for index in range(length):
            one = ops.repeat(inputs[:, index : index + 1], hypotheses, axis=1)
            mask = past_mask(index, length + room, hypotheses)
            place = cache_place(cache[0], hypotheses, ops.convert_to_tensor(index))
            output, cache = layer.step(one, cache, place, mask, weights)
            outputs.append(output)
        return ops.stack(outputs, axis=2)  # (B, N, T, D)

    if mode == "graph":
        import tensorflow as tf

        decode = tf.function(decode)
    outputs = ops.convert_to_numpy(decode(ops.convert_to_tensor(inputs)))
    return [outputs[:, hypothesis] for hypothesis in range(hypotheses)]


def check_state_follows_the_hypotheses(layer, rng, mode="eager"):
    """Hypotheses that change places and split take the past of their parents along.

    Args:
        layer: A built causal layer whose cache is a state of each hypothesis.
        rng: A `numpy.random.Generator`.
        mode: One of `MODES`.
    """
    batch, hypotheses, length, width = 2, 3, 5, 11
    inputs = rng.standard_normal((length, batch, hypotheses, width)).astype("float32")
    parents = rng.integers(hypotheses, size=(length, batch, hypotheses)).astype("int32")
    # One path from the start to each hypothesis of the last position.
    paths = np.zeros((batch, hypotheses, length, width), "float32")
    for index in range(length):
        paths = np.take_along_axis(paths, parents[index][..., None, None], axis=1)
        paths[:, :, index] = inputs[index]
    moved = [not np.array_equal(p, np.sort(p, axis=1)) for p in parents]
    assert any(moved)

    def decode(inputs, parents):
        cache = layer.initial_cache(batch, hypotheses, length)
        weights = layer.step_weights()
        for index in range(length):
            place = cache_place(cache[0], hypotheses, index, parents[index])
            output, cache = layer.step(inputs[index], cache, place, None, weights)
        return output

    if mode == "graph":
        import tensorflow as tf

        decode = tf.function(decode)
    output = decode(*map(ops.convert_to_tensor, (inputs, parents)))
    whole = layer(ops.convert_to_tensor(paths.reshape(-1, length, width)))
    expected = ops.convert_to_numpy(whole)[:, -1]
    assert_close(output, expected.reshape(batch, hypotheses, -1))
