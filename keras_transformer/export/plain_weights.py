"""Weights for other systems: those of a model without adapters or quantisation."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.keras_private import layers_within


def check_plain(model: keras.Model, what: str):
    """Raises `ValueError` if a model's matrices are more than its weights.

    Args:
        model: A built model.
        what: What needs plain weights, for the message.
    """
    for layer in layers_within(model):
        if layer.quantization_mode is not None:
            raise ValueError(
                f"{what} takes the weights of a float model, and quantises them itself "
                f"where it can. Received: {layer.path} with "
                f"quantization_mode={layer.quantization_mode!r}"
            )
        if getattr(layer, "lora_enabled", False):
            raise ValueError(
                f"{what} knows no adapters: save the model as a .keras file and load "
                f"it, which merges them. Received: {layer.path} with an adapter"
            )


def named_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """Returns a model's weights by their paths, such as "encoder_norm/gamma".

    Args:
        model: A built model.

    Returns:
        The arrays; those in bfloat16, which NumPy lacks, as float32.
    """
    named = {}
    for weight in model.weights:
        name = weight.path.removeprefix(f"{model.name}/")
        value = weight.value
        if keras.backend.standardize_dtype(weight.dtype) == "bfloat16":
            value = ops.cast(value, "float32")
        named[name] = np.ascontiguousarray(ops.convert_to_numpy(value))
    return named
