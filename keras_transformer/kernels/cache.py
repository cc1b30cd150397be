"""What decoding keeps of the past: keys and values, or a state of each hypothesis.

Keys and values are written one position at a time. Ordinary operations copy a whole
cache to write one position; in a TensorFlow graph that TensorFlow itself runs, the
functions here write in place. A cache (B, H, L * N, K) has the entry l * N + n for
position l of hypothesis n. A hypothesis attends to all entries and a mask says which of
them are its own past, so that hypotheses change places without the cache being touched.

A layer may keep one state of each hypothesis instead, (B, N, W): `of_parents` lets it
follow the hypotheses.

B sentences, N hypotheses of each, H heads, L positions, K width of a head, W width of a
state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.kernels.execution import (
    compiled_by_xla,
    for_litert,
    in_tensorflow_graph,
)


def new_cache(sentences, heads, entries, width, dtype):
    """Returns an empty cache (B, H, L * N, K) with memory of its own."""
    shape = (sentences, heads, entries, width)
    if in_tensorflow_graph():
        import tensorflow as tf

        # A graph makes zeros of one shape one tensor, and writing to one cache would
        # write to all; this operation is never shared.
        return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=True)
    return ops.zeros(shape, dtype=dtype)


class Place(NamedTuple):
    """Where a position lies in every cache of one size.

    Attributes:
        position: Integer scalar, counted from 0.
        rows: Integer tensor (B * H,), the rows of N entries to write in a TensorFlow
            graph; else `None`.
        parents: Integer tensor (B, N), the hypothesis of the position before that each
            one continues; `None` if each continues itself.
    """

    position: Any
    rows: Any
    parents: Any = None


def cache_place(cache, hypotheses, position, parents=None):
    """Works out where a position lies, once for all caches of a size.

    Args:
        cache: Float tensor (B, H, L * N, K) of keys or values, or (B, N, W) of states.
        hypotheses: N.
        position: Integer scalar, counted from 0.
        parents: Integer tensor (B, N), or `None`, as `Place` has it.

    Returns:
        A `Place`.
    """
    if not in_tensorflow_graph() or len(cache.shape) == 3:
        return Place(position, None, parents)
    import tensorflow as tf

    sentences, _, entries, _ = tf.unstack(tf.shape(cache))
    first = tf.range(sentences * cache.shape[1]) * (entries // hypotheses)
    return Place(position, first + position, parents)


def of_parents(x, parents):
    """Returns what the hypotheses' parents have.

    Args:
        x: Tensor (B, N, W).
        parents: Integer tensor (B, N), or `None`, as `Place` has it.

    Returns:
        Tensor (B, N, W).
    """
    if parents is None:
        return x
    batch, hypotheses, width = ops.shape(x)
    parents = ops.convert_to_tensor(parents, dtype="int32")
    rows = ops.arange(batch, dtype="int32")[:, None] * hypotheses + parents
    taken = ops.take(ops.reshape(x, (-1, width)), ops.reshape(rows, (-1,)), axis=0)
    return ops.reshape(taken, (batch, hypotheses, width))


def write_position(cache, new, place):
    """Writes one position.

    Args:
        cache: Float tensor (B, H, L * N, K), which must not be used afterwards: in a
            TensorFlow graph it is overwritten.
        new: Float tensor (B, H, N, K).
        place: The position's `Place` in caches of this size.

    Returns:
        The cache with `new` at the entries of the position.
    """
    hypotheses, width = new.shape[2:]
    if place.rows is not None:
        import tensorflow as tf

        # Any other operation would copy the whole cache.
        rows = (-1, hypotheses * width)
        written = tf.raw_ops.InplaceUpdate(
            x=tf.reshape(cache, rows), i=place.rows, v=tf.reshape(new, rows)
        )
        known = None not in cache.shape[1:]
        shape = (-1, *cache.shape[1:]) if known else tf.shape(cache)
        return tf.reshape(written, shape)
    start = place.position * hypotheses
    if compiled_by_xla() or for_litert():
        zero = ops.zeros_like(start)
        return ops.slice_update(cache, (zero, zero, start, zero), new)
    parts = [cache[:, :, :start], new, cache[:, :, start + hypotheses :]]
    return ops.concatenate(parts, axis=2)


def resize_cache(cache, sentences, more):
    """Returns the cache of some sentences, with room for more.

    Args:
        cache: Float tensor (B, H, L * N, K).
        sentences: Integer tensor (B',), places of the sentences to keep.
        more: Entries to add, an integer or a scalar tensor.

    Returns:
        Float tensor (B', H, L * N + more, K).
    """
    kept = ops.take(cache, sentences, axis=0)
    return ops.pad(kept, ((0, 0), (0, 0), (0, more), (0, 0)))
