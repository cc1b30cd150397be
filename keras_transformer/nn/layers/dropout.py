"""Dropout, with masks that a processor makes quickly.

A TensorFlow graph without XLA makes a pass over memory for each operation, and a
training step takes longer for those than for products. `packed_keep_mask` makes fewer;
benchmarks/README.md has its gain.

Letters: R rows, C columns.
"""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.nn.kernels.execution import in_tensorflow_graph, num_replicas
from keras_transformer.nn.kernels.keras_private import custom_gradient
from keras_transformer.types import Tensor, TensorLike

# The mask of dropout is a hash of the seed, the call's number and the position: 16 bits
# an element, dropped if they are below `rate` times 2^16.
STEPS = 2**16
# Bits of the number of the call in the state of a seed generator; those above hold the
# number of the replica.
COUNTER_BITS = 22
# Odd constants of MurmurHash3 and xxHash, and the golden ratio times 2^32.
GOLDEN = np.uint32(0x9E3779B9)
MIX_1 = np.uint32(0x85EBCA6B)
MIX_2 = np.uint32(0xC2B2AE35)
MIX_3 = np.uint32(0x7FEB352D)
SEED_FACTOR = np.uint32(0x27D4EB2F)
CALL_FACTOR = np.uint32(0x165667B1)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Sets a random share of the inputs to 0 in training and scales up the others.

    As `keras.layers.Dropout`, but faster on a CPU: the mask is a hash of the seed, the
    call's number and the position. The same seed yields the same masks on TensorFlow
    and JAX; replicas of a TensorFlow strategy drop different units. A `rate` between 0
    and 1 is rounded to a multiple of 2^-16, at least 2^-16 and at most 1 - 2^-15.
    PyTorch, `noise_shape` and a `rate` of 1 use Keras' own dropout.

    Args:
        rate: Share of the units to drop, in [0, 1].
        noise_shape: Shape of the mask, broadcast to the inputs; default their shape.
        seed: Integer seed; default random.
    Call arguments:
        inputs: Float tensor (...).
        training: Whether to drop.
    Returns:
        Float tensor (...).
    Raises:
        ValueError: If `rate` is outside [0, 1].

    Example:
        >>> Dropout(0.5, seed=1)(np.ones((2, 3)), training=True)  # of 0 and 2
    """

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        if not training or self.rate == 0 or not self.makes_masks():
            return super().call(inputs, training=training)
        keep, scale = self.next_mask(ops.shape(inputs))
        return drop(inputs, keep, scale)

    def makes_masks(self) -> bool:
        """Whether `next_mask` says what is dropped; else only Keras' call does."""
        is_plain = self.rate < 1 and self.noise_shape is None
        return is_plain and keras.backend.backend() != "torch"

    def next_mask(self, shape):
        """Returns a mask of kept units, `None` for all, and their factor."""
        if self.rate == 0:
            return None, 1.0
        steps = STEPS
        # Any rate drops some and keeps some; the factor is finite in float16.
        threshold = min(max(round(self.rate * steps), 1), steps - 2)
        # The seed and the number of the call, which differs between replicas.
        state = self.seed_generator.next()
        state = of_this_replica(state) if num_replicas() > 1 else state
        # The tensor as a matrix; its last axis may be very short.
        trailing = 2 if len(shape) > 3 else 1
        sizes = math.prod(shape[:-trailing]), math.prod(shape[-trailing:])
        in_graph = in_tensorflow_graph()
        mask = packed_keep_mask if in_graph else keep_mask
        keep = ops.reshape(mask(*sizes, threshold, state), shape)
        return keep, steps / (steps - threshold)


def drop(inputs, keep, scale):
    """Sets inputs to 0 where `keep` is False, and scales the others."""
    if not in_tensorflow_graph():
        # A product would keep infinity and NaN.
        return ops.where(keep, inputs * scale, ops.zeros_like(inputs))
    factors = ops.cast(keep, inputs.dtype) * scale  # A selection takes longer.

    @custom_gradient
    def product(inputs):
        return inputs * factors, lambda upstream: upstream * factors

    return product(inputs)


def keep_mask(num_rows, num_columns, threshold, state):
    """Returns a mask (R, C), True with probability 1 - threshold / 65536."""
    # state: integers (2,), the seed and the number of the call
    num_words = (num_columns + 1) // 2
    # The keys of the rows, then those of pairs of columns.
    keys = _keys(ops.arange(num_rows + num_words, dtype="int32"), state)
    words = _words(keys[:num_rows], ops.repeat(keys[num_rows:], 2)[:num_columns])
    # Columns 2 j and 2 j + 1 are the halves of word j.
    is_odd = ops.bitwise_and(ops.arange(num_columns, dtype="int32"), 1)
    bits = ops.right_shift(words, ops.cast(is_odd * 16, "uint32"))
    bits = ops.bitwise_and(bits, np.uint32(STEPS - 1))
    return ops.greater_equal(bits, np.uint32(threshold))


def packed_keep_mask(num_rows, num_columns, threshold, state):
    """As `keep_mask`, two elements at a time, in few operations."""
    import tensorflow as tf

    num_words = (num_columns + 1) // 2
    # The keys of the rows, then those of pairs of columns. TensorFlow has ranges of
    # int64 and slices of uint32 on a GPU, but no ranges of int32 and no splits.
    keys = _keys(tf.range(tf.cast(num_rows + num_words, tf.int64)), state)
    words = _words(keys[:num_rows], keys[num_rows:])
    keep = tf.bitcast(words, tf.uint16) >= tf.constant(threshold, tf.uint16)
    if not isinstance(num_columns, int) or num_columns % 2:
        keep = tf.reshape(keep, (num_rows, 2 * num_words))
        keep = tf.slice(keep, (0, 0), (num_rows, num_columns))
    return keep


def _keys(places, state):
    """Returns hashes uint32 (N,) of places, the seed and the call's number."""
    state = ops.cast(state, "uint32")
    seed = state[0]
    call = state[1]
    keys = _fold(ops.cast(places, "uint32") * GOLDEN + seed, 16) * MIX_1
    # The seed enters twice: else another layer's would be a shift of the rows.
    keys = keys + (seed * SEED_FACTOR + call * CALL_FACTOR)
    return _fold(_fold(keys, 13) * MIX_2, 16)


def _words(row_keys, column_keys):
    """Returns words (R, C), hashes of row keys (R,) and column keys (C,)."""
    rows = ops.expand_dims(row_keys, 1)
    columns = ops.expand_dims(column_keys, 0)
    return _fold(ops.bitwise_xor(rows, columns) * MIX_3, 16)


def _fold(words, bits):
    return ops.bitwise_xor(words, ops.right_shift(words, np.uint32(bits)))


def of_this_replica(state):
    """Returns a state (2,) with the replica's number above the call's number."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None:  # outside the replicas
        return state
    replica = context.replica_id_in_sync_group
    call = tf.bitwise.bitwise_and(state[1], 2**COUNTER_BITS - 1)
    return tf.stack([state[0], call + tf.cast(replica, state.dtype) * 2**COUNTER_BITS])
