"""The position-wise feed-forward network."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.arguments import (
    check_axes,
    check_rate,
    check_size,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.quantization import float_policy
from keras_transformer.layers.weight_matrix import multiply, side_by_side
from keras_transformer.layers.weight_options import (
    keep_options,
    kept_config,
    options_for,
)
from keras_transformer.types import (
    Activation,
    Constraint,
    Initializer,
    LayerOptions,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(AdaptableLayer):
    """Two linear maps with an activation between, the same at every position.

    max(0, x W_1 + b_1) W_2 + b_2: equation 2 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762.

    Args:
        d_ff: Width of the hidden layer, d_ff in the paper.
        activation: Keras activation, name or callable; the paper's is "relu".
        dropout_rate: Share of hidden units dropped in training, in [0, 1).
        kernel_initializer: Initializer of the matrices.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the matrices, or `None`.
        bias_regularizer: Regularizer of the biases, or `None`.
        kernel_constraint: Constraint on the matrices, or `None`.
        bias_constraint: Constraint on the biases, or `None`.
    Call arguments:
        inputs: Float tensor (B, T, D).
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If `d_ff` is not positive, the activation is not known or the rate
            is outside [0, 1).

    Example:
        >>> FeedForward(d_ff=8)(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def __init__(
        self, d_ff: int, activation: Activation = "relu", dropout_rate: float = 0.0, *,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None, **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        check_size("d_ff", d_ff)
        check_rate("dropout_rate", dropout_rate)
        self.d_ff = d_ff
        self.activation = keras.activations.get(activation)
        self.dropout_rate = dropout_rate
        keep_options(
            self,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
        )
        self.hidden_dropout = Dropout(
            dropout_rate, dtype=float_policy(self.dtype_policy), name="hidden_dropout"
        )
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        check_axes("inputs", input_shape, "B", "...", "D")
        width = input_shape[-1]
        self.hidden_matrix = self.add_matrix(
            "hidden_kernel", (width, self.d_ff), **options_for(self, "kernel")
        )
        self.hidden_bias = self.add_weight(
            shape=(self.d_ff,), name="hidden_bias", **options_for(self, "bias")
        )
        self.output_matrix = self.add_matrix(
            "output_kernel", (self.d_ff, width), **options_for(self, "kernel")
        )
        self.output_bias = self.add_weight(
            shape=(width,), name="output_bias", **options_for(self, "bias")
        )
        self.built = True

    def call(self, inputs: TensorLike, training: bool | None = None) -> Tensor:
        check_axes("inputs", inputs, "B", "...", "D")
        # One matrix product over all positions is faster than one a sentence.
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B * T, D)
        hidden = self._affine(rows, self.hidden_matrix, self.hidden_bias, training)
        hidden = self.hidden_dropout(self.activation(hidden), training=training)
        outputs = self._affine(hidden, self.output_matrix, self.output_bias, training)
        # Sizes that are known cost a graph nothing; at most one may be left open.
        known = inputs.shape[1:]
        shape = shape_of(inputs) if None in known else (-1, *known)
        return ops.reshape(outputs, shape)

    def _affine(self, rows, matrix, bias, training):
        weights = side_by_side([matrix], [bias], self.compute_dtype)
        return multiply(rows, weights, matrix.input_quantizer, training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "d_ff": self.d_ff,
            "activation": keras.activations.serialize(self.activation),
            "dropout_rate": self.dropout_rate,
            **kept_config(self),
        }
