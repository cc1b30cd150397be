"""Normalisation, the softmax of attention, and dropout, in few passes over memory.

A TensorFlow graph without XLA makes a pass for each operation, and a training step
takes longer for those than for products. Functions named `..._in_graph` or
`packed_...` make fewer; benchmarks/README.md has their gains.

Letters: R rows, D width, B sentences, H heads, T queries, S keys.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import ops

from keras_transformer.nn.kernels.execution import in_tensorflow_graph
from keras_transformer.types import Tensor, TensorLike


def wide_dtype(*dtypes) -> str:
    """Returns float64 if one of these is, else float32."""
    names = map(keras.backend.standardize_dtype, dtypes)
    return "float64" if "float64" in names else "float32"


def normalise(inputs, gamma, beta, epsilon):
    """Normalises the last axis (..., D) in at least float32, then scales and shifts."""
    dtype = wide_dtype(inputs.dtype, gamma.dtype)
    mean = functools.partial(ops.mean, axis=-1, keepdims=True)
    total = functools.partial(ops.sum, axis=tuple(range(len(inputs.shape) - 1)))

    @ops.custom_gradient
    def normalised(inputs, gamma, beta):
        centred = inputs - mean(inputs)
        inverse = ops.rsqrt(mean(centred * centred) + epsilon)
        unit = centred * inverse

        def gradient(upstream):
            # (u - mean(u) - h mean(u h)) / deviation, h the unit vector, u its slopes
            slopes = upstream * gamma
            changes = slopes - mean(slopes) - unit * mean(slopes * unit)
            return changes * inverse, total(upstream * unit), total(upstream)

        return unit * gamma + beta, gradient

    inputs = ops.cast(inputs, dtype)
    gamma = ops.cast(gamma, dtype)
    beta = ops.cast(beta, dtype)
    return normalised(inputs, gamma, beta)


def masked_softmax(scores: TensorLike, mask: TensorLike | None = None) -> Tensor:
    """Returns the softmax over the last axis, among the positions that the mask allows.

    It is computed in at least float32.

    Args:
        scores: Float tensor (..., S).
        mask: Boolean tensor that broadcasts to `scores`, or `None`.

    Returns:
        Float tensor (..., S) that sums to 1, or to 0 where the mask allows no position.

    Example:
        >>> mask = np.array([[True, True, False], [False, False, False]])
        >>> ops.convert_to_numpy(masked_softmax(np.zeros((2, 3)), mask)).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    dtype = scores.dtype
    wide = wide_dtype(scores.dtype)
    scores = ops.cast(scores, wide)
    if mask is not None:
        scores = ops.where(mask, scores, np.finfo(wide).min)
    if scores.shape[-1] == 1:
        # Keras warns of a softmax over one position.
        weights = ops.exp(scores - scores)
    else:
        weights = ops.softmax(scores, axis=-1)
    if mask is not None:
        # Zero where nothing is allowed and the softmax is uniform.
        weights = ops.where(mask, weights, 0.0)
    return ops.cast(weights, dtype)


def dropped_softmax_in_graph(scores, mask, dropout):
    """As `dropout(masked_softmax(scores, mask), training=True)`."""
    dtype = scores.dtype
    wide = wide_dtype(scores.dtype)
    keep, factors = dropout.next_mask(ops.shape(scores))
    if mask is not None:
        # A row with no key to attend to has zero weights.
        factors = ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype) * factors
    if keep is not None:
        factors = ops.cast(keep, dtype) * factors

    @ops.custom_gradient
    def dropped_weights(scores):
        scores = ops.cast(scores, wide)
        if mask is not None:
            # Adding is cheaper than selecting.
            scores = scores + attention_bias(mask, wide)
        weights = ops.softmax(scores, axis=-1)
        dropped = ops.cast(weights, dtype) * factors

        def gradient(upstream):
            # w (u - sum(w u)), with u = factors * upstream; w u are the products.
            products = ops.cast(dropped, wide) * ops.cast(upstream, wide)
            total = ops.sum(products, axis=-1, keepdims=True)
            return ops.cast(products - weights * total, dtype)

        return dropped, gradient

    return dropped_weights(scores)


def attention_bias(mask, dtype):
    """Returns a bias that masks scores: 0, or a very low number where masked."""
    dtype = keras.backend.standardize_dtype(dtype)
    # Half of the lowest value, lest the sum overflow.
    lowest = float(np.finfo("float16" if dtype == "float16" else "float32").min) / 2
    return ops.cast(ops.where(mask, 0.0, lowest), dtype)


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


def drop(inputs, keep, scale):
    """Sets inputs to 0 where `keep` is False, and scales the others."""
    if not in_tensorflow_graph():
        # A product would keep infinity and NaN.
        return ops.where(keep, inputs * scale, ops.zeros_like(inputs))
    factors = ops.cast(keep, inputs.dtype) * scale  # A selection takes longer.

    @ops.custom_gradient
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
