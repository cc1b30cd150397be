"""What an attention layer of Keras holds, in the terms of ours."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_transformer.kernels.keras_private import (
    attention_projections,
    has_own_attention,
)

# Keras' name for an argument of ours.
_GROUPED = {"head_dim": "key_dim", "num_query_heads": "num_heads"}


def options_of(layer):
    """Returns the arguments of our layer that does the same.

    Args:
        layer: `keras.layers.MultiHeadAttention` or `GroupQueryAttention`, built.

    Raises:
        TypeError: If it is no such layer.
        ValueError: If it is not built, is quantized, or attends in a way of its own.
    """
    _check(layer)
    options = layer.get_config()
    options["dtype"] = layer.dtype_policy
    return {_GROUPED.get(name, name): value for name, value in options.items()}


def _check(layer):
    kinds = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention
    if not isinstance(layer, kinds):
        raise TypeError(
            "`layer` must be a `keras.layers.MultiHeadAttention` or a "
            f"`keras.layers.GroupQueryAttention`. Received: {type(layer).__name__}"
        )
    check_takable(layer, lambda: attention_projections(layer).values())
    if has_own_attention(layer):
        raise ValueError(
            "`layer` must compute attention as Keras does. Received: "
            f"{type(layer).__name__}, which overrides it"
        )


def check_takable(layer, dense_layers):
    """Raises `ValueError` unless a layer has weights, and as floats.

    Args:
        layer: The layer.
        dense_layers: Called once it is known to be built; returns what holds them.
    """
    if not layer.built:
        raise ValueError(
            "`layer` must be built, to have weights: call it or its model once. "
            f"Received: {layer.name!r}, not built"
        )
    if any(dense.quantization_mode for dense in dense_layers()):
        raise ValueError(
            "`layer` must hold floats: take its weights over, then quantize. "
            f"Received: {layer.name!r}, quantized"
        )


def shapes_of(layer):
    """Returns shapes of query, value and key, of which the widths are known."""
    projections = attention_projections(layer)
    widths = (projections[name].kernel.shape[0] for name in ("query", "value", "key"))
    return tuple((None, None, width) for width in widths)


def weights_of(layer):
    """Returns the weights by our names; Keras keeps the heads on an axis of their own.

    Adapters (LoRA) are merged into the matrices.
    """
    weights = {}
    for name, dense in attention_projections(layer).items():
        kernel, inputs = dense.kernel, 2 if name == "output" else 1
        rows = math.prod(kernel.shape[:inputs])
        weights[f"{name}_kernel"] = ops.reshape(kernel, (rows, -1))
        if dense.bias is not None:
            weights[f"{name}_bias"] = ops.reshape(dense.bias, (-1,))
    return weights


def take(variable, value):
    """Assigns a copy: on JAX an array of two layers is gone once one is trained."""
    variable.assign(ops.copy(value))
