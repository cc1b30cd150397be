"""What an encoder or decoder layer of KerasHub holds, in the terms of ours."""

from __future__ import annotations

from keras_transformer.kernels.keras_private import keras_hub_parts
from keras_transformer.layers.keras_attention import shapes_of, take, weights_of


def taken_over(layer_class, layer, attentions):
    """Makes a layer with the weights and the options of one of KerasHub.

    Args:
        layer_class: `EncoderLayer`, `DecoderLayer` or a class that inherits from one.
        layer: `keras_hub.layers.TransformerEncoder` or `TransformerDecoder`, built.
        attentions: Names of the attentions that the layer must have.

    Returns:
        A built layer of the class.

    Raises:
        TypeError: If it is no such layer.
        ValueError: If it is not built, lacks an attention, or is quantised.
    """
    parts = _checked_parts(layer, attentions)
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


def _checked_parts(layer, attentions):
    is_one = all(hasattr(layer, n) for n in ("intermediate_dim", "normalize_first"))
    is_decoder = any(
        kind.__name__ == "TransformerDecoder" for kind in type(layer).mro()
    )
    kind = "TransformerDecoder" if len(attentions) > 1 else "TransformerEncoder"
    if not is_one or is_decoder != (len(attentions) > 1):
        raise TypeError(
            f"`layer` must be a `keras_hub.layers.{kind}`. Received: "
            f"{type(layer).__name__}"
        )
    if not layer.built:
        raise ValueError(
            "`layer` must be built, to have weights: call it or its model once. "
            f"Received: {layer.name!r}, not built"
        )
    parts = keras_hub_parts(layer)
    if any(parts[name] is None for name in attentions):
        raise ValueError(
            "`layer` must attend to a source: `CausalLayer` is the layer of a decoder "
            f"without one. Received: {layer.name!r}, built without `encoder_sequence`"
        )
    if parts["hidden"].quantization_mode is not None:
        raise ValueError(
            "`layer` must hold floats: take its weights over, then quantize. "
            f"Received: {layer.name!r}, quantized"
        )
    return parts
