"""Attention over some axes of inputs that have more than three."""

from __future__ import annotations

import math

from keras import ops

from keras_transformer.kernels.execution import shape_of


def given_axes(axes):
    """Returns the argument `attention_axes` as a tuple, or `None`.

    Args:
        axes: An integer, a list or tuple of them, or `None`.

    Raises:
        ValueError: If it is something else.

    Example:
        >>> given_axes(2)
        (2,)
    """
    if axes is None:
        return None
    axes = (axes,) if isinstance(axes, int) else axes
    is_list = isinstance(axes, list | tuple) and len(axes) > 0
    if not is_list or not all(isinstance(axis, int) for axis in axes):
        raise ValueError(
            "`attention_axes` must be an axis or several, integers. Received: "
            f"attention_axes={axes!r}"
        )
    return tuple(axes)


def attended_axes(axes, rank):
    """Returns the axes that attention goes over, counted from the front.

    Args:
        axes: Integers, negative ones counted from the end, or `None` for all but the
            first and the last.
        rank: Rank of the inputs.

    Raises:
        ValueError: If one is the batch's or the features' axis, or given twice.

    Example:
        >>> attended_axes((-2,), rank=4)
        (2,)
    """
    if axes is None:
        return tuple(range(1, rank - 1))
    counted = tuple(axis + rank if axis < 0 else axis for axis in axes)
    inner = all(0 < axis < rank - 1 for axis in counted)
    if not inner or len(set(counted)) < len(counted):
        raise ValueError(
            "`attention_axes` must be different axes between the first (the batch) and "
            f"the last (the features). Received: attention_axes={axes}, inputs of rank "
            f"{rank}"
        )
    return counted


def scores_shape(axes, num_heads, query_shape, value_shape):
    """Returns the shape of the scores: (B, others..., H, T..., S...).

    Args:
        axes: Those attended over, from `attended_axes`.
        num_heads: Heads, H.
        query_shape: Shape of the query, (B, ..., D_query).
        value_shape: Shape of the value, (B, ..., D_value).
    """
    others = [i for i in range(1, len(query_shape) - 1) if i not in axes]
    targets, sources = (
        [shape[i] for i in axes] for shape in (query_shape, value_shape)
    )
    return (*(query_shape[i] for i in (0, *others)), num_heads, *targets, *sources)


class AxesFolding:
    """Brings inputs of more than three axes to three, and the results back.

    Inputs (B, ..., D) become (B', T, D): the axes attended over are joined to T
    positions, and the others join the batch.

    Args:
        axes: Those attended over, from `attended_axes`.
        query: Float tensor (B, ..., D_query).
        value: Float tensor (B, ..., D_value), of the same rank.
    """

    def __init__(self, axes, query, value):
        rank = len(query.shape)
        self.axes = axes
        self.others = tuple(i for i in range(1, rank - 1) if i not in axes)
        query_sizes, value_sizes = shape_of(query), shape_of(value)
        self.batch = tuple(query_sizes[i] for i in (0, *self.others))
        self.targets = tuple(query_sizes[i] for i in axes)
        self.sources = tuple(value_sizes[i] for i in axes)

    def fold_all(self, inputs, mask):
        """Folds inputs, one that is given twice only once, and their mask or `None`."""
        folded = {id(one): self._fold(one) for one in inputs}
        mask = None if mask is None else self._fold_mask(mask)
        return tuple(folded[id(one)] for one in inputs), mask

    def _fold(self, inputs):
        """(B, ..., D) --> (B', T, D)."""
        order = (0, *self.others, *self.axes, len(inputs.shape) - 1)
        sizes = shape_of(inputs)
        length = math.prod(sizes[i] for i in self.axes)
        rows = ops.transpose(inputs, order)
        return ops.reshape(rows, (math.prod(self.batch), length, inputs.shape[-1]))

    def unfold(self, outputs):
        """(B', T, ...) --> (B, ..., ...), the axes where they were in the query."""
        own = tuple(outputs.shape[2:])
        outputs = ops.reshape(outputs, (*self.batch, *self.targets, *own))
        order = (0, *self.others, *self.axes)
        back = [order.index(i) for i in range(len(order))]
        return ops.transpose(
            outputs, (*back, *range(len(order), len(order) + len(own)))
        )

    def _fold_mask(self, mask):
        """(B, others..., H, T..., S...), sizes 1 included --> (B', H or 1, T, S)."""
        heads = mask.shape[len(self.batch)]
        full = (*self.batch, heads, *self.targets, *self.sources)
        folded = (math.prod(self.batch), heads)
        folded += (math.prod(self.targets), math.prod(self.sources))
        return ops.reshape(ops.broadcast_to(mask, full), folded)

    def unfold_weights(self, weights):
        """(B', H, T, S) --> (B, others..., H, T..., S...), as Keras returns them."""
        heads = weights.shape[1]
        return ops.reshape(weights, (*self.batch, heads, *self.targets, *self.sources))
