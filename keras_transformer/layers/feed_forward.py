"""The position-wise feed-forward network."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.affine import affine
from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.dropout import Dropout


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """Two linear maps with an activation between, the same at every position.

    max(0, x W_1 + b_1) W_2 + b_2: equation 2 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762.

    Args:
        d_ff: Width of the hidden layer, d_ff in the paper.
        activation: Keras activation, name or callable; the paper's is "relu".
        dropout_rate: Share of hidden units dropped in training, in [0, 1).
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

    def __init__(self, d_ff, activation="relu", dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        check_size("d_ff", d_ff)
        check_rate("dropout_rate", dropout_rate)
        self.d_ff = d_ff
        self.activation = keras.activations.get(activation)
        self.dropout_rate = dropout_rate
        self.hidden_dropout = Dropout(
            dropout_rate, dtype=self.dtype_policy, name="hidden_dropout"
        )
        self.supports_masking = True

    def build(self, input_shape):
        width = input_shape[-1]
        self.hidden_kernel = self.add_weight(
            shape=(width, self.d_ff), initializer="glorot_uniform", name="hidden_kernel"
        )
        self.hidden_bias = self.add_weight(
            shape=(self.d_ff,), initializer="zeros", name="hidden_bias"
        )
        self.output_kernel = self.add_weight(
            shape=(self.d_ff, width), initializer="glorot_uniform", name="output_kernel"
        )
        self.output_bias = self.add_weight(
            shape=(width,), initializer="zeros", name="output_bias"
        )
        self.built = True

    def call(self, inputs, training=None):
        # One matrix product over all positions is faster than one a sentence.
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B * T, D)
        hidden = affine(rows, self.hidden_kernel, self.hidden_bias, training)
        hidden = self.hidden_dropout(self.activation(hidden), training=training)
        outputs = affine(hidden, self.output_kernel, self.output_bias, training)
        # Sizes that are known cost a graph nothing; at most one may be left open.
        known = inputs.shape[1:]
        shape = shape_of(inputs) if None in known else (-1, *known)
        return ops.reshape(outputs, shape)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def get_config(self):
        return super().get_config() | {
            "d_ff": self.d_ff,
            "activation": keras.activations.serialize(self.activation),
            "dropout_rate": self.dropout_rate,
        }
