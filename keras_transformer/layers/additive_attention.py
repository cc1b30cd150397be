"""Additive attention, as recurrent translators have it."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.argument_order import ValueBeforeKey
from keras_transformer.layers.arguments import (
    check_inputs,
    check_mask,
    check_rate,
    check_size,
    default_inputs,
)
from keras_transformer.layers.attention import additive_attention
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.quantization import float_policy
from keras_transformer.layers.weight_matrix import multiply, side_by_side
from keras_transformer.masks import attention_mask, carried_mask
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class AdditiveAttention(AdaptableLayer, ValueBeforeKey):
    """Attention by the score that a small network gives each pair of query and key.

    score(q, k) = w . tanh(W_q q + W_k k): Bahdanau et al., 2015,
    https://arxiv.org/abs/1409.0473 (appendix A.1.2, W_a, U_a and v_a there). Queries
    and keys may have different widths; the output is a weighted mean of the values,
    which are not projected. The inputs come in the order of Keras' attention layers,
    though not as a list; Keras' own layer of this name has no projections.

    For decoding step by step `project_key` projects the keys of a source once, and
    `attend` takes them for each new query.

    Args:
        units: Width of the network's hidden layer, U.
        dropout_rate: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the queries' projection adds a bias.
    Call arguments:
        query: Float tensor (B, T, D_query).
        value: Float tensor (B, S, D_value).
        key: Float tensor (B, S, D_key); default `value`.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), True where a position may
            be attended to; default the Keras mask that `key` carries.
            `valid_length_mask` makes one of valid lengths for each row or query.
        training: Whether dropout is applied.
        return_attention_weights: Whether the weights are returned too.
    Returns:
        Float tensor (B, T, D_value); with `return_attention_weights` a tuple of it and
        the attention weights (B, T, S) before dropout.
    Raises:
        ValueError: If `units` is not positive or the rate is outside [0, 1).

    Example:
        >>> attention = AdditiveAttention(units=8)
        >>> attention(np.ones((1, 3, 4)), np.ones((1, 5, 6))).shape  # (1, 3, 6)
    """

    def __init__(
        self, units: int, dropout_rate: float = 0.0, use_bias: bool = False,
        **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        check_size("units", units)
        check_rate("dropout_rate", dropout_rate)
        self.units = units
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.attention_dropout = Dropout(
            dropout_rate,
            dtype=float_policy(self.dtype_policy),
            name="attention_dropout",
        )
        self.supports_masking = True

    def build(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        check_inputs(query_shape, value_shape, key_shape, "B", "T", "D")
        self.query_matrix = self.add_matrix(
            "query_kernel",
            (query_shape[-1], self.units),
            initializer="glorot_uniform",
        )
        self.key_matrix = self.add_matrix(
            "key_kernel", (key_shape[-1], self.units), initializer="glorot_uniform"
        )
        self.score_kernel = self.add_weight(
            shape=(self.units,), initializer="glorot_uniform", name="score_kernel"
        )
        self.query_bias = None
        if self.use_bias:
            self.query_bias = self.add_weight(
                shape=(self.units,), initializer="zeros", name="query_bias"
            )
        self.built = True

    def call(
        self, query: TensorLike, value: TensorLike, key: TensorLike | None = None,
        mask: TensorLike | None = None, training: bool | None = None,
        return_attention_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        value, key = default_inputs(query, value, key, "B", "T", "D")
        mask = attention_mask(carried_mask(key) if mask is None else mask)
        check_mask("mask", mask, query, key)
        output, attention_weights = self.attend(
            query, self.project_key(key), value, mask=mask, training=training
        )
        return (output, attention_weights) if return_attention_weights else output

    def project_key(self, key: TensorLike) -> Tensor:
        """Projects keys once, for many calls of `attend`.

        Args:
            key: Float tensor (B, S, D_key).

        Returns:
            Float tensor (B, S, U).
        """
        return self._project(key, self.key_matrix)

    def attend(
        self, query: TensorLike, projected_key: TensorLike, value: TensorLike,
        mask: TensorLike | None = None, training: bool | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Attends as `call` does, with keys that are already projected.

        Args:
            query: Float tensor (B, T, D_query).
            projected_key: Float tensor (B, S, U), from `project_key`.
            value: Float tensor (B, S, D_value).
            mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), or `None`.
            training: Whether dropout is applied.

        Returns:
            The output (B, T, D_value) and the attention weights (B, T, S) before
            dropout.
        """
        projected_query = self._project(query, self.query_matrix)
        if self.query_bias is not None:
            projected_query += ops.cast(self.query_bias, self.compute_dtype)
        return additive_attention(
            projected_query,
            projected_key,
            ops.cast(value, self.compute_dtype),
            ops.cast(self.score_kernel, self.compute_dtype),
            mask=attention_mask(mask),
            dropout=lambda weights: self.attention_dropout(weights, training=training),
        )

    def _project(self, inputs, matrix):
        # Outside of `__call__` Keras does not cast the inputs.
        inputs = ops.cast(inputs, self.compute_dtype)
        weights = side_by_side([matrix], [None], self.compute_dtype)
        return multiply(inputs, weights, matrix.input_quantizer)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the query and carries its mask."""
        return carried_mask(inputs)

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(
        self, query: TensorLike, value: TensorLike, key: TensorLike | None = None,
        mask: TensorLike | None = None, training: bool | None = None,
        return_attention_weights: bool = False,
    ) -> keras.KerasTensor | tuple[keras.KerasTensor, keras.KerasTensor]:  # fmt: skip
        shape = self.compute_output_shape(query.shape, value.shape)
        output = keras.KerasTensor(shape, dtype=self.compute_dtype)
        if not return_attention_weights:
            return output
        weights_shape = (*query.shape[:2], value.shape[1])
        return output, keras.KerasTensor(weights_shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "units": self.units,
            "dropout_rate": self.dropout_rate,
            "use_bias": self.use_bias,
        }
