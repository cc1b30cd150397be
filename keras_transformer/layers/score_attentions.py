"""Attention whose weights or scores are computed by another function."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.few_passes import masked_softmax
from keras_transformer.kernels.keras_private import carried_mask
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.attention import refuse_fused
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.projections import ComposedLayer, project
from keras_transformer.layers.relative_positions import RotaryPositions
from keras_transformer.masks import attention_mask
from keras_transformer.types import Shape, Tensor, TensorLike, WeightOptions


def masked_relu(scores: TensorLike, mask: TensorLike | None = None) -> Tensor:
    """Positive scores divided by the number of positions that the mask allows.

    Section 3 of Wortsman et al., 2023, where that number is the length: padding counts.
    """
    positive = ops.relu(scores)
    if mask is None:
        return positive / ops.cast(ops.shape(scores)[-1], positive.dtype)
    number = ops.sum(ops.cast(mask, positive.dtype), axis=-1, keepdims=True)
    return ops.where(mask, positive, 0.0) / ops.maximum(number, 1.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ReluAttention(MultiHeadAttention):
    """Multi-head attention whose weights are ReLU of the scores over their number.

    Wortsman et al., 2023, https://arxiv.org/abs/2309.08586. The weights of a query do
    not compete: many may be zero, and they need not sum to 1.

    Arguments, call and methods are those of `MultiHeadAttention`.

    Args:
        *args: As of `MultiHeadAttention`, like all options.

    Example:
        >>> attention = ReluAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    weigh = staticmethod(masked_relu)
    equals_keras = False


@keras.saving.register_keras_serializable(package="keras_transformer")
class MultiHeadAdditiveAttention(MultiHeadAttention):
    """Multi-head attention whose heads score by a small network each.

    score_h(q, k) = w_h . tanh(q + k) with the head's projected query and key, in place
    of their product: the alignment model of Bahdanau et al., 2015,
    https://arxiv.org/abs/1409.0473 (appendix A.1.2), in each head. The scores are not
    divided by sqrt(key_dim).

    Takes memory for T * S vectors of width `key_dim` in each head. Call and methods are
    those of `MultiHeadAttention`.

    Args:
        num_heads: As of `MultiHeadAttention`, like all others.
        key_dim: Width of each head's queries and keys, and so of its network.
        *args: As of `MultiHeadAttention`.
        **options: As of `MultiHeadAttention`; those of kernels are w's too.
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
                '`positions` must add to the scores, as "alibi" does: the sum of a '
                "turned query and a turned key does not tell their distance. Received: "
                "positions='rotary'"
            )

    def add_own_weights(self) -> None:
        # Each head's w is a column: initializers take the first axis for the inputs.
        self.add_kernel("score_kernel", (self.key_dim, self.num_heads))

    def score(self, queries: TensorLike, keys: TensorLike) -> Tensor:
        """(B, H, T, K) and (B, G, S, K) --> (B, H, T, S)."""
        copies = self.num_heads // keys.shape[1]
        keys = ops.repeat(keys, copies, axis=1) if copies > 1 else keys
        # Outside of `__call__` Keras does not cast the weights.
        kernel = ops.cast(self.score_kernel, queries.dtype)
        return additive_scores(queries, keys, ops.transpose(kernel))


def additive_scores(queries, keys, kernel):
    """Scores each pair of query and key by w . tanh(q_t + k_s).

    Takes queries (..., T, U), keys (..., S, U) and w (U,); or (B, H, T, U),
    (B, H, S, U) and a w for each head (H, U). Returns (..., T, S).
    """
    hidden = ops.tanh(ops.expand_dims(queries, -2) + ops.expand_dims(keys, -3))
    by_head = len(kernel.shape) == 2
    columns = kernel[:, None, :, None] if by_head else kernel[:, None]
    return ops.matmul(hidden, columns)[..., 0]


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveAttention(ComposedLayer):
    """Attention by the score that a small network gives each pair of query and key.

    score(q, k) = w . tanh(W_q q + W_k k): Bahdanau et al., 2015,
    https://arxiv.org/abs/1409.0473 (appendix A.1.2, W_a, U_a and v_a there), with W_q
    of `query_dense` and W_k of `key_dense`. The output is a weighted mean of the
    values, which are not projected. Keras' own layer of this name has no projections.

    For decoding step by step `key_dense` projects the keys of a source once, and
    `attend` takes them for each new query.

    Args:
        units: Width of the network's hidden layer, U.
        dropout_rate: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the queries' projection adds a bias.
        **options: As of `FeedForward`.
    Call arguments:
        query: Float tensor (B, T, D_query).
        value: Float tensor (B, S, D_value).
        key: Float tensor (B, S, D_key); default `value`.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), True where a position may
            be attended to; default the Keras mask that `key` carries.
        training: Whether dropout is applied.
        return_attention_scores: Whether the weights are returned too.
    Returns:
        Float tensor (B, T, D_value); with `return_attention_scores` a tuple of it and
        the attention weights (B, T, S) before dropout.
    Raises:
        ValueError: If `units` is not positive or the rate is outside [0, 1).

    Example:
        >>> attention = AdditiveAttention(units=8)
        >>> attention(np.ones((1, 3, 4)), np.ones((1, 5, 6))).shape  # (1, 3, 6)
    """

    def __init__(
        self, units: int, dropout_rate: float = 0.0, use_bias: bool = False,
        **options: Unpack[WeightOptions],
    ) -> None:  # fmt: skip
        super().__init__(**options)
        check_size("units", units)
        check_rate("dropout_rate", dropout_rate)
        self.units = units
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.query_dense = self.dense("query", units, use_bias)
        self.key_dense = self.dense("key", units, use_bias=False)
        self.attention_dropout = Dropout(
            dropout_rate, dtype=self.dtype_policy, name="attention_dropout"
        )

    def build(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        self.query_dense.build(query_shape)
        self.key_dense.build(value_shape if key_shape is None else key_shape)
        self.add_kernel("score_kernel", (self.units,))
        self.built = True

    def call(
        self, query: TensorLike, value: TensorLike, key: TensorLike | None = None,
        mask: TensorLike | None = None, training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        key = value if key is None else key
        mask = carried_mask(key) if mask is None else mask
        (keys,) = project([self.key_dense], key)
        output, weights = self.attend(query, keys, value, mask, training)
        return (output, weights) if return_attention_scores else output

    def attend(
        self, query: TensorLike, projected_key: TensorLike, value: TensorLike,
        mask: TensorLike | None = None, training: bool | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attends as `call` does, with keys (B, S, U) that `key_dense` has projected.

        Returns the output (B, T, D_value) and the attention weights (B, T, S).
        """
        (queries,) = project([self.query_dense], query)
        # Outside of `__call__` Keras does not cast inputs and weights.
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
        # By a trace of `call`, which may return the weights too.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        names = "units", "dropout_rate", "use_bias"
        return super().get_config() | {name: getattr(self, name) for name in names}
