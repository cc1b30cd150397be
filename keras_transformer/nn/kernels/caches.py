"""Caches of decoding.

A cache (B, H, L * N, K) has the entry l * N + n for position l of hypothesis n. A mask
selects each hypothesis's own past, so hypotheses change places and caches do not move.
Writing one position copies the whole cache, except in a TensorFlow graph and on PyTorch
without gradients, which write in place. A layer may instead keep a state (B, N, W),
which follows by `of_parents`.

B sentences, N hypotheses of each, H heads, L positions, K and W widths.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.nn.kernels.execution import in_tensorflow_graph


def new_cache(shape, dtype):
    """Returns an empty cache (B, H, L * N, K) in memory of its own."""
    if in_tensorflow_graph():
        import tensorflow as tf

        # Zeros of one shape are one tensor in a graph; this operation is not shared.
        return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=True)
    return ops.zeros(shape, dtype=dtype)


class Place(NamedTuple):
    """The place of a position in every cache of one size."""

    position: Any  # integer scalar, counted from 0
    rows: Any  # (B * H,), rows of N entries to write in place, or `None`
    parents: Any = None  # (B, N), the hypothesis continued by each, or `None`


def cache_place(cache, hypotheses, position, parents=None):
    """Returns the `Place` of a position in keys or values, or in states (B, N, W)."""
    if not in_tensorflow_graph() or len(cache.shape) == 3:
        return Place(position, None, parents)
    import tensorflow as tf

    sentences, _, entries, _ = tf.unstack(tf.shape(cache))
    first = tf.range(sentences * cache.shape[1]) * (entries // hypotheses)
    return Place(position, first + position, parents)


def of_parents(x, parents):
    """Returns the entries of x (B, N, W) at the parents (B, N)."""
    return x if parents is None else pick(x, parents)


def pick(x, indices):
    """Returns the entries of `x` (B, X, ...) at `indices` (B, Y), as (B, Y, ...)."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, indices, batch_dims=1)  # one operation
    rows = ops.expand_dims(ops.arange(ops.shape(indices)[0]), 1)
    return ops.convert_to_tensor(x)[rows, ops.convert_to_tensor(indices)]


def write_position(cache, new, place):
    """Returns the cache (B, H, L * N, K) with one position (B, H, N, K) written."""
    # A TensorFlow graph overwrites the old one, as does PyTorch without gradients.
    hypotheses, width = new.shape[2:]
    if place.rows is None:
        start = ops.convert_to_tensor(place.position, "int32") * hypotheses
        if keras.backend.backend() == "torch":
            import torch

            if not torch.is_grad_enabled():
                entries = (start + ops.arange(hypotheses)).long()
                return cache.index_copy_(2, entries, new)
        zero = ops.zeros_like(start)
        return ops.slice_update(cache, (zero, zero, start, zero), new)
    import tensorflow as tf

    rows = (-1, hypotheses * width)
    written = tf.raw_ops.InplaceUpdate(
        x=tf.reshape(cache, rows), i=place.rows, v=tf.reshape(new, rows)
    )
    known = None not in cache.shape[1:]
    return tf.reshape(written, (-1, *cache.shape[1:]) if known else tf.shape(cache))


def resize_cache(cache, sentences, more):
    """Returns the cache of some sentences (B',), with room for more entries."""
    kept = ops.take(cache, sentences, axis=0)
    if len(kept.shape) != 4:  # a state (B, N, W)
        return kept
    return ops.pad(kept, ((0, 0), (0, 0), (0, more), (0, 0)))


def split_heads(projected, hypotheses, heads, width, count=1):
    """Cuts `count` projections (B * N, count * H * K) into parts (B, H, N, K)."""
    if count == 1 and hypotheses == 1:
        return [ops.reshape(projected, (-1, heads, 1, width))]
    parts = ops.reshape(projected, (-1, hypotheses, count, heads, width))
    return ops.unstack(transpose(parts, (2, 0, 3, 1, 4)), count)


def transpose(x, axes):
    """As `ops.transpose`; a graph moves integers, because oneDNN is slow at floats."""
    if not in_tensorflow_graph():
        return ops.transpose(x, axes)
    import tensorflow as tf

    integers = {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
    return tf.bitcast(tf.transpose(tf.bitcast(x, integers), axes), x.dtype)
