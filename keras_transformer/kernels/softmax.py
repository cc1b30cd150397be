"""The softmax of attention: masks, and weights dropped in training."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.execution import in_tensorflow_graph, shape_of
from keras_transformer.types import Tensor, TensorLike


def wide_dtype(*dtypes):
    """Returns the type to compute in: float32, or float64 if one of these is.

    Args:
        *dtypes: Float types of the inputs.
    """
    names = map(keras.backend.standardize_dtype, dtypes)
    return "float64" if "float64" in names else "float32"


def masked_softmax(scores: TensorLike, mask: TensorLike | None = None) -> Tensor:
    """Softmax over the last axis among the positions that the mask allows.

    Half-precision scores are normalised in float32. Masked scores get the lowest finite
    value of the type they are normalised in.

    Args:
        scores: Float tensor (..., S).
        mask: Boolean tensor that broadcasts to `scores`, True where a position takes
            part, or `None` for all.

    Returns:
        Float tensor (..., S) that sums to 1 over the last axis, or to 0 where the mask
        allows no position.

    Example:
        >>> mask = np.array([[True, True, False], [False, False, False]])
        >>> ops.convert_to_numpy(masked_softmax(np.zeros((2, 3)), mask)).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    dtype = keras.backend.standardize_dtype(scores.dtype)
    scores = ops.cast(scores, wide_dtype(dtype))
    if mask is None:
        return ops.cast(_softmax(scores), dtype)
    lowest = np.finfo(wide_dtype(dtype)).min
    weights = _softmax(ops.where(mask, scores, lowest))
    # Where nothing is allowed the softmax is uniform over masked positions: zero it.
    return ops.cast(ops.where(mask, weights, 0.0), dtype)


def _softmax(scores):
    if scores.shape[-1] == 1:
        # Keras takes a softmax over one position for a mistake and warns.
        return ops.exp(scores - scores)
    return ops.softmax(scores, axis=-1)


def dropped_weights(scores, mask=None, weigh=masked_softmax, dropout=None):
    """Turns scores into attention weights and drops some of them.

    Args:
        scores: Float tensor (B, H, T, S).
        mask: Boolean tensor that broadcasts to `scores`, or `None`.
        weigh: Function of scores and mask that gives the attention weights.
        dropout: `Dropout` layer in training, or `None` to drop nothing.

    Returns:
        The weights after dropout and those before, (B, H, T, S).
    """
    if dropout is None:
        weights = weigh(scores, mask)
        return weights, weights
    if weigh is masked_softmax and in_tensorflow_graph():
        return _dropped_softmax_in_graph(scores, mask, dropout)
    weights = weigh(scores, mask)
    return dropout(weights, training=True), weights


def _dropped_softmax_in_graph(scores, mask, dropout):
    """As `dropped_weights` with a softmax, in few passes over memory.

    With the dropped weights p, the weights w and t = p * upstream, the gradient is
    t - w sum(t), because p is zero where a weight is dropped or masked.
    """
    dtype = scores.dtype
    keep, factors = dropout.next_mask(shape_of(scores))
    alive = None
    if mask is not None:
        # A row without anything to attend to has weights of zero.
        alive = ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype)
        factors = alive * factors
    if keep is not None:
        factors = ops.cast(keep, dtype) * factors
    before = []

    @ops.custom_gradient
    def softmax(scores):
        wide = ops.cast(scores, wide_dtype(dtype))
        if mask is not None:
            # Adding is cheaper than selecting.
            wide = wide + attention_bias(mask, wide.dtype)
        weights = _softmax(wide)
        before.append(ops.cast(weights, dtype))
        dropped = before[0] * factors

        def gradient(upstream):
            products = ops.cast(dropped, wide.dtype) * ops.cast(upstream, wide.dtype)
            total = ops.sum(products, axis=-1, keepdims=True)
            return ops.cast(products - weights * total, dtype)

        return dropped, gradient

    dropped = softmax(scores)
    return dropped, before[0] if alive is None else before[0] * alive


def attention_bias(mask, dtype):
    """Returns the bias that, added to scores, has the effect of a mask.

    Args:
        mask: Boolean tensor, True where a query may attend to a key.
        dtype: Float type of the scores.

    Returns:
        Float tensor, 0 where the mask is True, very low elsewhere.
    """
    dtype = keras.backend.standardize_dtype(dtype)
    # Half of the lowest value: a score added to the lowest could overflow.
    lowest = float(np.finfo("float16" if dtype == "float16" else "float32").min) / 2
    return ops.cast(ops.where(mask, 0.0, lowest), dtype)


class PreparedMask(NamedTuple):
    """A mask that many layers share, and the bias that has the same effect.

    Attributes:
        mask: Boolean tensor that broadcasts to the scores.
        bias: `attention_bias` of it.
    """

    mask: Any
    bias: Any

    def __and__(self, mask):
        """Returns the prepared mask that allows what both allow."""
        bias = attention_bias(mask, self.bias.dtype)
        return PreparedMask(
            ops.logical_and(self.mask, mask), ops.minimum(self.bias, bias)
        )


def prepare_mask(mask, dtype):
    """Returns the `PreparedMask` of a boolean mask, for scores of a float type."""
    return PreparedMask(mask, attention_bias(mask, dtype))
