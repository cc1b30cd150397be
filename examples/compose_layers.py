"""Layers in your own Keras model: a sentence classifier with its own attention.

A subclass of `EncoderLayer` replaces the feed-forward network by a gated one (Shazeer,
2020, https://arxiv.org/abs/2002.05202) by overriding one method. The task: does the
first token of the sentence appear in it again?

    python examples/compose_layers.py --epochs 12
"""

import argparse
import keras_transformer.quiet

import keras
import numpy as np

from keras_transformer import EncoderLayer, PositionalEmbedding

VOCABULARY_SIZE, LENGTH = 20, 12


@keras.saving.register_keras_serializable(package="examples")
class GatedFeedForward(keras.layers.Layer):
    """(sigmoid(x W) * (x V)) U: a hidden layer with a gate, then a linear map."""

    def __init__(self, d_ff, **kwargs):
        super().__init__(**kwargs)
        self.d_ff = d_ff

    def build(self, input_shape):
        self.gate = keras.layers.Dense(self.d_ff, activation="sigmoid", use_bias=False)
        self.value = keras.layers.Dense(self.d_ff, use_bias=False)
        self.output_map = keras.layers.Dense(input_shape[-1], use_bias=False)
        self.gate.build(input_shape)
        self.value.build(input_shape)
        self.output_map.build((*input_shape[:-1], self.d_ff))
        self.built = True

    def call(self, inputs, training=None):
        return self.output_map(self.gate(inputs) * self.value(inputs))

    def get_config(self):
        return super().get_config() | {"d_ff": self.d_ff}


@keras.saving.register_keras_serializable(package="examples")
class GatedEncoderLayer(EncoderLayer):
    """An encoder layer with a gated feed-forward network."""

    def make_feed_forward(self, name):
        return GatedFeedForward(self.d_ff, dtype=self.dtype_policy, name=name)


def make_model():
    """Returns a classifier of padded sentences (B, S), padding 0."""
    ids = keras.Input((None,), dtype="int32")
    # The mask of padding from the embedding reaches every later layer.
    states = PositionalEmbedding(VOCABULARY_SIZE, 32, pad_id=0)(ids)
    for _ in range(2):
        states = GatedEncoderLayer(num_heads=4, d_ff=64)(states)
    answer = keras.layers.Dense(1, activation="sigmoid")(states[:, 0])
    return keras.Model(ids, answer)


def make_data(rows, seed):
    """Returns sentences of 4 to LENGTH tokens and whether the first comes again."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, VOCABULARY_SIZE, (rows, LENGTH))
    lengths = rng.integers(4, LENGTH + 1, rows)
    ids[np.arange(LENGTH) >= lengths[:, None]] = 0
    return ids.astype("int32"), (ids[:, 1:] == ids[:, :1]).any(axis=1).astype("int32")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=8000)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    model = make_model()
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(
        *make_data(options.rows, seed=1),
        batch_size=64,
        epochs=options.epochs,
        validation_data=make_data(1000, seed=2),
        verbose=2,
    )
    return model


if __name__ == "__main__":
    main()
