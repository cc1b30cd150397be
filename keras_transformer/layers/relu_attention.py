"""Attention with ReLU in place of softmax."""

from __future__ import annotations

from typing import Self

import keras
from keras import ops

from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.types import Tensor, TensorLike


def masked_relu(scores: TensorLike, mask: TensorLike | None = None) -> Tensor:
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
    Everything else is that of `MultiHeadAttention`.

    Args:
        num_heads: Heads, h in the paper.
        key_dim: Width of each head's queries and keys, d_k in the paper.
        value_dim: Width of each head's values, d_v in the paper; default `key_dim`.
        dropout: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections add a bias.
        output_shape: Width of the output, or a tuple of its last axes; default the
            width of `query`.
        attention_axes: Axis or axes of the inputs to attend over; default all but the
            first (the batch) and the last (the features).
        sliding_window: Queries see keys less than this many positions away; default
            `None`: at any distance.
        flash_attention: `None` or `False`: a fused kernel computes a softmax.
        kernel_initializer: Initializer of the projections' matrices.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        activity_regularizer: Regularizer of what each projection gives (queries before
            they are scaled, keys, values, gate and output), as in Keras.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
        use_gate: Whether each head's output is multiplied by a sigmoid of one more
            projection of the query: Qiu et al., 2025, https://arxiv.org/abs/2505.06708.
        seed: Integer seed of the dropout.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; default
            `num_heads`. Fewer make a smaller cache (grouped-query attention: Ainslie et
            al., 2023, https://arxiv.org/abs/2305.13245); 1 is multi-query attention.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter self-attention itself; default `None`: they do not.
        dropout_rate: Another name for `dropout`.
        output_dim: Another name for `output_shape`.
    Call arguments:
        query: Float tensor (B, T, D_query), or (B, ..., D_query) with more axes.
        value: Float tensor (B, S, D_value); default `query`, which is self-attention.
        key: Float tensor (B, S, D_key); default `value`.
        query_mask: Boolean tensor (B, T), True where a query may attend at all. One
            that `query` merely carries is passed on and changes nothing else.
        value_mask: Boolean tensor (B, S), True where a position may be attended to;
            default the Keras mask that `value` carries.
        key_mask: The same of `key`; what both allow is allowed.
        attention_mask: Boolean or integer tensor (T, S), (B, T, S) or (B, H, T, S),
            True or not 0 where a query may attend to a key, besides what the masks
            above allow. With `attention_axes` each axis stands in place of T and of S,
            after the other axes.
        return_attention_scores: Whether the attention weights are returned too.
        training: Whether dropout is applied.
        use_causal_mask: Whether query t attends to keys 0 to t alone.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), True where a position may
            be attended to; it replaces the masks that the inputs carry.
        return_attention_weights: Another name for `return_attention_scores`.
    Returns:
        Float tensor (B, T, output_dim); with `return_attention_scores` a tuple of it
        and the attention weights (B, H, T, S) before dropout.
    Raises:
        ValueError: If a size is not positive, a rate is outside [0, 1), `positions` is
            not known, a `value` is given with `positions`, or inputs or masks do not
            fit each other.
        TypeError: If an input is no tensor, or a mask has another type.

    Example:
        >>> attention = ReluAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Raises `TypeError`: Keras' attention weighs with a softmax."""
        raise TypeError(
            "`from_keras` needs a layer that computes the same, and Keras' attention "
            "weighs with a softmax; use `MultiHeadAttention`. Received: "
            f"{type(layer).__name__}"
        )

    def weigh(self, scores: TensorLike, mask: TensorLike | None = None) -> Tensor:
        return masked_relu(scores, mask)
