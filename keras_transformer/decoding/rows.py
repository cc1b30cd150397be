"""Moving hypotheses: a search writes, picks and selects rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.types import Nest


def write(ids, last_ids, position):
    """Returns `ids` (..., L) with `last_ids` (...) in column `position`."""
    columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(last_ids, -1), ids)


def pick(x, indices):
    """Returns the entries of `x` (B, X) at `indices` (B, Y), as (B, Y)."""
    places = _flat_places(indices, x.shape[1])
    return ops.reshape(ops.take(ops.reshape(x, (-1,)), places), (-1, indices.shape[1]))


def select(x, indices):
    """Returns the entries of `x` (B, X, L) at `indices` (B, Y), as (B, Y, L)."""
    batch, width, length = ops.shape(x)
    places = _flat_places(indices, width)
    selected = ops.take(ops.reshape(x, (batch * width, length)), places, axis=0)
    return ops.reshape(selected, (batch, indices.shape[1], length))


def _flat_places(indices, width):
    """Returns where `indices` (B, Y) into rows of `width` lie in them all, (B * Y,)."""
    starts = ops.arange(ops.shape(indices)[0], dtype="int32") * width
    return ops.reshape(ops.expand_dims(starts, 1) + indices, (-1,))


def reordering(
    step: Callable[..., Any], state: Nest, beam_size: int
) -> tuple[Callable[..., Any], Nest]:
    """Makes a plain step function and its state fit a search.

    A plain step function knows nothing of hypotheses: `step(ids, state) -> (logits,
    state)`, where the first axis of each tensor of the state is the row. Its rows are
    repeated before the first step and reordered at each one, which copies the whole
    state; a step that keeps a large cache had better follow `parents` itself.

    Args:
        step: The plain step function.
        state: Its state before the first token, one row a sentence. A tensor of rank 0,
            such as a position counter, has no rows and is left alone.
        beam_size: Hypotheses of a sentence, N.

    Returns:
        The step function and the state for `beam_search`, with R = B * N rows.

    Example:
        >>> step, state = reordering(step, {"history": ids}, beam_size=4)
        >>> beam_search(step, state, beam_size=4, **options)
    """

    def repeat(leaf):
        leaf = ops.convert_to_tensor(leaf)
        has_rows = len(leaf.shape) > 0
        return ops.repeat(leaf, beam_size, axis=0) if has_rows else leaf

    def reordered(ids, parents, state):
        if beam_size > 1:
            order = _flat_places(parents, beam_size)
            state = keras.tree.map_structure(
                lambda leaf: ops.take(leaf, order, axis=0) if len(leaf.shape) else leaf,
                state,
            )
        return step(ids, state)

    return reordered, keras.tree.map_structure(repeat, state)
