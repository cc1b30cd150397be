"""What an encoder or decoder layer of KerasHub holds, in the terms of ours."""

from __future__ import annotations

from keras_transformer.kernels.keras_private import (
    attention_projections,
    keras_hub_parts,
)
from keras_transformer.layers.keras_attention import (
    check_takable,
    shapes_of,
    take,
    weights_of,
)


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
