"""Decodes with an attention layer one position at a time, for the tests."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.cache import cache_place
from tests.layers.reference_weights import past_mask

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
        weights = layer.decoding_weights("query", "key", "value")
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
