"""Linformer attention by overriding one method.

A subclass of `MultiHeadAttention` overrides `attend`: it attends to a few mixtures of
the keys and values of all S positions (Wang et al., 2020,
https://arxiv.org/abs/2006.04768), so the cost grows linearly with S. The task: find the
value of a key in a long row.

    python examples/linformer_attention.py
"""

import argparse
import keras_transformer.quiet

import keras
import numpy as np
from encoder_parts import FeatureEmbedding
from keras import ops

import keras_transformer as kt

LENGTH, KEYS, VALUES = 128, 8, 8


@keras.saving.register_keras_serializable(package="examples")
class LinformerAttention(kt.MultiHeadAttention):
    """softmax(Q (E K)^T / sqrt(K)) (F V): equation 7, E and F shared by all heads.

    E and F have a row for each position up to `max_length`. Keys and values of padding
    count as zeros, so padding changes nothing. It cannot be causal, because a mixture
    contains later positions, and returns no attention weights.

    Args:
        max_length: Largest number of keys and values.
        projected_length: Number of mixtures, k in the paper.
    """

    def __init__(self, num_heads, key_dim, max_length, projected_length, **options):
        super().__init__(num_heads, key_dim, **options)
        if self.positions is not None:
            raise ValueError("`positions` must be None: a mixture has no place")
        self.max_length, self.projected_length = max_length, projected_length

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        shape = (self.max_length, self.projected_length)
        initializer = self.weight_options()["kernel_initializer"]
        self.key_mixture = self.add_weight(shape, initializer, name="key_mixture")
        self.value_mixture = self.add_weight(shape, initializer, name="value_mixture")

    def attend(
        self,
        queries,
        keys,
        values,
        mask=None,
        causal=False,
        training=None,
        with_weights=False,
        prepared=None,
    ):
        length = ops.shape(keys)[2]
        if causal or (mask is not None and mask.shape[2] != 1):
            raise ValueError("`mask` must be the same for all queries, so not causal")
        if keys.shape[2] is not None and length > self.max_length:
            raise ValueError(
                "The keys and values must have at most `max_length` positions. "
                f"Received: {length} positions, max_length={self.max_length}"
            )

        def mixed(inputs, mixture):  # (B, H, S, K) --> (B, H, k, K)
            if mask is not None:
                inputs = ops.where(ops.swapaxes(mask, -1, -2), inputs, 0)
            rows = ops.cast(mixture, inputs.dtype)[:length]
            return ops.matmul(ops.transpose(rows), inputs)

        keys, values = mixed(keys, self.key_mixture), mixed(values, self.value_mixture)
        outputs, _ = super().attend(queries, keys, values, training=training)
        return outputs, None

    def get_config(self):
        return super().get_config() | {
            "max_length": self.max_length,
            "projected_length": self.projected_length,
        }


@keras.saving.register_keras_serializable(package="examples")
class LinformerLayer(kt.EncoderLayer):
    """An encoder layer with attention to 32 mixtures of up to `LENGTH` positions."""

    def make_attention(self, name, d_model):
        width = d_model // self.num_heads
        return LinformerAttention(self.num_heads, width, LENGTH, 32, name=name)


def make_data(rows, seed):
    """Returns tokens (N, S, 2), a key and a value each, and answers.

    Each key of a row has one value. The first token asks for the value of a key that is
    only in the second half of the row.
    """
    rng = np.random.default_rng(seed)
    keys = rng.permuted(np.tile(np.arange(LENGTH) % KEYS, (rows, 1)), axis=1)
    near, asked = keys[:, 1 : LENGTH // 2], keys[:, :1]
    near[near == asked] += 1 + rng.integers(KEYS - 1, size=(near == asked).sum())
    keys %= KEYS
    values = np.take_along_axis(rng.integers(VALUES, size=(rows, KEYS)), keys, axis=1)
    answers = values[:, 0].copy()
    values[:, 0] = VALUES  # the question
    return np.stack([1 + keys, 1 + KEYS + values], axis=-1), answers


def train(layer_class, arguments=None):
    """Trains an encoder of two such layers; returns its accuracy."""
    parser = argparse.ArgumentParser(description=layer_class.__doc__)
    parser.add_argument("--rows", type=int, default=6400)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(1)
    ids = keras.Input((LENGTH, 2), dtype="int32")
    states = FeatureEmbedding(1 + KEYS + VALUES + 1, 64)(ids)
    sizes = {"num_heads": 4, "d_ff": 128, "norm_first": True}
    for _ in range(2):
        states = layer_class(**sizes)(states)
    answer = keras.layers.LayerNormalization()(states[:, 0])
    model = keras.Model(ids, keras.layers.Dense(VALUES)(answer))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = kt.Adam(kt.WarmupSchedule(2e-3, 20))
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(*make_data(options.rows, seed=1), batch_size=16, verbose=2)
    _, accuracy = model.evaluate(*make_data(512, seed=2), verbose=0)
    print(f"right answers {accuracy:.3f}, by chance {1 / VALUES:.3f}")
    return accuracy


def main(arguments=None):
    return train(LinformerLayer, arguments)


if __name__ == "__main__":
    main()
