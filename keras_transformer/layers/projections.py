"""Layers made of `keras.layers.Dense`, several of which share one product.

Weights, initializers, regularizers, LoRA and quantisation are Keras' own: each `Dense`
is a public attribute of its layer.
"""

from __future__ import annotations

import itertools
from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.keras_private import carried_mask
from keras_transformer.layers.adaptation import quantised_policies
from keras_transformer.types import Shape, Tensor, TensorLike, WeightOptions

# Options of every matrix and bias of a layer, with their defaults.
WEIGHT_DEFAULTS = {
    "kernel_initializer": "glorot_uniform",
    "bias_initializer": "zeros",
    "kernel_regularizer": None,
    "bias_regularizer": None,
    "kernel_constraint": None,
    "bias_constraint": None,
}


def _makers(name):
    """Returns `keras.initializers` for "kernel_initializer", and so on."""
    return getattr(keras, f"{name.split('_')[1]}s")


class ComposedLayer(keras.layers.Layer):
    """Base of layers made of `Dense` layers with the same options."""

    def __init__(self, **options: Unpack[WeightOptions]) -> None:
        given = {n: options.pop(n, default) for n, default in WEIGHT_DEFAULTS.items()}
        super().__init__(**options)
        for name, option in given.items():
            setattr(self, name, _makers(name).get(option))
        self.supports_masking = True

    def weight_options(self) -> dict[str, Any]:
        """Returns the options of the weights as plain values, for a sub-layer.

        Each makes its own objects: a shared initializer would repeat its weights.
        """
        return {n: _makers(n).serialize(getattr(self, n)) for n in WEIGHT_DEFAULTS}

    def dense(
        self, name: str, units: int, use_bias: bool = True, **options: Any
    ) -> keras.layers.Dense:
        """Returns a `Dense` layer with these options; override to use another."""
        return keras.layers.Dense(
            units, use_bias=use_bias, dtype=self.dtype_policy, name=name,
            **self.weight_options(), **options,
        )  # fmt: skip

    def add_kernel(self, name: str, shape: Shape) -> None:
        """Adds a matrix with the options of kernels."""
        options = self.weight_options()
        kinds = "initializer", "regularizer", "constraint"
        given = {kind: options[f"kernel_{kind}"] for kind in kinds}
        setattr(self, name, self.add_weight(shape, name=name, **given))

    def compute_mask(self, inputs: TensorLike, previous_mask: Any) -> Tensor | None:
        """Returns the Keras mask of the first input."""
        return carried_mask(inputs)

    def compute_output_shape(self, input_shape: Shape, *others: Shape) -> Shape:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.weight_options() | quantised_policies(self)


def joined(denses, scale=1.0):
    """Returns kernels and biases side by side; `()` if a layer is special."""
    # The first kernel and bias are multiplied by `scale`.
    dtype = denses[0].compute_dtype
    kernels, has_bias = [], False
    for dense in denses:
        is_plain = (
            type(dense) is keras.layers.Dense
            and dense.activation is keras.activations.linear
            and dense.activity_regularizer is None
            and dense.quantization_mode is None
        )
        if not is_plain:  # Such as a quantised one: its own call is needed.
            return ()
        kernels.append(ops.cast(dense.kernel, dtype))  # with adapters (LoRA) merged in
        has_bias = has_bias or dense.bias is not None
    parts = [kernels]
    if has_bias:
        parts.append([])
        for dense in denses:
            bias = ops.zeros(dense.units) if dense.bias is None else dense.bias
            parts[1].append(ops.cast(bias, dtype))
    for i, part in enumerate(parts):
        if scale != 1.0:
            part[0] = part[0] * scale
        parts[i] = ops.concatenate(part, axis=-1) if len(part) > 1 else part[0]
    return tuple(parts)  # (D, sum of the units) and (sum of the units,)


def affine(inputs, kernel, bias=None):
    """Returns inputs (..., D) times a matrix (D, E), plus a bias (E,)."""
    # One product over all positions is faster than one per sentence.
    outputs = ops.matmul(ops.reshape(inputs, (-1, inputs.shape[-1])), kernel)
    if bias is not None:
        outputs = outputs + bias
    # Known sizes need no operation in a graph; a reshape may leave one open.
    known = inputs.shape[1:-1]
    first = ops.shape(inputs)[:-1] if None in known else (-1, *known)
    return ops.reshape(outputs, (*first, outputs.shape[-1]))


def project(denses, inputs, scale=1.0, weights=None):
    """Returns the outputs of several `Dense` layers for the same inputs (..., D)."""
    # The first is multiplied by `scale`; `weights` of `joined` make it one product.
    inputs = ops.cast(inputs, denses[0].compute_dtype)
    if weights:
        outputs, units = affine(inputs, *weights), [dense.units for dense in denses]
        ends = list(itertools.accumulate(units))[:-1]
        return ops.split(outputs, ends, axis=-1) if ends else [outputs]
    outputs = []
    for dense in denses:
        own = joined([dense], scale)
        if own:
            outputs.append(affine(inputs, *own))
        else:
            outputs.append(dense(inputs) if scale == 1.0 else dense(inputs) * scale)
        scale = 1.0
    return outputs
