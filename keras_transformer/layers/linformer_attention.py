"""Attention to a fixed number of mixtures of the positions, linear in the length."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.attention import dot_product_attention
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.linear_attention import (
    ProjectionOptions,
    SubquadraticAttention,
)
from keras_transformer.layers.quantization import float_policy
from keras_transformer.types import Nest, Shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class LinformerAttention(SubquadraticAttention):
    """Multi-head attention whose S keys and values are mixed to a few, for encoders.

    softmax(Q (E K)^T / sqrt(K)) (F V) with trained matrices E and F over the positions:
    equation 7 of Wang et al., 2020, https://arxiv.org/abs/2006.04768, where all heads
    share both ("headwise sharing", section 4). They have a row for each position up to
    `max_length`; a shorter input uses the first ones. Keys and values of padding count
    as zeros, so more padding changes nothing.

    A mixture holds later positions too: the layer cannot be causal, and it decodes
    nothing step by step. Its weights are on mixtures, not on positions, so none are
    returned.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys.
        max_length: Most positions of keys and values.
        projected_length: Mixtures that are attended to, k in the paper.
        value_dim: Width of each head's values; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        dropout_rate: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections to heads and back add a bias.
        kernel_initializer: Initializer of the matrices, the mixtures too.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
    Call arguments:
        query: Float tensor (B, T, D_query).
        value: Float tensor (B, S, D_value); default `query`, which is self-attention.
        key: Float tensor (B, S, D_key); default `value`.
        mask: Boolean tensor (B, S) or (B, 1, S), True where a position may be attended
            to; default the Keras mask that `key` carries.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, output_dim).
    Raises:
        ValueError: If an argument is out of its range, the keys are longer than
            `max_length`, or the mask differs between queries, as a causal one does.

    Example:
        >>> attention = LinformerAttention(2, 3, max_length=500, projected_length=16)
        >>> attention(np.ones((1, 400, 6), "float32")).shape  # (1, 400, 6)
    """

    def __init__(
        self, num_heads: int, key_dim: int, max_length: int, projected_length: int,
        value_dim: int | None = None, output_dim: int | None = None,
        dropout_rate: float = 0.0, use_bias: bool = True,
        **kwargs: Unpack[ProjectionOptions],
    ) -> None:  # fmt: skip
        super().__init__(num_heads, key_dim, value_dim, output_dim, use_bias, **kwargs)
        check_size("max_length", max_length)
        check_size("projected_length", projected_length)
        check_rate("dropout_rate", dropout_rate)
        self.projections.query_scale = key_dim**-0.5
        self.max_length = max_length
        self.projected_length = projected_length
        self.dropout_rate = dropout_rate
        self.attention_dropout = Dropout(
            dropout_rate, dtype=float_policy(self.dtype_policy),
            name="attention_dropout",
        )  # fmt: skip

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:  # fmt: skip
        super().build(query_shape, value_shape, key_shape)
        shape = (self.max_length, self.projected_length)
        self.key_mixture, self.value_mixture = (
            self.add_weight(shape, name=name, **self.projections.kernel_options())
            for name in ("key_mixture", "value_mixture")
        )

    def _mask_of_keys(self, mask):
        if mask.shape[1] != 1:
            raise ValueError(
                "`mask` must be the same for all queries, (B, S) or (B, 1, S), and so "
                "none that is causal: each key of this layer is a mixture of all "
                f"positions. Received: shape {tuple(mask.shape)}"
            )
        return super()._mask_of_keys(mask)

    def _attend(self, queries, keys, values, is_key, training):
        length = keys.shape[2]
        if length is not None and length > self.max_length:
            raise ValueError(
                "The keys and values must have at most `max_length` positions; raise "
                f"it. Received: {length} positions, max_length={self.max_length}"
            )
        keys = self._mixed(keys, self.key_mixture, is_key)
        values = self._mixed(values, self.value_mixture, is_key)
        dropout = self.attention_dropout if training else None
        outputs, _ = dot_product_attention(queries, keys, values, dropout=dropout)
        return outputs

    def _mixed(self, inputs, mixture, is_key):
        """(B, H, S, K) --> (B, H, k, K)."""
        if is_key is not None:
            inputs = ops.where(is_key, inputs, ops.zeros_like(inputs))
        rows = ops.cast(mixture, inputs.dtype)[: shape_of(inputs)[2]]
        return ops.matmul(ops.transpose(rows), inputs)

    def decoding_weights(self, *names: str) -> Nest:
        """Raises `ValueError`: the layer cannot decode step by step."""
        raise ValueError(
            "Decoding step by step needs an attention that can be causal, and each key "
            "of this one is a mixture of all positions: use it in encoders. Received: "
            f"the layer {self.name!r} in a decoder"
        )

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "max_length": self.max_length,
            "projected_length": self.projected_length,
            "dropout_rate": self.dropout_rate,
        }
