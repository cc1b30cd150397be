"""Dropout, layer normalisation and the feed-forward network."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels import few_passes
from keras_transformer.kernels.execution import in_tensorflow_graph, num_replicas
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.projections import ComposedLayer, project
from keras_transformer.types import Activation, Shape, Tensor, TensorLike, WeightOptions


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Sets a random share of the inputs to 0 in training and scales up the others.

    As `keras.layers.Dropout`, but faster on a CPU: the mask is a hash of the seed, the
    call's number and the position. The same seed yields the same masks on TensorFlow
    and JAX; replicas of a TensorFlow strategy drop different units. `rate` is rounded
    to a multiple of 1 / 65536. PyTorch and `noise_shape` use Keras' own dropout.

    Args:
        rate: Share of the units to drop, in [0, 1].
        noise_shape: Shape of the mask, broadcast to the inputs; default their shape.
        seed: Integer seed; default random.
    Call arguments:
        inputs: Float tensor (...).
        training: Whether to drop.
    Returns:
        Float tensor (...).
    Raises:
        ValueError: If `rate` is outside [0, 1].

    Example:
        >>> Dropout(0.5, seed=1)(np.ones((2, 3)), training=True)  # of 0 and 2
    """

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        keep, scale = self.next_mask(ops.shape(inputs)) if training else (None, 1.0)
        if keep is None:
            return super().call(inputs, training=training)
        return few_passes.drop(inputs, keep, scale)

    def next_mask(self, shape):
        """Returns a mask of kept units and their factor; `None` if Keras drops."""
        by_us = self.noise_shape is None and keras.backend.backend() != "torch"
        if not by_us or not 0 < round(self.rate * few_passes.STEPS) < few_passes.STEPS:
            return None, 1.0
        # The seed and the number of the call, which differs between replicas.
        state = self.seed_generator.next()
        state = few_passes.of_this_replica(state) if num_replicas() > 1 else state
        return few_passes.keep_and_scale(shape, self.rate, state)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Normalises each vector to mean 0 and variance 1, then scales and shifts it.

    As `keras.layers.LayerNormalization` (Ba et al., 2016,
    https://arxiv.org/abs/1607.06450), in half the time when a TensorFlow graph without
    XLA trains.

    Call arguments:
        inputs: Float tensor (..., D).
        training: Whether a gradient will be computed.
    Returns:
        Float tensor (..., D).

    Example:
        >>> LayerNormalization()(np.array([[1.0, 3.0]]))  # [[-1., 1.]]
    """

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        is_last = self.axis in ([-1], [len(inputs.shape) - 1])
        is_usual = is_last and self.scale and self.center and not self.rms_scaling
        if not (training and is_usual and in_tensorflow_graph()):
            return super().call(inputs)
        outputs = few_passes.normalise(inputs, self.gamma, self.beta, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(ComposedLayer):
    """Two linear maps with an activation between, the same at every position.

    max(0, x W_1 + b_1) W_2 + b_2: equation 2 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762. `hidden_dense` holds W_1 and b_1, `output_dense`
    W_2 and b_2.

    Args:
        d_ff: Width of the hidden layer, d_ff in the paper.
        activation: Name of a Keras activation, or a function.
        dropout_rate: Share of hidden units dropped in training, in [0, 1).
        **options: Initializers, regularizers and constraints of `keras.layers.Dense`;
            `name`, `dtype` and so on of `keras.layers.Layer`.
    Call arguments:
        inputs: Float tensor (B, ..., D).
    Returns:
        Float tensor (B, ..., D).
    Raises:
        ValueError: If `d_ff` is not positive, the activation is unknown or the rate is
            outside [0, 1).

    Example:
        >>> FeedForward(d_ff=8)(np.ones((1, 5, 6), "float32")).shape  # (1, 5, 6)
    """

    def __init__(
        self, d_ff: int, activation: Activation = "relu", dropout_rate: float = 0.0,
        **options: Unpack[WeightOptions],
    ) -> None:  # fmt: skip
        super().__init__(**options)
        check_size("d_ff", d_ff)
        check_rate("dropout_rate", dropout_rate)
        self.d_ff = d_ff
        self.activation = keras.activations.get(activation)
        self.dropout_rate = dropout_rate
        self.hidden_dense = self.dense("hidden", d_ff)
        dtype = self.dtype_policy
        self.hidden_dropout = Dropout(dropout_rate, dtype=dtype, name="hidden_dropout")

    def build(self, input_shape: Shape) -> None:
        self.hidden_dense.build(input_shape)
        self.output_dense = self.dense("output", input_shape[-1])
        self.output_dense.build((*input_shape[:-1], self.d_ff))
        self.input_spec = keras.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})
        self.built = True

    def call(self, inputs: TensorLike, training: bool | None = None) -> Tensor:
        (hidden,) = project([self.hidden_dense], inputs)
        hidden = self.hidden_dropout(self.activation(hidden), training=training)
        (output,) = project([self.output_dense], hidden)
        return output

    def get_config(self) -> dict[str, Any]:
        activation = keras.activations.serialize(self.activation)
        own = {"d_ff": self.d_ff, "dropout_rate": self.dropout_rate}
        return super().get_config() | own | {"activation": activation}
