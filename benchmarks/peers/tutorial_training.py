"""The architecture of TensorFlow's Transformer tutorial, under `model.fit`.

Written from its description, https://www.tensorflow.org/text/tutorials/transformer:
Keras' own MultiHeadAttention, Add and LayerNormalization, sinusoidal positions, Keras
masks, separate source and target embeddings and an output layer of its own. A head is
d_model / num_heads wide, as in the paper; the tutorial's are d_model wide, which would
be a larger model than everyone else's.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops
from peers.keras_training import KerasPeer
from training_workload import DROPOUT_RATE
from workload import Size


class Peer(KerasPeer):
    """Trains the tutorial's model; see `KerasPeer`."""

    def make_model(self, size: Size, longest: int) -> keras.Model:
        """Returns the functional model."""
        source = keras.Input((None,), dtype="int32")
        target_in = keras.Input((None,), dtype="int32")
        encoded = _embed(size, longest, source)
        for _ in range(size.num_layers):
            encoded = _attend(size, encoded, encoded)
            encoded = _feed_forward(size, encoded)
        states = _embed(size, longest, target_in)
        for _ in range(size.num_layers):
            states = _attend(size, states, states, use_causal_mask=True)
            states = _attend(size, states, encoded)
            states = _feed_forward(size, states)
        logits = layers.Dense(size.vocabulary_size)(states)
        return keras.Model((source, target_in), logits)


class PositionalEmbedding(layers.Layer):
    """Scaled embedding plus sinusoids, with a Keras mask of the padding.

    Args:
        size: The Transformer's sizes.
        longest: Most tokens of a sentence.
    """

    def __init__(self, size: Size, longest: int):
        super().__init__()
        self.embedding = layers.Embedding(
            size.vocabulary_size, size.d_model, mask_zero=True
        )
        self.scale = size.d_model**0.5
        self.positions = sinusoids(longest, size.d_model)

    def compute_mask(self, inputs, mask=None):
        return self.embedding.compute_mask(inputs, mask)

    def call(self, inputs):
        states = self.embedding(inputs) * self.scale
        positions = ops.cast(self.positions, states.dtype)
        return states + positions[: ops.shape(inputs)[1]]


def sinusoids(length: int, d_model: int) -> np.ndarray:
    """Sines and then cosines of each position, float32, shape [length, d_model]."""
    frequencies = 10000.0 ** -(np.arange(d_model // 2) / (d_model // 2))
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], -1).astype("float32")


def _embed(size, longest, ids):
    return layers.Dropout(DROPOUT_RATE)(PositionalEmbedding(size, longest)(ids))


def _attend(size, states, context, use_causal_mask=False):
    attention = layers.MultiHeadAttention(
        size.num_heads, size.d_model // size.num_heads, dropout=DROPOUT_RATE
    )
    attended = attention(
        query=states, value=context, key=context, use_causal_mask=use_causal_mask
    )
    return layers.LayerNormalization()(layers.Add()([states, attended]))


def _feed_forward(size, states):
    hidden = layers.Dense(size.d_ff, activation="relu")(states)
    output = layers.Dropout(DROPOUT_RATE)(layers.Dense(size.d_model)(hidden))
    return layers.LayerNormalization()(layers.Add()([states, output]))
