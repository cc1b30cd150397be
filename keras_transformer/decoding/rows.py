"""Moving hypotheses: a search writes, selects, repeats and reorders rows."""

from __future__ import annotations

import keras
from keras import ops


def write(ids, last_ids, position):
    """Returns `ids` (..., L) with `last_ids` (...) in column `position`."""
    columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(last_ids, -1), ids)


def select(x, indices):
    """Returns (B, J, L): of `x` (B, M, L), the entries at `indices` (B, J)."""
    batch, width, length = ops.shape(x)
    rows = _rows(indices, width)
    selected = ops.take(ops.reshape(x, (batch * width, length)), rows, axis=0)
    return ops.reshape(selected, (batch, indices.shape[1], length))


def _rows(indices, width):
    """Returns the flat positions (B * J,) of `indices` (B, J) in (B, width)."""
    starts = ops.arange(ops.shape(indices)[0], dtype="int32") * width
    return ops.reshape(ops.expand_dims(starts, 1) + indices, (-1,))


def repeat_rows(state, beam_size):
    """Returns `state` with each row repeated for the hypotheses of its sentence."""

    def repeat(leaf):
        leaf = ops.convert_to_tensor(leaf)
        one_row_each = beam_size == 1 or len(leaf.shape) == 0
        return leaf if one_row_each else ops.repeat(leaf, beam_size, axis=0)

    return keras.tree.map_structure(repeat, state)


def reorder_rows(state, parents):
    """Returns `state` with the rows of the hypotheses' parents (B, K)."""
    beam_size = parents.shape[1]
    if beam_size == 1:
        return state
    rows = _rows(parents, beam_size)

    def reorder(leaf):
        return ops.take(leaf, rows, axis=0) if len(leaf.shape) else leaf

    return keras.tree.map_structure(reorder, state)
