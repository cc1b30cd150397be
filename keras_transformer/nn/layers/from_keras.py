"""Copies of Keras' attention layers."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.nn.kernels.keras_private import attention_projections

_ATTENTIONS = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
# Keras' options that ours lack, with the values that turn them off (axis 1 of (B, T, D)
# is the axis attended over), and Keras' names of our options.
_NOT_OURS = {
    "attention_axes": (None, 1, (1,), [1]),
    "use_gate": (None, False),
    "sliding_window": (None,),
}
_NAMES = {"head_dim": "key_dim", "num_query_heads": "num_heads"}


def attention_from_keras(cls, layer):
    """Returns a `MultiHeadAttention` with the weights of one of Keras' layers."""
    if not cls.equals_keras:
        raise TypeError(
            f"Keras has no counterpart of {cls.__name__}: use "
            f"`MultiHeadAttention.from_keras`. Received: {type(layer).__name__}"
        )
    if type(layer) not in _ATTENTIONS:  # A subclass may attend in its own way.
        raise TypeError(
            "`layer` must be a `keras.layers.MultiHeadAttention` or "
            "`GroupQueryAttention`, and no subclass. Received: "
            f"{type(layer).__name__}"
        )
    if not layer.built:
        expected = "`layer` must be built: call it or its model once"
        raise ValueError(f"{expected}. Received: {layer.name!r}, not built")
    projections = attention_projections(layer)
    if any(dense.quantization_mode for dense in projections.values()):
        expected = "`layer` must hold floats: convert it first, then quantize"
        raise ValueError(f"{expected}. Received: {layer.name!r}, quantized")
    options = layer.get_config() | {"dtype": layer.dtype_policy}
    for name, without in _NOT_OURS.items():
        value = options.pop(name, None)
        if value not in without:
            expected = f"`layer` must not use `{name}`, which this layer lacks"
            raise ValueError(f"{expected}. Received: {layer.name!r}, {name}={value}")
    if isinstance(options.get("output_shape"), (tuple, list)):
        (options["output_shape"],) = options["output_shape"]
    copy = cls(**{_NAMES.get(name, name): value for name, value in options.items()})
    widths = (projections[name].kernel.shape[0] for name in ("query", "value", "key"))
    copy.build(*((None, None, width) for width in widths))
    for name, theirs in projections.items():
        ours = getattr(copy, f"{name}_dense")
        for part in ("kernel", "bias"):
            value = getattr(theirs, part)
            if value is not None:
                # Keras' have an axis of heads. A copy, because JAX frees the array of a
                # weight that is trained.
                variable = getattr(ours, part)
                variable.assign(ops.copy(ops.reshape(value, variable.shape)))
    return copy
