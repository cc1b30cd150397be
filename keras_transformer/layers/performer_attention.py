"""Softmax attention approximated by random features, linear in the length."""

from __future__ import annotations

import math
from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.layers.arguments import check_size
from keras_transformer.layers.drawn_weights import (
    add_drawn_weight,
    orthogonal_gaussians,
    random_generator,
)
from keras_transformer.layers.linear_attention import LinearAttention
from keras_transformer.layers.subquadratic_attention import ProjectionOptions
from keras_transformer.types import Shape, Tensor, TensorLike

# Largest exponent of a key's feature: float32 holds up to exp(88), and sums are made.
LARGEST_EXPONENT = 64.0


def default_features(key_dim):
    """K ln K, rounded up, and at least K: how many features a head of width K has."""
    return max(key_dim, math.ceil(key_dim * math.log(key_dim)))


@keras.saving.register_keras_serializable(package="keras_transformer")
class PerformerAttention(LinearAttention):
    """Multi-head attention whose softmax is approximated, linear in the length.

    FAVOR+ of Choromanski et al., 2021, https://arxiv.org/abs/2009.14794 (section 2 and
    lemma 1): with x = q or k over K^(1/4) and vectors w_1 to w_F, each Gaussian,
    orthogonal in blocks of K,

        phi_i(x) = exp(w_i . x - |x|^2 / 2) / sqrt(F)

    is positive, and phi(q) . phi(k) has the mean exp(q . k / sqrt(K)), the softmax's
    numerator. More features make it exact, and large queries and keys make it need
    more. The output is that of `linear_attention`; there is no matrix of weights to
    return or to drop from. Features and sums are in float32.

    The vectors are the weight `random_features` (F, K), which all heads share. They are
    drawn once, saved and not trained; `redraw` draws new ones, which the paper does in
    training from time to time:

        redraw = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: attention.redraw(seed=epoch)
        )

    `initial_cache` and `step` do causal self-attention one position at a time, as those
    of `LinearAttention`, with a state whose size does not depend on the length.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys, K.
        value_dim: Width of each head's values, Kv; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        causal: Whether a query sees no position after its own; for self-attention.
        use_bias: Whether the projections add a bias.
        num_features: Random features of each head, F; default K ln K, rounded up, and
            at least K.
        seed: Integer seed of the features; default drawn from Python's generator.
        kernel_initializer: Initializer of the projections' matrices.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
    Call arguments:
        query: Float tensor (B, T, D_query).
        value: Float tensor (B, S, D_value); default `query`, which is self-attention.
        key: Float tensor (B, S, D_key); default `value`.
        mask: Boolean tensor (B, S) or (B, 1, S), True where a position may be attended
            to; default the Keras mask that `key` carries.
        training: Ignored; layers pass it on.
    Returns:
        Float tensor (B, T, output_dim).
    Raises:
        ValueError: If a size is not positive, the mask differs between queries, or a
            `value` is given to causal attention.

    Example:
        >>> attention = PerformerAttention(num_heads=2, key_dim=3, num_features=32)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    def __init__(
        self, num_heads: int, key_dim: int, value_dim: int | None = None,
        output_dim: int | None = None, causal: bool = False, use_bias: bool = True,
        num_features: int | None = None, seed: int | None = None,
        **kwargs: Unpack[ProjectionOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            num_heads, key_dim, value_dim, output_dim, causal, use_bias, **kwargs
        )
        check_size("num_features", num_features, optional=True)
        self.num_features = num_features
        self.seed = seed

    @property
    def feature_dim(self) -> int:
        """The number of features, F."""
        return self.num_features or default_features(self.key_dim)

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:  # fmt: skip
        super().build(query_shape, value_shape, key_shape)
        self.random_features = add_drawn_weight(
            self, "random_features", lambda: self._draw(self.seed)
        )

    def _draw(self, seed):
        generator = random_generator(seed)
        return orthogonal_gaussians(self.feature_dim, self.key_dim, generator)

    def redraw(self, seed: int | None = None) -> None:
        """Draws new random features; the layer must be built.

        Args:
            seed: Integer seed; default drawn from Python's generator.
        """
        self.random_features.assign(self._draw(seed))

    def feature_map(self, inputs: TensorLike) -> Tensor:
        """Returns the features phi of queries or keys.

        `call` computes with the same, up to factors that cancel.

        Args:
            inputs: Float tensor (B, H, T, K).

        Returns:
            Float tensor (B, H, T, F), positive.
        """
        return ops.exp(self._exponents(inputs)) * self.feature_dim**-0.5

    def _exponents(self, inputs):
        """w_i . x - |x|^2 / 2 with x = inputs / K^(1/4)."""
        inputs = inputs * self.key_dim**-0.25
        vectors = ops.transpose(self._vectors())  # (K, F)
        squares = ops.sum(ops.square(inputs), axis=-1, keepdims=True)
        return ops.matmul(inputs, vectors) - squares / 2

    def _vectors(self):
        return ops.cast(self.random_features, "float32")

    def _features(self, queries, keys, values):
        parts = (ops.cast(x, "float32") for x in (queries, keys, values))
        queries, keys, values = parts
        queries, keys = self._exponents(queries), self._exponents(keys)
        # A factor of a query's features cancels, and so does one of all keys'. That of
        # the keys must not depend on them: a later one would change it.
        queries -= ops.stop_gradient(ops.max(queries, axis=-1, keepdims=True))
        return ops.exp(queries), ops.exp(keys - self._excess()), values

    def _excess(self):
        """By how much keys' exponents can exceed the limit: they reach |w|^2 / 2."""
        squares = ops.sum(ops.square(self._vectors()), axis=-1)
        return ops.relu(ops.max(squares) / 2 - LARGEST_EXPONENT)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_features": self.num_features,
            "seed": self.seed,
        }
