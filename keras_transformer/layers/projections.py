"""Layers made of Keras' `Dense` layers; several make one product where that is exact.

Weights, initializers, regularizers, adapters (LoRA) and quantisation are Keras' own:
each `Dense` is a public attribute of its layer.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.kernels.few_passes import affine
from keras_transformer.layers.adaptation import quantised_policies
from keras_transformer.masks import carried_mask
from keras_transformer.types import Tensor, TensorLike, WeightOptions

_GET = {
    "initializer": keras.initializers.get,
    "regularizer": keras.regularizers.get,
    "constraint": keras.constraints.get,
}
_SERIALIZE = {
    "initializer": keras.initializers.serialize,
    "regularizer": keras.regularizers.serialize,
    "constraint": keras.constraints.serialize,
}
# What may be said of every matrix and every bias of a layer, with its default.
WEIGHT_DEFAULTS = {
    "kernel_initializer": "glorot_uniform",
    "bias_initializer": "zeros",
    "kernel_regularizer": None,
    "bias_regularizer": None,
    "kernel_constraint": None,
    "bias_constraint": None,
}


class ComposedLayer(keras.layers.Layer):
    """Base of the layers that are made of `Dense` layers.

    Args:
        **options: `kernel_initializer`, `kernel_regularizer`, `kernel_constraint` of
            the matrices and `bias_initializer`, `bias_regularizer`, `bias_constraint`
            of the biases of all of them; the rest as for `keras.layers.Layer`.
    """

    def __init__(self, **options: Unpack[WeightOptions]) -> None:
        given = {n: options.pop(n, default) for n, default in WEIGHT_DEFAULTS.items()}
        super().__init__(**options)
        for name, option in given.items():
            setattr(self, name, _GET[name.split("_")[1]](option))
        self.supports_masking = True

    def weight_options(self) -> dict[str, Any]:
        """Returns the options of the weights as plain values, for a part of the layer.

        So each part has an initializer of its own: one object gives equal weights.
        """
        return {
            name: _SERIALIZE[name.split("_")[1]](getattr(self, name))
            for name in WEIGHT_DEFAULTS
        }

    def dense(
        self, name: str, units: int, use_bias: bool = True, **options: Any
    ) -> keras.layers.Dense:
        """Returns a `Dense` layer with the layer's options; override to use another."""
        return keras.layers.Dense(
            units, use_bias=use_bias, dtype=self.dtype_policy, name=name,
            **self.weight_options(), **options,
        )  # fmt: skip

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the first input and carries its Keras mask."""
        return carried_mask(inputs)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.weight_options() | quantised_policies(self)


def joined(denses, scale=1.0):
    """Returns kernels and biases side by side, as `affine` takes them after its input.

    The first is multiplied by `scale`. `()` if only the layers' own calls will do.
    """
    dtype = denses[0].compute_dtype
    kernels, biases = [], []
    for dense in denses:
        is_plain = (
            type(dense) is keras.layers.Dense
            and dense.activation is keras.activations.linear
            and dense.activity_regularizer is None
            and dense.quantization_mode is None
        )
        if not is_plain:
            return ()
        kernels.append(ops.cast(dense.kernel, dtype))  # with adapters merged in
        has_bias = dense.bias is not None
        biases.append(ops.cast(dense.bias, dtype) if has_bias else None)
    has_biases = any(bias is not None for bias in biases)
    if has_biases:
        for i, bias in enumerate(biases):
            biases[i] = ops.zeros((denses[i].units,), dtype) if bias is None else bias
    parts = [kernels, biases] if has_biases else [kernels]
    for i, part in enumerate(parts):
        if scale != 1.0:
            part[0] = part[0] * scale
        parts[i] = ops.concatenate(part, axis=-1) if len(part) > 1 else part[0]
    return tuple(parts)  # (D, sum of the units) and (sum of the units,)


def project(denses, inputs, scale=1.0, training=False, weights=None):
    """Applies `Dense` layers to the same inputs (..., D); the first output is scaled.

    Args:
        denses: The layers.
        inputs: Float tensor (..., D).
        scale: What the first layer's output is multiplied by.
        training: Whether a gradient will be asked for.
        weights: `joined` of them if they are at hand; made here if `None`.

    Returns:
        List of float tensors (..., units), one a layer.
    """
    inputs = ops.cast(inputs, denses[0].compute_dtype)
    weights = joined(denses, scale) if weights is None else weights
    if not weights:
        first, *others = [dense(inputs, training=training) for dense in denses]
        return [first if scale == 1.0 else first * scale, *others]
    # One product over all positions is faster than one a sentence.
    rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
    outputs = affine(rows, *weights, training=training)
    # Sizes that are known cost a graph nothing; at most one may be left open.
    known = inputs.shape[1:-1]
    first = shape_of(inputs)[:-1] if None in known else (-1, *known)
    outputs = ops.reshape(outputs, (*first, outputs.shape[-1]))
    if len(denses) == 1:
        return [outputs]
    units = map(operator.attrgetter("units"), denses)
    return ops.split(outputs, list(itertools.accumulate(units))[:-1], axis=-1)
