"""Attention with ReLU in place of softmax."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.layers.multi_head_attention import MultiHeadAttention


def masked_relu(scores, mask=None):
    """Positive scores divided by the number of positions that the mask allows.

    Section 3 of Wortsman et al., 2023, https://arxiv.org/abs/2309.08586, with the
    number of allowed positions as the length, so that padding changes nothing.

    Args:
        scores: Float tensor (..., S).
        mask: Boolean tensor that broadcasts to `scores`, True where a position takes
            part, or `None` for all.

    Returns:
        Float tensor (..., S), zeros where the mask allows no position. Its sum over the
        last axis is not 1.

    Example:
        >>> masked_relu(np.array([[3.0, -1.0, 6.0]]))  # [[1., 0., 2.]]
    """
    positive = ops.relu(scores)
    if mask is None:
        return positive / ops.cast(ops.shape(scores)[-1], positive.dtype)
    number = ops.sum(ops.cast(mask, positive.dtype), axis=-1, keepdims=True)
    return ops.where(mask, positive, 0.0) / ops.maximum(number, 1.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ReluAttention(MultiHeadAttention):
    """Multi-head attention whose weights are `masked_relu` of the scores.

    The weights of a query do not compete: many may be zero, and they need not sum to 1.
    Everything else, arguments included, is that of `MultiHeadAttention`.

    Example:
        >>> attention = ReluAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def weigh(self, scores, mask=None):
        return masked_relu(scores, mask)
