"""The operations of a training step that are worth a gradient of their own.

In a TensorFlow graph that XLA does not compile every operation is a pass over memory,
and a gradient that TensorFlow derives is many of them. Each function here does what its
general line does, in fewer passes, and is for such a graph only. Sums over rows are
products with ones: on a CPU they take half the time of a sum.
"""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.attention import wide_dtype


def normalise(inputs, gamma, beta, epsilon):
    """Normalises each row to mean 0 and variance 1, then scales and shifts.

    As `ops.layer_normalization` over the last axis, in float32. With the normalised
    row h and u = gamma * upstream, the gradient of the input is
    (u - mean(u) - h mean(u h)) / deviation.

    Args:
        inputs: Float tensor (..., D).
        gamma: Float32 tensor (D,).
        beta: Float32 tensor (D,).
        epsilon: Added to the variance.

    Returns:
        Float32 tensor (..., D).
    """

    @ops.custom_gradient
    def normalised(inputs, gamma, beta):
        rows = _rows(ops.cast(inputs, "float32"))
        centred = rows - _mean(rows)
        inverse = ops.rsqrt(_mean(centred * centred) + epsilon)
        unit = centred * inverse

        def gradient(upstream):
            upstream = _rows(ops.cast(upstream, "float32"))
            slopes = upstream * gamma
            changes = slopes - _mean(slopes) - unit * _mean(slopes * unit)
            return (
                ops.cast(_like(changes * inverse, inputs), inputs.dtype),
                _sum_of_rows(upstream * unit),
                _sum_of_rows(upstream),
            )

        return _like(unit * gamma + beta, inputs), gradient

    return normalised(inputs, gamma, beta)


def affine(inputs, kernel, bias):
    """Multiplies rows by a matrix and adds a bias.

    As `ops.matmul(inputs, kernel) + bias`.

    Args:
        inputs: Float tensor (N, D).
        kernel: Float tensor (D, E).
        bias: Float tensor (E,).

    Returns:
        Float tensor (N, E).
    """

    @ops.custom_gradient
    def mapped(inputs, kernel, bias):
        def gradient(upstream):
            return (
                ops.matmul(upstream, ops.transpose(kernel)),
                ops.matmul(ops.transpose(inputs), upstream),
                _sum_of_rows(upstream),
            )

        return ops.matmul(inputs, kernel) + bias, gradient

    return mapped(inputs, kernel, bias)


def dropped_softmax(scores, mask=None, keep=None, scale=1.0):
    """Computes attention weights and drops some.

    As `masked_softmax` and then dropout. With the dropped weights p, the weights w and
    t = p * upstream, the gradient is t - w sum(t): what is dropped or masked has a
    p of zero.

    Args:
        scores: Float tensor (B, H, T, S).
        mask: Boolean tensor that broadcasts to `scores`, or `None`.
        keep: Boolean tensor (B, H, T, S), False where a weight is dropped, or `None`.
        scale: Factor on the weights that are kept.

    Returns:
        The weights after dropout and those before, (B, H, T, S).
    """
    dtype = scores.dtype
    wide_type = wide_dtype(dtype)
    alive = None
    if mask is not None:
        # A row without anything to attend to has weights of zero.
        alive = ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype)
    factors = scale if alive is None else alive * scale
    if keep is not None:
        factors = ops.cast(keep, dtype) * factors
    before = []

    @ops.custom_gradient
    def softmax(scores):
        wide = ops.cast(scores, wide_type)
        if mask is not None:
            # A sum is cheaper than a selection. Half of the lowest value: a score
            # added to the lowest could overflow.
            lowest = float(np.finfo("float32").min) / 2
            wide = wide + ops.cast(ops.where(mask, 0.0, lowest), wide_type)
        weights = _softmax(wide)
        before.append(ops.cast(weights, dtype))
        dropped = before[0] * factors

        def gradient(upstream):
            products = ops.cast(dropped, wide_type) * ops.cast(upstream, wide_type)
            total = ops.sum(products, axis=-1, keepdims=True)
            return ops.cast(products - weights * total, dtype)

        return dropped, gradient

    dropped = softmax(scores)
    return dropped, before[0] if alive is None else before[0] * alive


def _softmax(scores):
    if scores.shape[-1] == 1:
        # Keras takes a softmax of one position for a mistake and warns.
        return ops.ones_like(scores)
    return ops.softmax(scores, axis=-1)


def _mean(rows):
    return ops.mean(rows, axis=-1, keepdims=True)


def _rows(tensor):
    """(..., D) --> (N, D)."""
    return ops.reshape(tensor, (-1, tensor.shape[-1]))


def _like(rows, tensor):
    return ops.reshape(rows, shape_of(tensor))


def _sum_of_rows(rows):
    """(N, D) --> (D,)."""
    ones = ops.ones((1, shape_of(rows)[0]), dtype=rows.dtype)
    return ops.reshape(ops.matmul(ones, rows), rows.shape[1:])
