"""What the other layers are made of: `Dense` layers, norm and feed-forward.

Weights, initializers, regularizers, LoRA and quantisation are Keras' own: each `Dense`
is a public attribute of its layer. In a step of decoding several share one product,
where that is exact.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple, Unpack

import keras
from keras import ops

from keras_transformer.nn.arguments import check_known_width, check_rate, check_size
from keras_transformer.nn.kernels.execution import in_tensorflow_graph
from keras_transformer.nn.kernels.keras_private import (
    carried_mask,
    custom_gradient,
    is_of_last_axis,
)
from keras_transformer.nn.layers.adaptation import KeepsQuantisation
from keras_transformer.nn.layers.attention import wide_dtype
from keras_transformer.nn.layers.dropout import Dropout
from keras_transformer.types import Activation, Shape, Tensor, TensorLike, WeightOptions

# Options of every matrix and bias of a layer, with their defaults.
WEIGHT_DEFAULTS = {
    "kernel_initializer": "glorot_uniform",
    "bias_initializer": "zeros",
    "kernel_regularizer": None,
    "bias_regularizer": None,
    "kernel_constraint": None,
    "bias_constraint": None,
}
# Where Keras makes and serialises them, by the last word of the name.
_MAKERS = {
    "initializer": keras.initializers,
    "regularizer": keras.regularizers,
    "constraint": keras.constraints,
}


def is_plain(dense):
    """Whether a layer's call is no more than a product and a sum in floats."""
    return (
        type(dense) is keras.layers.Dense
        and dense.activation is keras.activations.linear
        and dense.activity_regularizer is None
        and dense.quantization_mode is None
    )


class Joined(NamedTuple):
    """The matrices and biases of `Dense` layers side by side, for one product."""

    kernel: Any  # (D, sum of the units)
    bias: Any = ()  # (sum of the units,), or `()`: a nest of tensors holds no `None`

    @property
    def has_bias(self):
        """Whether there is a bias to add."""
        return not isinstance(self.bias, tuple)


def joined(denses, scale=1.0):
    """Returns the `Joined` of `Dense` layers, or `()` if the call of one is needed."""
    # The first kernel and bias are multiplied by `scale`.
    if not all(map(is_plain, denses)):  # Such as a quantised one.
        return ()
    dtype = denses[0].compute_dtype
    # The kernels have adapters (LoRA) merged in.
    kernels = [ops.cast(dense.kernel, dtype) for dense in denses]
    if all(dense.bias is None for dense in denses):
        return Joined(_side_by_side(kernels, scale))
    biases = [
        ops.cast(ops.zeros(x.units) if x.bias is None else x.bias, dtype)
        for x in denses
    ]
    return Joined(_side_by_side(kernels, scale), _side_by_side(biases, scale))


def _side_by_side(parts, scale):
    """Returns tensors (..., units) as one, the first multiplied by `scale`."""
    if scale != 1.0:
        parts[0] = parts[0] * scale
    return ops.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def affine(inputs, weights):
    """Returns inputs (..., D) times a `Joined` matrix plus its bias, (..., E)."""
    # One product over all positions is faster than one per sentence.
    outputs = ops.matmul(ops.reshape(inputs, (-1, inputs.shape[-1])), weights.kernel)
    if weights.has_bias:
        outputs = outputs + weights.bias
    # Known sizes need no operation in a graph; a reshape may leave one open, if no
    # other is 0.
    known = inputs.shape[1:-1]
    first = (-1, *known) if all(known) else ops.shape(inputs)[:-1]
    return ops.reshape(outputs, (*first, ops.shape(outputs)[-1]))


def project(denses, inputs, scale=1.0, weights=None):
    """Returns the outputs of several `Dense` layers for the same inputs (..., D)."""
    # The first is multiplied by `scale`; `weights` of `joined` make it one product.
    inputs = ops.cast(inputs, denses[0].compute_dtype)
    if weights:
        outputs = affine(inputs, weights)
        if len(denses) == 1:
            return [outputs]
        ends = itertools.accumulate(dense.units for dense in denses[:-1])
        return ops.split(outputs, list(ends), axis=-1)
    outputs = []
    for dense in denses:
        own = joined([dense], scale)
        if own:
            outputs.append(affine(inputs, own))
        else:
            outputs.append(dense(inputs) if scale == 1.0 else dense(inputs) * scale)
        scale = 1.0
    return outputs


def _maker(name):
    """Returns the module of the kind of an option of `WEIGHT_DEFAULTS`."""
    return _MAKERS[name.rpartition("_")[2]]


class ComposedLayer(KeepsQuantisation, keras.layers.Layer):
    """Base of layers made of `Dense` layers with the same options."""

    def __init__(self, **options: Unpack[WeightOptions]) -> None:
        given = {n: options.pop(n, default) for n, default in WEIGHT_DEFAULTS.items()}
        super().__init__(**options)
        for name, option in given.items():
            setattr(self, name, _maker(name).get(option))
        self.supports_masking = True

    def weight_options(self) -> dict[str, Any]:
        """Returns the options of the weights, for a sub-layer.

        Each makes its own initializers: a shared one would repeat its weights.
        """
        options = {name: getattr(self, name) for name in WEIGHT_DEFAULTS}
        for name in ("kernel_initializer", "bias_initializer"):
            options[name] = keras.initializers.serialize(options[name])
        return options

    def dense(
        self, name: str, units: int, use_bias: bool = True, **options: Any
    ) -> keras.layers.Dense:
        """Returns a `Dense` layer with these options; override to use another."""
        return keras.layers.Dense(
            units,
            use_bias=use_bias,
            dtype=self.dtype_policy,
            name=name,
            **self.weight_options(),
            **options,
        )

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> Tensor | None:
        """Returns the Keras mask of the first input."""
        return carried_mask(inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        given = {n: _maker(n).serialize(getattr(self, n)) for n in WEIGHT_DEFAULTS}
        return super().get_config() | given


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

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        is_usual = self.scale and self.center and not self.rms_scaling
        self._is_usual = is_usual and is_of_last_axis(self, len(input_shape))

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        if not (training and self._is_usual and in_tensorflow_graph()):
            return super().call(inputs)
        outputs = normalise(inputs, self.gamma, self.beta, self.epsilon)
        return ops.cast(outputs, self.compute_dtype)


def normalise(inputs, gamma, beta, epsilon):
    """As Keras' layer over the last axis (..., D), in few passes over memory."""
    dtype = wide_dtype(inputs.dtype, gamma.dtype)
    mean = functools.partial(ops.mean, axis=-1, keepdims=True)
    total = functools.partial(ops.sum, axis=tuple(range(len(inputs.shape) - 1)))

    @custom_gradient
    def normalised(inputs, gamma, beta):
        centred = inputs - mean(inputs)
        inverse = ops.rsqrt(mean(centred * centred) + epsilon)
        unit = centred * inverse

        def gradient(upstream):
            # (u - mean(u) - h mean(u h)) / deviation, h the unit vector, u its slopes
            slopes = upstream * gamma
            changes = slopes - mean(slopes) - unit * mean(slopes * unit)
            return changes * inverse, total(upstream * unit), total(upstream)

        return unit * gamma + beta, gradient

    inputs = ops.cast(inputs, dtype)
    gamma = ops.cast(gamma, dtype)
    beta = ops.cast(beta, dtype)
    return normalised(inputs, gamma, beta)


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
        self,
        d_ff: int,
        activation: Activation = "relu",
        dropout_rate: float = 0.0,
        **options: Unpack[WeightOptions],
    ) -> None:
        super().__init__(**options)
        check_size("d_ff", d_ff)
        check_rate("dropout_rate", dropout_rate)
        self.d_ff = d_ff
        self.activation = keras.activations.get(activation)
        self.dropout_rate = dropout_rate
        self.hidden_dense = self.dense("hidden_dense", d_ff)
        dtype = self.dtype_policy
        self.hidden_dropout = Dropout(dropout_rate, dtype=dtype, name="hidden_dropout")

    def build(self, input_shape: Shape) -> None:
        check_known_width(self, inputs=input_shape)
        self.hidden_dense.build(input_shape)
        self.output_dense = self.dense("output_dense", input_shape[-1])
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
