"""Copies of Keras' attention layers and KerasHub's Transformer layers."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_transformer.nn.kernels.keras_private import (
    attention_projections,
    keras_hub_parts,
)

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
    _check_built(layer)
    projections = attention_projections(layer)
    _check_floats(layer, projections.values())
    options = layer.get_config() | {"dtype": layer.dtype_policy}
    for name, without in _NOT_OURS.items():
        value = options.pop(name, None)
        if value not in without:
            expected = f"`layer` must not use `{name}`, which this layer lacks"
            raise ValueError(f"{expected}. Received: {layer.name!r}, {name}={value}")
    if isinstance(options.get("output_shape"), (tuple, list)):
        (options["output_shape"],) = options["output_shape"]
    taken = cls(**{_NAMES.get(name, name): value for name, value in options.items()})
    widths = (projections[name].kernel.shape[0] for name in ("query", "value", "key"))
    taken.build(*((None, None, width) for width in widths))
    _take_attention(taken, projections)
    return taken


def _take_attention(attention, projections):
    """Copies four projections; Keras' have an axis of heads."""
    for name, theirs in projections.items():
        ours = getattr(attention, f"{name}_dense")
        inputs = 2 if name == "output" else 1
        rows = math.prod(theirs.kernel.shape[:inputs])
        _take(ours.kernel, ops.reshape(theirs.kernel, (rows, -1)))
        if theirs.bias is not None:
            _take(ours.bias, ops.reshape(theirs.bias, (-1,)))


def layer_from_keras_hub(cls, layer):
    """Returns one of our layers with the weights of one of KerasHub's."""
    kind = "TransformerDecoder" if cls.causal else "TransformerEncoder"
    kinds = {base.__name__ for base in type(layer).mro()}
    if kind not in kinds or not hasattr(layer, "normalize_first"):
        expected = f"`layer` must be a `keras_hub.layers.{kind}`"
        raise TypeError(f"{expected}. Received: {type(layer).__name__}")
    _check_built(layer)
    parts = keras_hub_parts(layer)
    attends = parts["cross_attention"] is not None
    if attends != cls.attends_to_source:
        raise ValueError(
            "`layer` must be built with `encoder_sequence` for a `DecoderLayer` and "
            f"without it for a `CausalLayer`. Received: {layer.name!r}, built "
            f"{'with' if attends else 'without'} it"
        )
    attentions = (
        ["self_attention", "cross_attention"] if attends else ["self_attention"]
    )
    projections = {name: attention_projections(parts[name]) for name in attentions}
    for one in projections.values():
        _check_floats(layer, [*one.values(), parts["hidden"], parts["output"]])
    rate = float(layer.dropout)
    taken = cls(
        layer.num_heads,
        layer.intermediate_dim,
        activation=layer.activation,
        key_dim=parts["self_attention"].key_dim,
        use_bias=True,
        dropout_rate=rate,
        attention_dropout_rate=rate,
        activation_dropout_rate=0.0,
        norm_first=layer.normalize_first,
        layer_norm_epsilon=layer.layer_norm_epsilon,
        kernel_initializer=layer.kernel_initializer,
        bias_initializer=layer.bias_initializer,
        dtype=layer.dtype_policy,
        name=layer.name,
    )
    last = projections[attentions[-1]]
    widths = last["query"].kernel.shape[0], last["value"].kernel.shape[0]
    taken.build(*((None, None, width) for width in widths[: len(attentions)]))
    for name, ours in zip([*attentions, "feed_forward"], taken.norms, strict=True):
        _take(ours.gamma, parts[f"{name}_norm"].gamma)
        _take(ours.beta, parts[f"{name}_norm"].beta)
    for name in attentions:
        _take_attention(getattr(taken, name), projections[name])
    for name in ("hidden", "output"):
        ours = getattr(taken.feed_forward, f"{name}_dense")
        _take(ours.kernel, parts[name].kernel)
        _take(ours.bias, parts[name].bias)
    return taken


def _check_built(layer):
    if not layer.built:
        expected = "`layer` must be built: call it or its model once"
        raise ValueError(f"{expected}. Received: {layer.name!r}, not built")


def _check_floats(layer, dense_layers):
    if any(dense.quantization_mode for dense in dense_layers):
        expected = "`layer` must hold floats: convert it first, then quantize"
        raise ValueError(f"{expected}. Received: {layer.name!r}, quantized")


def _take(variable, value):
    """Assigns a copy: JAX frees the array of a weight that is trained."""
    variable.assign(ops.copy(value))
