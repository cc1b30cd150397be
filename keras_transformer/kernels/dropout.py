"""Dropout with a mask hashed from positions, a few integer operations an element."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer.kernels.execution import in_tensorflow_graph, shape_of

# Decisions are made of 16 bits.
STEPS = 2**16
# A seed generator counts its draws in the second number of its state; the bits above
# these hold the number of the replica, so that each drops other units.
COUNTER_BITS = 22
# Odd constants of MurmurHash3 and xxHash and the golden ratio, all times 2^32.
GOLDEN, MIX_1, MIX_2, MIX_3 = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35, 0x7FEB352D
SEED_FACTOR, CALL_FACTOR = 0x27D4EB2F, 0x165667B1


def threshold_of(rate):
    """Returns the share to drop in units of 1 / 65536."""
    return round(rate * STEPS)


def hashed_dropout(inputs, rate, state):
    """Sets a random share of the inputs to 0 and scales up the others.

    Args:
        inputs: Float tensor (...).
        rate: Share to drop, in (0, 1).
        state: Integer tensor (2,): seed and number of the call.

    Returns:
        Float tensor (...).
    """
    if in_tensorflow_graph():
        return _drop_in_graph(inputs, *keep_and_scale(shape_of(inputs), rate, state))
    keep, scale = keep_and_scale(shape_of(inputs), rate, state)
    # A product with the mask would keep what is not finite.
    return ops.where(keep, inputs * scale, ops.zeros_like(inputs))


def _drop_in_graph(inputs, keep, scale):
    """As the general line, with the cheapest operations of a graph.

    A selection takes longer than a product.
    """
    factors = ops.cast(keep, inputs.dtype) * scale

    @ops.custom_gradient
    def drop(inputs):
        return inputs * factors, lambda upstream: upstream * factors

    return drop(inputs)


def keep_and_scale(shape, rate, state):
    """Decides which elements are kept.

    Args:
        shape: Shape of the tensor, of integers or scalar tensors.
        rate: Share to drop, in (0, 1).
        state: Integer tensor (2,): seed and number of the call.

    Returns:
        Boolean tensor of that shape, True where an element is kept, and the factor on
        what is kept.
    """
    threshold = threshold_of(rate)
    mask = _packed_keep_mask if in_tensorflow_graph() else keep_mask
    return mask(shape, threshold, state), STEPS / (STEPS - threshold)


def keep_mask(shape, threshold, state):
    """Decides which elements are kept.

    Args:
        shape: Shape of the tensor, of integers or scalar tensors.
        threshold: Share to drop, in 1 / 65536.
        state: Integer tensor (2,): seed and number of the call.

    Returns:
        Boolean tensor of that shape, True with the probability
        1 - threshold / 65536.
    """
    num_rows, num_columns = _as_matrix(shape)
    columns = ops.arange(num_columns, dtype="int32")
    row_keys = _keys(ops.arange(num_rows, dtype="int32"), state)
    # Columns 2 j and 2 j + 1 are the halves of word j.
    column_keys = _keys(num_rows + columns // 2, state)
    shifts = ops.cast(columns % 2 * 16, "uint32")
    words = ops.right_shift(_words(row_keys, column_keys), shifts)
    bits = ops.bitwise_and(words, _uint32(STEPS - 1))
    return ops.reshape(ops.greater_equal(bits, _uint32(threshold)), shape)


def _packed_keep_mask(shape, threshold, state):
    """As `keep_mask`, two elements at a time and in as few nodes as will do."""
    import tensorflow as tf

    num_rows, num_columns = _as_matrix(shape)
    num_words = (num_columns + 1) // 2
    # TensorFlow computes ranges of int64, not those of int32, on a GPU, and slices of
    # uint32, but does not split them there.
    keys = _keys(tf.range(tf.cast(num_rows + num_words, tf.int64)), state)
    words = _words(keys[:num_rows], keys[num_rows:])
    keep = tf.bitcast(words, tf.uint16) >= tf.constant(threshold, tf.uint16)
    if not isinstance(num_columns, int) or num_columns % 2:
        keep = tf.reshape(keep, (num_rows, 2 * num_words))
        keep = tf.slice(keep, (0, 0), (num_rows, num_columns))
    return tf.reshape(keep, shape)


def _as_matrix(shape):
    """Rows and columns of the tensor as a matrix; the last axis may be very short."""
    num_trailing = 2 if len(shape) > 3 else 1
    num_rows = num_columns = 1
    for size in shape[:-num_trailing]:
        num_rows = num_rows * size
    for size in shape[-num_trailing:]:
        num_columns = num_columns * size
    return num_rows, num_columns


def _keys(places, state):
    """Hashes places (N,) with the seed and the call's number to uint32 (N,)."""
    state = ops.cast(state, "uint32")
    seed, call = state[0], state[1]
    keys = ops.cast(places, "uint32") * _uint32(GOLDEN) + seed
    keys = _fold(keys, 16) * _uint32(MIX_1)
    # The seed enters twice: one of another layer can be reached by going some rows on.
    keys = keys + (seed * _uint32(SEED_FACTOR) + call * _uint32(CALL_FACTOR))
    return _fold(_fold(keys, 13) * _uint32(MIX_2), 16)


def _words(row_keys, column_keys):
    """Hashes row and column keys to words (R, C)."""
    words = ops.bitwise_xor(
        ops.expand_dims(row_keys, 1), ops.expand_dims(column_keys, 0)
    )
    return _fold(words * _uint32(MIX_3), 16)


def _fold(words, bits):
    return ops.bitwise_xor(words, ops.right_shift(words, _uint32(bits)))


def _uint32(number):
    return ops.convert_to_tensor(np.uint32(number))


def of_this_replica(state):
    """Puts the number of the replica above the number of the call.

    What it has marked already, the same replica leaves as it is.

    Args:
        state: Integer tensor (2,) of TensorFlow: seed and number of the call.

    Returns:
        Integer tensor (2,).
    """
    import tensorflow as tf

    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    call = tf.bitwise.bitwise_and(state[1], 2**COUNTER_BITS - 1)
    return tf.stack([state[0], call + tf.cast(replica, state.dtype) * 2**COUNTER_BITS])
