"""Performer attention: a softmax by random features, linear in the length.

A subclass of `LinearAttention` overrides `features`: those of FAVOR+ (Choromanski et
al., 2021, https://arxiv.org/abs/2009.14794, section 2 and lemma 1). The task is that of
linformer_attention.py.

    python examples/performer_attention.py
"""

import math
import random
import keras_transformer.quiet

import keras
import numpy as np
from keras import ops
from linear_attention import LinearAttention
from linformer_attention import train

import keras_transformer as kt

# Largest exponent of a key's feature; float32 holds exp(88).
LARGEST_EXPONENT = 64.0


@keras.saving.register_keras_serializable(package="examples")
class PerformerAttention(LinearAttention):
    """Multi-head attention with an approximate softmax.

    With x = q or k over K^(1/4) and Gaussian vectors w_1 to w_F, orthogonal in blocks
    of K, the features

        phi_i(x) = exp(w_i . x - |x|^2 / 2) / sqrt(F)

    are positive, and phi(q) . phi(k) has the mean exp(q . k / sqrt(K)). More features
    are more exact; large queries and keys need more. All heads share the vectors, the
    untrained weight `random_features` (F, K); `redraw` draws new ones, as the paper
    does from time to time in training.

    Args:
        num_features: Random features of each head, F; default K ln K, at least K.
        seed: Integer seed of the features; default random.
    """

    def __init__(
        self, num_heads, key_dim, value_dim=None, num_features=None, **options
    ):
        super().__init__(num_heads, key_dim, value_dim, **options)
        self.num_features = num_features

    @property
    def feature_dim(self):
        least = math.ceil(self.key_dim * math.log(self.key_dim))
        return self.num_features or max(self.key_dim, least)

    def add_own_weights(self):
        numbers = self.draw(self.seed)
        self.random_features = self.add_weight(
            numbers.shape,
            name="random_features",
            trainable=False,
            dtype="float32",
            autocast=False,
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(numbers),
        )

    def draw(self, seed):
        """Returns vectors (F, K)."""
        seed = random.randrange(2**31) if seed is None else seed
        generator = np.random.default_rng(seed)
        vectors = orthogonal_gaussians(self.feature_dim, self.key_dim, generator)
        return vectors.astype("float32")

    def redraw(self, seed=None):
        """Draws new random features."""
        self.random_features.assign(self.draw(seed))

    def feature_map(self, inputs):
        """Returns the features phi; `features` leaves out factors that cancel."""
        return ops.exp(self.exponents(inputs)) * self.feature_dim**-0.5

    def exponents(self, inputs):
        """w_i . x - |x|^2 / 2 with x = inputs / K^(1/4)."""
        inputs = inputs * self.key_dim**-0.25
        vectors = ops.cast(self.random_features, "float32")
        squares = ops.sum(ops.square(inputs), axis=-1, keepdims=True)
        return ops.matmul(inputs, ops.transpose(vectors)) - squares / 2

    def features(self, queries, keys):
        queries = self.exponents(queries)
        keys = self.exponents(keys)
        # Factors of one query's features cancel, and so does a factor of all keys'.
        queries -= ops.stop_gradient(ops.max(queries, axis=-1, keepdims=True))
        # That of the keys must not depend on them, or a later one would change it: the
        # exponents w . k - |k|^2 / 2 are |w|^2 / 2 at most.
        vectors = ops.cast(self.random_features, "float32")
        squares = ops.sum(ops.square(vectors), axis=-1)
        excess = ops.relu(ops.max(squares) / 2 - LARGEST_EXPONENT)
        return ops.exp(queries), ops.exp(keys - excess)

    def get_config(self):
        return super().get_config() | {"num_features": self.num_features}


def orthogonal_gaussians(number, width, generator):
    """Returns Gaussian vectors (F, K), orthogonal in blocks of K: section 2.4."""
    blocks = []
    for _ in range(-(-number // width)):
        matrix, upper = np.linalg.qr(generator.standard_normal((width, width)))
        # Without the signs the matrices would not be uniform.
        blocks.append((matrix * np.sign(np.diag(upper))).T)
    # The lengths of independent Gaussian vectors.
    lengths = np.linalg.norm(generator.standard_normal((number, width)), axis=1)
    return np.concatenate(blocks)[:number] * lengths[:, None]


@keras.saving.register_keras_serializable(package="examples")
class PerformerLayer(kt.EncoderLayer):
    def make_attention(self, name, d_model):
        sizes = self.num_heads, d_model // self.num_heads
        return PerformerAttention(*sizes, seed=1, name=name)


def main(arguments=None):
    return train(PerformerLayer, arguments)


if __name__ == "__main__":
    main()
