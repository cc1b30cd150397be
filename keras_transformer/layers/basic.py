"""Dropout whose mask is a hash."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.execution import in_replica, shape_of
from keras_transformer.kernels.few_passes import (
    STEPS,
    hashed_dropout,
    keep_and_scale,
    normalise,
    of_this_replica,
    threshold_of,
)
from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.arguments import (
    check_axes,
    check_rate,
    check_size,
)
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
class Dropout(keras.layers.Dropout):
    """Sets a random share of the inputs to 0 in training and scales up the others.

    As `keras.layers.Dropout`, whose arguments and seed generator it has, but the mask
    is a hash of the seed, the call's number and the position: on a CPU that costs a
    fraction of Keras' random numbers. The same seed gives the same masks in every
    mode of TensorFlow and on JAX, and the replicas of a TensorFlow strategy drop
    different units. With PyTorch, or with a `noise_shape`, it is Keras' own dropout.

    The share dropped is `rate` rounded to a multiple of 1 / 65536, and the scale is
    that of the rounded rate, so that the expected output is the input.

    Args:
        rate: Share of the units to drop, in [0, 1].
        noise_shape: Shape of the mask, broadcast to the inputs; default theirs.
        seed: Integer seed; default drawn from Python's generator.
    Call arguments:
        inputs: Float tensor (...).
        training: Whether anything is dropped.
    Returns:
        Float tensor (...).
    Raises:
        ValueError: If `rate` is outside [0, 1].

    Example:
        >>> Dropout(0.5, seed=1)(np.ones((2, 3)), training=True)  # of 0 and 2
    """

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        if not training or not self.is_hashed:
            return super().call(inputs, training=training)
        return hashed_dropout(inputs, self.rate, self._next_state())

    @property
    def is_hashed(self):
        """Whether the mask is a hash and not Keras' own."""
        by_us = self.noise_shape is None and keras.backend.backend() != "torch"
        return by_us and 0 < threshold_of(self.rate) < STEPS

    def next_mask(self, shape):
        """Returns the next mask, for a kernel that drops by itself.

        Args:
            shape: Shape of the tensor, of integers or scalar tensors.

        Returns:
            Boolean tensor of that shape, True where an element is kept, and the factor
            on what is kept; `None` and 1 where nothing is dropped.
        """
        if not self.is_hashed:
            return None, 1.0
        return keep_and_scale(shape, self.rate, self._next_state())

    def _next_state(self):
        """The seed and the number of the call, a different one in each replica."""
        state = self.seed_generator.next()
        return of_this_replica(state) if in_replica() else state


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Normalises each vector to mean 0 and variance 1, then scales and shifts it.

    As `keras.layers.LayerNormalization` (Ba et al., 2016,
    https://arxiv.org/abs/1607.06450), whose arguments and weights it has. In training
    in a TensorFlow graph without XLA it takes half the time.

    Call arguments:
        inputs: Float tensor (..., D).
        training: Whether a gradient will be asked for.
    Returns:
        Float tensor (..., D).

    Example:
        >>> LayerNormalization()(np.array([[1.0, 3.0]]))  # [[-1., 1.]]
    """

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        is_last = self.axis in ([-1], [len(inputs.shape) - 1])
        if not is_last or not self.scale or not self.center or self.rms_scaling:
            return super().call(inputs)
        outputs = normalise(inputs, self.gamma, self.beta, self.epsilon, training)
        return ops.cast(outputs, self.compute_dtype)


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
