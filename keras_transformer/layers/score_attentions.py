"""Attention with ReLU in place of softmax."""

from __future__ import annotations

from typing import Self

import keras
from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.attention import additive_scores, attention_by_scores
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.relative_positions import RotaryPositions
from keras_transformer.types import Shape, Tensor, TensorLike


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


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAdditiveAttention(MultiHeadAttention):
    """Multi-head attention whose heads score by a small network each.

    score_h(q, k) = w_h . tanh(q + k) with the head's projected query and key, in place
    of their product: the alignment model of Bahdanau et al., 2015,
    https://arxiv.org/abs/1409.0473 (appendix A.1.2), in each head. The scores are not
    divided by sqrt(key_dim). Everything else is that of `MultiHeadAttention`.

    Takes memory for T * S vectors of width `key_dim` in each head.

    Args:
        num_heads: Heads, h in the paper of multi-head attention.
        key_dim: Width of each head's queries and keys, and so of its network.
        value_dim: Width of each head's values; default `key_dim`.
        dropout: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections add a bias.
        output_shape: Width of the output, or a tuple of its last axes; default the
            width of `query`.
        attention_axes: Axis or axes of the inputs to attend over; default all but the
            first (the batch) and the last (the features).
        sliding_window: Queries see keys less than this many positions away; default
            `None`: at any distance.
        flash_attention: `None` or `False`: no fused kernel has such scores.
        kernel_initializer: Initializer of the projections' matrices and of w.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices and of w.
        bias_regularizer: Regularizer of the biases.
        activity_regularizer: Regularizer of what each projection gives (queries, keys,
            values, gate and output), as in Keras.
        kernel_constraint: Constraint of the matrices and of w.
        bias_constraint: Constraint of the biases.
        use_gate: Whether each head's output is multiplied by a sigmoid of one more
            projection of the query: Qiu et al., 2025, https://arxiv.org/abs/2505.06708.
        seed: Integer seed of the dropout.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; default
            `num_heads`. Fewer make a smaller cache (grouped-query attention: Ainslie et
            al., 2023, https://arxiv.org/abs/2305.13245); 1 is multi-query attention.
        positions: "alibi", or an object that adds to the scores: how positions enter
            self-attention itself; default `None`: they do not.
        dropout_rate: Another name for `dropout`.
        output_dim: Another name for `output_shape`.
    Call arguments:
        query: Float tensor (B, T, D_query), or (B, ..., D_query) with more axes.
        value: Float tensor (B, S, D_value); default `query`, which is self-attention.
        key: Float tensor (B, S, D_key); default `value`.
        query_mask: As of `MultiHeadAttention`, like the other masks.
        value_mask: Boolean tensor (B, S).
        key_mask: Boolean tensor (B, S).
        attention_mask: Boolean or integer tensor (T, S), (B, T, S) or (B, H, T, S).
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
        ValueError: As `MultiHeadAttention`, and for `flash_attention=True` and rotary
            positions.
        TypeError: If an input is no tensor, or a mask has another type.

    Example:
        >>> attention = MultiHeadAdditiveAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    @property
    def score_scale(self) -> float:
        """What queries are multiplied by: 1, they are not scaled."""
        return 1.0

    def _make_parts(self, *options):
        if self.flash_attention:
            raise ValueError(
                "`flash_attention` must be None or False: no fused kernel has additive "
                "scores. Received: flash_attention=True"
            )
        super()._make_parts(*options)

    def _set_positions(self, positions):
        super()._set_positions(positions)
        if isinstance(self.relative_positions, RotaryPositions):
            raise ValueError(
                '`positions` must add to the scores, as "alibi" does: the sum of a '
                "turned query and a turned key does not tell their distance. Received: "
                f"positions={positions!r}"
            )

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Raises `TypeError`: no attention of Keras has heads with such scores."""
        raise TypeError(
            "`from_keras` needs a layer that computes the same, and Keras has no "
            "multi-head attention with additive scores; use `MultiHeadAttention`. "
            f"Received: {type(layer).__name__}"
        )

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:  # fmt: skip
        super().build(query_shape, value_shape, key_shape)
        # Each head's w is a column: initializers take the first axis for the inputs.
        self.score_kernel = self.add_weight(
            (self.key_dim, self.num_heads), name="score_kernel",
            **self.projections.kernel_options(),
        )  # fmt: skip

    def _attend(self, queries, keys, values, mask, dropout, fused=False):
        bias = None
        if self.positions is not None:
            places = ops.arange(shape_of(queries)[2], dtype="int32")
            queries, keys = self._place(queries, keys, places)
            bias = self._position_bias(places, places)
        scores = self._scores(queries, keys)
        return attention_by_scores(scores, values, mask, bias, self.weigh, dropout)

    def _attend_step(
        self, queries, keys, values, mask, by_row=False, position_bias=None
    ):
        scores = self._scores(queries, keys)
        return attention_by_scores(scores, values, mask.mask, position_bias, self.weigh)

    def _scores(self, queries, keys):
        """(B, H, T, K) and (B, G, S, K) --> (B, H, T, S)."""
        copies = self.num_heads // keys.shape[1]
        keys = ops.repeat(keys, copies, axis=1) if copies > 1 else keys
        # Outside of `__call__` Keras does not cast the weights.
        kernel = ops.cast(self.score_kernel, queries.dtype)
        return additive_scores(queries, keys, ops.transpose(kernel))
