"""Layers of KerasHub as layers of this package, with their weights and outputs.

`TransformerEncoder` becomes an `EncoderLayer`; `TransformerDecoder` becomes a
`DecoderLayer`, or a `CausalLayer` where it was built without `encoder_sequence`.

    python examples/from_keras_hub.py
"""

import argparse
import keras_transformer.quiet

import keras
import keras_hub
import numpy as np
from keras import ops

from keras_transformer import CausalLayer, DecoderLayer, EncoderLayer


def from_keras_hub(layer):
    """Returns a copy of a built layer of KerasHub."""
    if not layer.built:
        raise ValueError(
            "`layer` must be built: call it or its model once. Received: "
            f"{layer.name!r}, not built"
        )
    self_attention = layer._self_attention_layer
    attentions = {"self_attention": self_attention}
    layer_class = EncoderLayer
    if isinstance(layer, keras_hub.layers.TransformerDecoder):
        layer_class = CausalLayer
        if layer._cross_attention_layer is not None:
            layer_class = DecoderLayer
            attentions["cross_attention"] = layer._cross_attention_layer
    copy = layer_class(
        layer.num_heads,
        layer.intermediate_dim,
        activation=layer.activation,
        key_dim=self_attention.key_dim,
        use_bias=True,
        dropout_rate=layer.dropout,
        attention_dropout_rate=layer.dropout,
        activation_dropout_rate=0.0,
        norm_first=layer.normalize_first,
        layer_norm_epsilon=layer.layer_norm_epsilon,
        dtype=layer.dtype_policy,
        name=layer.name,
    )
    last = list(attentions.values())[-1]
    states = (None, None, last._query_dense.kernel.shape[0])
    encoder_output = (None, None, last._value_dense.kernel.shape[0])
    copy.build(*(states, encoder_output)[: len(attentions)])
    for name, theirs in attentions.items():
        ours = getattr(copy, name)
        for part in ("query", "key", "value", "output"):
            dense = getattr(theirs, f"_{part}_dense")
            take(getattr(ours, f"{part}_dense"), dense, "kernel", "bias")
    feed_forward = copy.feed_forward
    hidden = layer._feedforward_intermediate_dense
    take(feed_forward.hidden_dense, hidden, "kernel", "bias")
    take(feed_forward.output_dense, layer._feedforward_output_dense, "kernel", "bias")
    for name, norm in zip([*attentions, "feedforward"], copy.norms, strict=True):
        take(norm, getattr(layer, f"_{name}_layer_norm"), "gamma", "beta")
    return copy


def take(ours, theirs, *names):
    """Copies the weights of a part; KerasHub's attention has an axis of heads."""
    if getattr(theirs, "quantization_mode", None):
        raise ValueError(
            "`layer` must hold floats: convert it first, then quantize. Received: "
            f"{theirs.name!r}, quantized"
        )
    for name in names:
        variable = getattr(ours, name)
        value = ops.reshape(getattr(theirs, name), variable.shape)
        # A copy: JAX frees the array of a weight that is trained.
        variable.assign(ops.copy(value))


def main(arguments=None):
    """Copies an encoder and a decoder layer; returns the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=24, help="width of the states")
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    states = keras.random.normal((2, 5, options.width))
    source = keras.random.normal((2, 7, options.width))
    sizes = {"intermediate_dim": 48, "num_heads": 3}
    differences = []
    for theirs, inputs in (
        (keras_hub.layers.TransformerEncoder(**sizes), [states]),
        (keras_hub.layers.TransformerDecoder(**sizes), [states]),
        (keras_hub.layers.TransformerDecoder(**sizes), [states, source]),
    ):
        expected = ops.convert_to_numpy(theirs(*inputs))
        ours = from_keras_hub(theirs)
        outputs = ops.convert_to_numpy(ours(*inputs))
        difference = float(np.abs(outputs - expected).max())
        kinds = f"{type(theirs).__name__} -> {type(ours).__name__}"
        print(f"{kinds}: largest difference {difference:.1e}")
        differences.append(difference)
    return differences


if __name__ == "__main__":
    main()
