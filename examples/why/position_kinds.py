"""Seven kinds of positions: layers to add, and what attention itself may know."""

import keras
from keras import ops

import keras_transformer as kt
from keras_transformer.layers import RelativePositions


class DistanceBias(keras.layers.Layer, RelativePositions):
    """A learned bias of each head for each distance, the same from `farthest` on."""

    def __init__(self, num_heads, farthest=8, **kwargs):
        super().__init__(**kwargs)
        self.farthest = farthest
        self.biases = self.add_weight(shape=(num_heads, farthest + 1))
        self.built = True

    def bias(self, num_heads, query_positions, key_positions):
        distances = query_positions[:, None] - key_positions[None, :]
        return ops.take(self.biases, ops.clip(distances, 0, self.farthest), axis=1)


class RecurrentPositions(keras.layers.Layer):
    """Adds position vectors that a GRU makes, step by step from a constant input."""

    def build(self, shape):
        self.gru = keras.layers.GRU(shape[-1], return_sequences=True)
        self.gru.build((None, None, 1))

    def call(self, inputs):
        return inputs + self.gru(ops.ones((1, ops.shape(inputs)[1], 1)))


class Layer(kt.CausalLayer):
    """A causal layer whose attention knows positions, if `positions` says so."""

    positions = None

    def make_attention(self, name, d_model):
        heads, positions = self.num_heads, self.positions
        if positions == "bias":
            positions = DistanceBias(heads)
        return kt.MultiHeadAttention(
            heads, d_model // heads, positions=positions, name=name
        )


# What is added to the embeddings, for the most positions, and the attention's own kind.
KINDS = {
    "none": (lambda most: keras.layers.Identity(), None),
    "learned": (lambda most: kt.PositionalEncoding("learned", most), None),
    "sinusoidal": (lambda most: kt.PositionalEncoding(), None),
    "recurrent": (lambda most: RecurrentPositions(), None),
    "relative": (lambda most: keras.layers.Identity(), "bias"),
    "rotary": (lambda most: keras.layers.Identity(), "rotary"),
    "ALiBi": (lambda most: keras.layers.Identity(), "alibi"),
}
