"""What the attentions share that make no matrix of T times S."""

from __future__ import annotations

from typing import Any, Unpack

from keras import ops

from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.argument_order import ValueBeforeKey
from keras_transformer.layers.arguments import (
    check_inputs,
    check_mask,
    default_inputs,
    mask_of_keys,
)
from keras_transformer.layers.head_projections import HeadProjections
from keras_transformer.masks import attention_mask, carried_mask
from keras_transformer.types import (
    Constraint,
    Initializer,
    LayerOptions,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


class ProjectionOptions(LayerOptions, total=False):
    """What the subclasses of `SubquadraticAttention` hand on to it."""

    kernel_initializer: Initializer
    bias_initializer: Initializer
    kernel_regularizer: Regularizer | None
    bias_regularizer: Regularizer | None
    kernel_constraint: Constraint | None
    bias_constraint: Constraint | None


class SubquadraticAttention(AdaptableLayer, ValueBeforeKey):
    """Base of the attention layers whose cost does not grow with T times S.

    A subclass overrides `_attend`. There are no weights of T queries on S keys, so none
    to return, and a mask is the same for all queries; what is `causal` is so by itself.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys, K.
        value_dim: Width of each head's values, Kv; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        use_bias: Whether the projections add a bias.
        kernel_initializer: Initializer of the projections' matrices.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
    """

    causal = False

    def __init__(
        self, num_heads: int, key_dim: int, value_dim: int | None = None,
        output_dim: int | None = None, use_bias: bool = True, *,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None, **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.projections = HeadProjections(
            num_heads, key_dim, value_dim, output_dim, use_bias,
            dtype=self.compute_dtype,
        )  # fmt: skip
        kernel = kernel_initializer, kernel_regularizer, kernel_constraint
        bias = bias_initializer, bias_regularizer, bias_constraint
        self.projections.set_options(kernel, bias)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.use_bias = use_bias
        self.supports_masking = True

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:  # fmt: skip
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        check_inputs(query_shape, value_shape, key_shape, "B", "T", "D")
        self.projections.build(self, query_shape, value_shape, key_shape)
        self.built = True

    def call(
        self, query: TensorLike, value: TensorLike | None = None,
        key: TensorLike | None = None, mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        if self.causal and value is not None:
            raise ValueError(
                "Causal attention is self-attention: give `query` alone, or set "
                "`causal=False`. Received: causal=True and a `value`"
            )
        value, key = default_inputs(query, value, key, "B", "T", "D")
        mask = attention_mask(carried_mask(key) if mask is None else mask)
        check_mask("mask", mask, query, key)
        is_key = None
        if mask is not None:
            is_key = ops.expand_dims(self._mask_of_keys(mask), (1, 3))  # (B, 1, S, 1)
        parts = self._project(query, value, key)
        outputs = self._attend(*parts, is_key, training)
        return self.projections.merge(ops.cast(outputs, self.compute_dtype))

    def _mask_of_keys(self, mask):
        """(B, 1, S) --> (B, S), or an error if the mask differs between queries."""
        return mask_of_keys(mask)

    def _project(self, query, value, key):
        """Returns queries (B, H, T, K), keys (B, H, S, K) and values (B, H, S, Kv)."""
        return self.projections.project(query, value, key)

    def _attend(self, queries, keys, values, is_key, training):
        """Attends with all heads.

        Args:
            queries: Float tensor (B, H, T, K).
            keys: Float tensor (B, H, S, K).
            values: Float tensor (B, H, S, Kv).
            is_key: Boolean tensor (B, 1, S, 1), True where a position may be attended
                to, or `None` for all.
            training: Whether dropout is applied.

        Returns:
            Float tensor (B, H, T, Kv).
        """
        raise NotImplementedError

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> Shape:  # fmt: skip
        return self.projections.output_shape(query_shape)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the query and carries its mask."""
        return carried_mask(inputs)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "use_bias": self.use_bias,
            **self.projections.weights_config(),
        }
