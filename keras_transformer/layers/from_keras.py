"""What an attention layer of Keras holds, in the terms of ours."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_transformer.kernels.keras_private import (
    attention_projections,
    has_own_attention,
    keras_hub_parts,
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


def taken_over(layer_class, layer, kind, attentions):
    """Makes a layer with the weights and the options of one of KerasHub.

    Args:
        layer_class: `EncoderLayer`, `DecoderLayer` or a class that inherits from one.
        layer: A layer of KerasHub, built.
        kind: "TransformerEncoder" or "TransformerDecoder", which it must be.
        attentions: Names of the attentions that it must have, and no other.

    Returns:
        A built layer of the class.

    Raises:
        TypeError: If it is no such layer.
        ValueError: If it is not built, has other attentions, or is quantised.
    """
    parts = _checked_parts(layer, kind, attentions)
    taken = layer_class(
        num_heads=layer.num_heads,
        d_ff=layer.intermediate_dim,
        key_dim=parts["self_attention"].key_dim,
        dropout_rate=layer.dropout,
        attention_dropout_rate=layer.dropout,
        activation_dropout_rate=0.0,
        activation=layer.activation,
        norm_first=layer.normalize_first,
        use_bias=True,
        layer_norm_epsilon=layer.layer_norm_epsilon,
        kernel_initializer=layer.kernel_initializer,
        bias_initializer=layer.bias_initializer,
        dtype=layer.dtype_policy,
        name=layer.name,
    )
    query, source, _ = shapes_of(parts[attentions[-1]])
    taken.build(*(query, source)[: len(attentions)])
    for name in attentions:
        for weight, value in weights_of(parts[name]).items():
            take(getattr(getattr(taken, name), weight), value)
        _take_norm(getattr(taken, f"{name}_norm"), parts[f"{name}_norm"])
    for name in ("hidden", "output"):
        take(getattr(taken.feed_forward, f"{name}_kernel"), parts[name].kernel)
        take(getattr(taken.feed_forward, f"{name}_bias"), parts[name].bias)
    _take_norm(taken.feed_forward_norm, parts["feed_forward_norm"])
    return taken


def _take_norm(ours, theirs):
    take(ours.gamma, theirs.gamma)
    take(ours.beta, theirs.beta)


def _checked_parts(layer, kind, attentions):
    is_one = all(hasattr(layer, n) for n in ("intermediate_dim", "normalize_first"))
    kinds = {base.__name__ for base in type(layer).mro()}
    if not is_one or kind not in kinds:
        raise TypeError(
            f"`layer` must be a `keras_hub.layers.{kind}`. Received: "
            f"{type(layer).__name__}"
        )
    parts = keras_hub_parts(layer)
    check_takable(layer, lambda: _dense_layers(parts))
    if any(parts[name] is None for name in attentions):
        raise ValueError(
            "`layer` must attend to a source: `CausalLayer` is the layer of a decoder "
            f"without one. Received: {layer.name!r}, built without `encoder_sequence`"
        )
    if parts["cross_attention"] is not None and "cross_attention" not in attentions:
        raise ValueError(
            "`layer` must attend to no source: `DecoderLayer` is the layer of a "
            f"decoder with one. Received: {layer.name!r}, built with "
            "`encoder_sequence`"
        )
    return parts


def _dense_layers(parts):
    """Returns all layers of a built one that hold matrices."""
    attentions = filter(None, map(parts.get, ("self_attention", "cross_attention")))
    projections = [attention_projections(one).values() for one in attentions]
    return [parts["hidden"], parts["output"], *(d for ds in projections for d in ds)]
