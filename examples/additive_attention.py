"""Attention with additive scores, by overriding `score`.

score(q, k) = w . tanh(q + k) in place of a product: Bahdanau et al., 2015,
https://arxiv.org/abs/1409.0473, appendix A.1.2. A subclass of `MultiHeadAttention`
overrides `score`. `AdditiveAttention` is the paper's own, with one head, which
recurrent_translator.py uses. The task is that of linformer_attention.py.

    python examples/additive_attention.py
"""

import keras_transformer.quiet

import keras
from keras import ops
from linformer_attention import train

import keras_transformer as kt
from keras_transformer.nn.masks import attention_mask


def additive_scores(queries, keys, kernel):
    """Returns w . tanh(q_t + k_s) (..., T, S) of queries and keys (..., T or S, U).

    `kernel` is w (U, 1), or one for each head (H, U, 1). It takes memory for T * S
    vectors of width U.
    """
    hidden = ops.tanh(ops.expand_dims(queries, -2) + ops.expand_dims(keys, -3))
    return ops.matmul(hidden, kernel)[..., 0]


@keras.saving.register_keras_serializable(package="examples")
class MultiHeadAdditiveAttention(kt.MultiHeadAttention):
    """Multi-head attention with additive scores, which are not divided by sqrt(K)."""

    equals_keras = False  # `from_keras` refuses weights made for products.

    def __init__(self, num_heads, key_dim, *args, **options):
        super().__init__(num_heads, key_dim, *args, **options)
        if isinstance(self.positions, kt.RotaryPositions):
            raise ValueError("`positions` must not be 'rotary', which needs products")
        self.query_scale = 1.0

    def add_own_weights(self):
        # Each head's w is a column: initializers take the first axis for the inputs.
        shape, weight_options = (self.key_dim, self.num_heads), self.weight_options()
        initializer = weight_options["kernel_initializer"]
        self.score_kernel = self.add_weight(shape, initializer, name="score_kernel")

    def score(self, queries, keys):
        """(B, H, T, K) and (B, G, S, K) --> (B, H, T, S)."""
        keys = ops.repeat(keys, self.num_heads // keys.shape[1], axis=1)
        # Keras casts weights in `__call__` only.
        kernel = ops.cast(self.score_kernel, queries.dtype)
        return additive_scores(queries, keys, ops.transpose(kernel)[:, None, :, None])


@keras.saving.register_keras_serializable(package="examples")
class AdditiveAttention(keras.layers.Layer):
    """softmax(w . tanh(W_q q + W_k k)) V: one head, values not projected.

    To decode, project the keys of a source once with `key_dense` and pass them to
    `attend` for each query. Keras' layer of this name has no projections.

    Args:
        units: Width of the hidden layer, U.
    """

    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = units
        self.query_dense = keras.layers.Dense(units, use_bias=False, name="query_dense")
        self.key_dense = keras.layers.Dense(units, use_bias=False, name="key_dense")

    def build(self, query_shape, value_shape):
        self.query_dense.build(query_shape)
        self.key_dense.build(value_shape)
        self.score_kernel = self.add_weight((self.units,), name="score_kernel")

    def call(self, query, value, mask=None):
        """Returns (B, T, D) of (B, T, D_query), (B, S, D) and a boolean mask (B, S)."""
        return self.attend(query, self.key_dense(value), value, mask)[0]

    def attend(self, query, projected_key, value, mask=None):
        """Returns the output and the weights (B, T, S) for keys (B, S, U)."""
        kernel = ops.cast(self.score_kernel, self.compute_dtype)[:, None]
        scores = additive_scores(self.query_dense(query), projected_key, kernel)
        weights = kt.layers.masked_softmax(scores, attention_mask(mask))
        return ops.matmul(weights, value), weights

    def get_config(self):
        return super().get_config() | {"units": self.units}


@keras.saving.register_keras_serializable(package="examples")
class AdditiveLayer(kt.EncoderLayer):
    def make_attention(self, name, d_model):
        sizes = self.num_heads, d_model // self.num_heads
        return MultiHeadAdditiveAttention(*sizes, name=name)


def main(arguments=None):
    return train(AdditiveLayer, arguments)


if __name__ == "__main__":
    main()
