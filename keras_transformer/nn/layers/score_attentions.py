"""Attention with ReLU weights or additive scores."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.nn.kernels.few_passes import masked_softmax
from keras_transformer.nn.kernels.keras_private import carried_mask
from keras_transformer.nn.layers.arguments import (
    check_known_width,
    check_rate,
    check_size,
)
from keras_transformer.nn.layers.attention import attention_spec, refuse_fused
from keras_transformer.nn.layers.basic import ComposedLayer, Dropout, project
from keras_transformer.nn.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.nn.layers.relative_positions import RotaryPositions
from keras_transformer.nn.masks import attention_mask
from keras_transformer.types import Shape, Tensor, TensorLike, WeightOptions


def masked_relu(scores: TensorLike, mask: TensorLike | None = None) -> Tensor:
    """Returns the positive scores divided by the number of allowed positions.

    Section 3 of Wortsman et al., 2023, which divides by the length, padding included.
    """
    positive = ops.relu(scores)
    if mask is None:
        return positive / ops.cast(ops.shape(scores)[-1], positive.dtype)
    number = ops.sum(ops.cast(mask, positive.dtype), axis=-1, keepdims=True)
    return ops.where(mask, positive, 0.0) / ops.maximum(number, 1.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ReluAttention(MultiHeadAttention):
    """Multi-head attention with weights ReLU(scores) / number of allowed positions.

    Wortsman et al., 2023, https://arxiv.org/abs/2309.08586. The weights need not sum to
    1. It is called like `MultiHeadAttention`.

    Args:
        *args: Arguments and options of `MultiHeadAttention`.

    Example:
        >>> attention = ReluAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    weigh = staticmethod(masked_relu)
    equals_keras = False


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAdditiveAttention(MultiHeadAttention):
    """Multi-head attention with additive scores.

    score_h(q, k) = w_h . tanh(q + k) with the projected query and key of head h, in
    place of their product: Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473
    (appendix A.1.2). The scores are not divided by sqrt(key_dim). Takes memory for T *
    S vectors of width `key_dim` in each head. It is called like `MultiHeadAttention`.

    Args:
        num_heads: See `MultiHeadAttention`, as for the rest.
        key_dim: Width of a head's queries and keys.
        *args: Other arguments of `MultiHeadAttention`.
        **options: Options of `MultiHeadAttention`; those of kernels apply to w.
    Raises:
        ValueError: As `MultiHeadAttention`, and for a fused kernel or rotary positions.

    Example:
        >>> attention = MultiHeadAdditiveAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    equals_keras = False

    def __init__(
        self, num_heads: int, key_dim: int, *args: Any, **options: Any
    ) -> None:
        super().__init__(num_heads, key_dim, *args, **options)
        self.query_scale = 1.0
        if self.flash_attention:
            refuse_fused("none has additive scores")
        if isinstance(self.positions, RotaryPositions):
            raise ValueError(
                "`positions` must not be 'rotary', which needs products of queries and "
                "keys: use 'alibi'. Received: positions='rotary'"
            )

    def add_own_weights(self) -> None:
        # Each head's w is a column: initializers take the first axis for the inputs.
        self.score_kernel = self.add_weight(
            (self.key_dim, self.num_heads),
            self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            name="score_kernel",
        )

    def score(self, queries: TensorLike, keys: TensorLike) -> Tensor:
        """(B, H, T, K) and (B, G, S, K) --> (B, H, T, S)."""
        copies = self.num_heads // keys.shape[1]
        keys = ops.repeat(keys, copies, axis=1) if copies > 1 else keys
        # Keras casts weights in `__call__` only.
        kernel = ops.cast(self.score_kernel, queries.dtype)
        return additive_scores(queries, keys, ops.transpose(kernel))


def additive_scores(queries, keys, kernel):
    """Returns w . tanh(q_t + k_s) (..., T, S) of queries and keys (..., T or S, U).

    `kernel` is w (U,), or one per head (H, U) for queries and keys (B, H, T or S, U).
    """
    hidden = ops.tanh(ops.expand_dims(queries, -2) + ops.expand_dims(keys, -3))
    by_head = len(kernel.shape) == 2
    columns = kernel[:, None, :, None] if by_head else kernel[:, None]
    return ops.matmul(hidden, columns)[..., 0]


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveAttention(ComposedLayer):
    """Attention with additive scores, one head, values not projected.

    score(q, k) = w . tanh(W_q q + W_k k): Bahdanau et al., 2015,
    https://arxiv.org/abs/1409.0473 (appendix A.1.2, W_a, U_a and v_a there), with W_q
    in `query_dense` and W_k in `key_dense`. Keras' layer of this name has no
    projections. For decoding, project the keys of a source once with `key_dense` and
    pass them to `attend` for each query.

    Args:
        units: Width of the hidden layer, U.
        dropout_rate: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projection of queries has a bias.
        **options: See `FeedForward`.
    Call arguments:
        query: Float tensor (B, T, D_query).
        value: Float tensor (B, S, D_value).
        key: Float tensor (B, S, D_key); default `value`.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), True where a position may
            be attended to; default the Keras mask of `key`.
        return_attention_scores: Whether to return the attention weights.
    Returns:
        Float tensor (B, T, D_value); with `return_attention_scores` also the attention
        weights (B, T, S) before dropout.
    Raises:
        ValueError: If `units` is not positive or the rate is outside [0, 1).

    Example:
        >>> attention = AdditiveAttention(units=8)
        >>> attention(np.ones((1, 3, 4)), np.ones((1, 5, 6))).shape  # (1, 3, 6)
    """

    def __init__(
        self,
        units: int,
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        **options: Unpack[WeightOptions],
    ) -> None:
        super().__init__(**options)
        check_size("units", units)
        check_rate("dropout_rate", dropout_rate)
        self.units = units
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.query_dense = self.dense("query_dense", units, use_bias)
        self.key_dense = self.dense("key_dense", units, use_bias=False)
        self.attention_dropout = Dropout(
            dropout_rate, dtype=self.dtype_policy, name="attention_dropout"
        )

    def build(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        check_known_width(self, query=query_shape, key=key_shape)
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape)
        self.score_kernel = self.add_weight(
            (self.units,),
            self.kernel_initializer,
            name="score_kernel",
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.built = True

    def call(
        self,
        query: TensorLike,
        value: TensorLike,
        key: TensorLike | None = None,
        mask: TensorLike | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        key = value if key is None else key
        mask = carried_mask(key) if mask is None else mask
        (keys,) = project([self.key_dense], key)
        output, weights = self.attend(query, keys, value, mask, training)
        return (output, weights) if return_attention_scores else output

    def attend(
        self,
        query: TensorLike,
        projected_key: TensorLike,
        value: TensorLike,
        mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns output and weights for keys (B, S, U) projected by `key_dense`."""
        (queries,) = project([self.query_dense], query)
        value = ops.cast(value, self.compute_dtype)
        kernel = ops.cast(self.score_kernel, self.compute_dtype)
        scores = additive_scores(queries, projected_key, kernel)
        weights = masked_softmax(scores, attention_mask(mask))
        dropped = self.attention_dropout(weights, training=training)
        return ops.matmul(dropped, value), weights

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return attention_spec(self, (), args, kwargs)

    def get_config(self) -> dict[str, Any]:
        names = "units", "dropout_rate", "use_bias"
        return super().get_config() | {name: getattr(self, name) for name in names}
