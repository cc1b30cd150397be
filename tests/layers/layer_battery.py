"""A table of all layers: options, shapes, and what of the battery does not hold."""

from __future__ import annotations

from typing import NamedTuple

import keras

from keras_transformer import layers

# What Keras does with the weights, as a configuration has it; none is a default.
WEIGHTS = {
    "kernel_initializer": keras.initializers.serialize(keras.initializers.HeNormal()),
    "bias_initializer": keras.initializers.serialize(keras.initializers.Constant(2.0)),
    "kernel_regularizer": keras.regularizers.serialize(keras.regularizers.L2(1e-3)),
    "bias_regularizer": keras.regularizers.serialize(keras.regularizers.L1(1e-3)),
    "kernel_constraint": keras.constraints.serialize(keras.constraints.MaxNorm(100)),
    "bias_constraint": keras.constraints.serialize(keras.constraints.MaxNorm(99)),
}
HEADS = {
    "num_heads": 3,
    "key_dim": 4,
    "value_dim": 7,
    "use_bias": False,
    "output_shape": 23,
    "activity_regularizer": keras.regularizers.serialize(keras.regularizers.L2(1e-3)),
    "seed": 7,
    **WEIGHTS,
}
ATTENTION = HEADS | {
    "dropout": 0.5,
    "flash_attention": False,
    "num_key_value_heads": 1,
    "positions": layers.RotaryPositions(base=50.0),
}
ADDITIVE = ATTENTION | {"positions": layers.AlibiPositions(after=3.0)}
COMPOSITE = {
    "num_heads": 3,
    "d_ff": 11,
    "key_dim": 5,
    "value_dim": 7,
    "dropout_rate": 0.5,
    "attention_dropout_rate": 0.4,
    "activation_dropout_rate": 0.3,
    "activation": "gelu",
    "norm_first": True,
    "use_bias": True,
    "layer_norm_epsilon": 1e-3,
    "attention": "local",
    "attention_window": 2,
    "num_key_value_heads": 1,
    "positions": layers.AlibiPositions(after=3.0),
    **WEIGHTS,
}
TABLE = {
    "dropout_rate": 0.5,
    "positions": "learned",
    "max_length": 11,
    "pad_id": 3,
    "embeddings_initializer": WEIGHTS["kernel_initializer"],
    "embeddings_regularizer": WEIGHTS["kernel_regularizer"],
    "embeddings_constraint": WEIGHTS["kernel_constraint"],
}
# What the numeric tests replace: so a weight moves by the loss alone.
EXACT = {
    "use_bias": True,
    "activity_regularizer": None,
    "kernel_regularizer": None,
    "bias_regularizer": None,
    "embeddings_regularizer": None,
    "dropout": 0.0,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "activation_dropout_rate": 0.0,
}


class Row(NamedTuple):
    """A layer of the battery.

    Attributes:
        layer_class: The class.
        options: A value other than the default for each argument.
        shapes: Shapes of the inputs, batch first.
        output_shape: Shape of the output.
        ids_below: Inputs are integers below this number, or floats where it is `None`.
        unmoved: Ends of the paths of weights that the loss does not move, by the
            layer's mathematics.
        drops: Whether it has a dropout.
    """

    layer_class: type
    options: dict
    shapes: tuple
    output_shape: tuple
    ids_below: int | None = None
    unmoved: tuple = ()
    drops: bool = True

    def exact_options(self):
        return self.options | {n: EXACT[n] for n in EXACT if n in self.options}

    def inputs(self, rng):
        if self.ids_below is not None:
            return [rng.integers(self.ids_below, size=s) for s in self.shapes]
        return [rng.standard_normal(s).astype("float32") for s in self.shapes]

    def symbols(self):
        dtype = "float32" if self.ids_below is None else "int32"
        return [keras.Input((None, *s[2:]), dtype=dtype) for s in self.shapes]


SELF, CROSS = ((2, 5, 11),), ((2, 5, 11), (2, 7, 17), (2, 7, 13))
SOFTMAX = ("key/bias",)  # It adds the same number to all scores of a query.
ROWS = {
    "attention": Row(layers.MultiHeadAttention, ATTENTION, SELF, (2, 5, 23)),
    "attention to another": Row(
        layers.MultiHeadAttention,
        {n: ATTENTION[n] for n in ATTENTION if n != "positions"},
        CROSS, (2, 5, 23), unmoved=SOFTMAX,
    ),
    "relu": Row(layers.ReluAttention, ATTENTION, SELF, (2, 5, 23)),
    "additive heads": Row(
        layers.MultiHeadAdditiveAttention, ADDITIVE, SELF, (2, 5, 23)
    ),
    "local": Row(layers.LocalAttention, ATTENTION | {"window": 2}, SELF, (2, 5, 23)),
    "linear": Row(layers.LinearAttention, HEADS, CROSS, (2, 5, 23), drops=False),
    "performer": Row(
        layers.PerformerAttention, HEADS | {"num_features": 19}, SELF, (2, 5, 23),
        unmoved=("random_features",), drops=False,
    ),
    "additive": Row(
        layers.AdditiveAttention,
        {"units": 7, "dropout_rate": 0.5, "use_bias": True, **WEIGHTS},
        CROSS, (2, 5, 17),
    ),
    "ssru": Row(layers.SSRU, WEIGHTS, SELF, (2, 5, 11), drops=False),
    "feed-forward": Row(
        layers.FeedForward,
        {"d_ff": 7, "activation": "gelu", "dropout_rate": 0.5, **WEIGHTS},
        SELF, (2, 5, 11),
    ),
    "encoder layer": Row(
        layers.EncoderLayer, COMPOSITE, SELF, (2, 5, 11), unmoved=SOFTMAX
    ),
    "causal layer": Row(
        layers.CausalLayer, COMPOSITE, SELF, (2, 5, 11), unmoved=SOFTMAX
    ),
    "decoder layer": Row(
        layers.DecoderLayer, COMPOSITE, CROSS[:2], (2, 5, 11), unmoved=SOFTMAX
    ),
    "embedding": Row(
        layers.PositionalEmbedding, {"vocabulary_size": 13, "d_model": 6, **TABLE},
        ((2, 11),), (2, 11, 6), ids_below=13,
    ),
    "features": Row(
        layers.FeatureEmbedding, {"vocabulary_size": 13, "d_model": 6, **TABLE},
        ((2, 11, 3),), (2, 11, 6), ids_below=13,
    ),
    "learned positions": Row(
        layers.PositionalEncoding,
        {"positions": "learned", "max_length": 5, "dropout_rate": 0.5},
        SELF, (2, 5, 11),
    ),
    "sinusoids": Row(
        layers.PositionalEncoding,
        {"positions": "sinusoidal-halves", "max_length": 7, "dropout_rate": 0.5},
        ((2, 5, 6),), (2, 5, 6),
    ),
    "patches": Row(
        layers.PatchEmbedding,
        {"image_shape": [4, 6, 3], "patch_size": 2, "d_model": 11},
        ((5, 4, 6, 3),), (5, 6, 11), drops=False,
    ),
    "class token": Row(
        layers.ClassToken, {}, ((2, 5, 6),), (2, 6, 6), drops=False,
    ),
}  # fmt: skip
