"""Attention in time and memory linear in the length, without a window."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.cache import of_parents
from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.blocks import join_blocks, split_blocks
from keras_transformer.layers.subquadratic_attention import (
    ProjectionOptions,
    SubquadraticAttention,
)
from keras_transformer.types import Nest, Tensor, TensorLike

# Positions that causal attention takes at once.
BLOCK = 64
# A sum of weights below this one is no number to divide by.
SMALLEST_TOTAL = 1e-30


def linear_attention(
    queries: TensorLike, keys: TensorLike, values: TensorLike, causal: bool = False
) -> Tensor:
    """Attends by the product of features, whose sums need no matrix of T times S.

    phi(Q) (phi(K)^T V) / phi(Q) sum(phi(K)): equations 4 to 9 of Katharopoulos et al.,
    2020, https://arxiv.org/abs/2006.16236. The causal form works in blocks:
    sums over the blocks before, and a small product within the block.

    Args:
        queries: Features of the queries, float tensor (B, H, T, K), not negative.
        keys: Features of the keys, float tensor (B, H, S, K); 0 where a position may
            not be attended to.
        values: Float tensor (B, H, S, Kv).
        causal: Whether query t attends to keys 0 to t alone; needs S = T.

    Returns:
        Float tensor (B, H, T, Kv); zeros where the features of all keys are 0.

    Example:
        >>> features = ops.elu(np.zeros((1, 1, 2, 3), "float32")) + 1
        >>> values = np.array([[[[1.0], [3.0]]]], "float32")
        >>> outputs = linear_attention(features, features, values, causal=True)
        >>> ops.convert_to_numpy(outputs).tolist()
        [[[[1.0], [2.0]]]]
    """
    values = _with_ones(values)
    if not causal:
        return _divided(ops.matmul(queries, _summed(keys, values)))
    length = ops.shape(queries)[2]
    queries, keys, values = (split_blocks(x, BLOCK) for x in (queries, keys, values))
    sums = _summed(keys, values)  # (B, H, M, K, Kv + 1)
    rest = ((0, 0), (0, 0))
    before = ops.cumsum(ops.pad(sums[:, :, :-1], (*rest, (1, 0), *rest)), axis=2)
    products = ops.tril(ops.matmul(queries, ops.swapaxes(keys, -1, -2)))
    outputs = ops.matmul(products, values) + ops.matmul(queries, before)
    return _divided(join_blocks(outputs, length))


def _with_ones(values):
    """Adds a unit of 1, whose weighted sum is the sum of the weights."""
    return ops.pad(values, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=1)


def _summed(keys, values):
    """(..., S, K), (..., S, Kv + 1) --> (..., K, Kv + 1)."""
    return ops.matmul(ops.swapaxes(keys, -1, -2), values)


def _divided(outputs):
    """(..., T, Kv + 1) --> (..., T, Kv), divided by the last unit."""
    totals = outputs[..., -1:]
    # The square of a very small total, in its gradient, would be zero: divide twice.
    scale = ops.stop_gradient(ops.where(totals > SMALLEST_TOTAL, totals, 1.0))
    outputs, totals = outputs[..., :-1] / scale, totals / scale
    return outputs / ops.where(totals > SMALLEST_TOTAL, totals, 1.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LinearAttention(SubquadraticAttention):
    """Multi-head attention without softmax, linear in the length.

    A query's weight on a key is phi(q) . phi(k) over the sum of these, with phi(x) =
    elu(x) + 1 of each unit: Katharopoulos et al., 2020,
    https://arxiv.org/abs/2006.16236. There is no matrix of weights to return or to drop
    from. Override `feature_map` for other features. Sums are in float32.

    `initial_cache` and `step` do causal self-attention one position at a time, with the
    interface that a `DecoderLayer` expects of `MultiHeadAttention` and a state whose
    size does not depend on the length. It follows the hypotheses of a beam.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys, K.
        value_dim: Width of each head's values, Kv; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        causal: Whether a query sees no position after its own; for self-attention.
        use_bias: Whether the projections add a bias.
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
        >>> attention = LinearAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    def __init__(
        self, num_heads: int, key_dim: int, value_dim: int | None = None,
        output_dim: int | None = None, causal: bool = False, use_bias: bool = True,
        **kwargs: Unpack[ProjectionOptions],
    ) -> None:  # fmt: skip
        super().__init__(num_heads, key_dim, value_dim, output_dim, use_bias, **kwargs)
        self.causal = causal

    @property
    def feature_dim(self) -> int:
        """How many features `feature_map` gives."""
        return self.key_dim

    def feature_map(self, inputs: TensorLike) -> Tensor:
        """Turns queries or keys into features; override for others.

        Args:
            inputs: Float tensor (B, H, T, K).

        Returns:
            Float tensor (B, H, T, F), positive, with F = `feature_dim`.
        """
        return ops.elu(inputs) + 1.0

    def _attend(self, queries, keys, values, is_key, training):
        queries, keys, values = self._features(queries, keys, values)
        if is_key is not None:
            keys = ops.where(is_key, keys, 0.0)
        return linear_attention(queries, keys, values, self.causal)

    def _features(self, queries, keys, values):
        """Features of queries and keys, and the values, all in float32."""
        # Half precision is too coarse for sums over a whole sequence.
        parts = (ops.cast(x, "float32") for x in (queries, keys, values))
        queries, keys, values = parts
        return self.feature_map(queries), self.feature_map(keys), values

    def decoding_weights(self, *names: str) -> Nest:
        """As `MultiHeadAttention.decoding_weights`."""
        return self.projections.decoding_weights(*names)

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns the state of `step` before the first position.

        Args:
            sentences: Number of sentences, B.
            hypotheses: Hypotheses of each that are decoded side by side, N.
            length: Ignored; `MultiHeadAttention` needs it.

        Returns:
            A tuple of one float32 tensor (B, N, H * F * (Kv + 1)), the sums so
            far of F features.
        """
        number, width = self.projections.heads["value"]
        size = number * self.feature_dim * (width + 1)
        return (ops.zeros((sentences, hypotheses, size), "float32"),)

    def resize_cache(
        self, cache: Nest, sentences: TensorLike, more: int | TensorLike
    ) -> Nest:
        """Returns the sums of some sentences, which need no room for more positions.

        Args:
            cache: The sums so far, from `initial_cache` or `step`.
            sentences: Integer tensor (B',), places of the sentences to keep.
            more: Ignored; `MultiHeadAttention` needs it.

        Returns:
            A tuple of one float32 tensor (B', N, H * F * (Kv + 1)).
        """
        return (ops.take(cache[0], sentences, axis=0),)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: TensorLike | None,
        weights: Nest,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Causal self-attention of one new position to itself and those before it.

        Args:
            inputs: Float tensor (B, N, D), the position's input for each hypothesis.
            cache: The sums so far, from `initial_cache` or the step before.
            place: `cache_place` of the position, with the hypotheses' parents.
            mask: Ignored; `MultiHeadAttention` needs it.
            weights: `decoding_weights("query", "key", "value")`.

        Returns:
            The output (B, N, output_dim) and the new sums.
        """
        names = ("query", "key", "value")
        rows = ops.reshape(inputs, (-1, 1, inputs.shape[-1]))  # (R, 1, D)
        parts = self.projections.project_step(rows, weights[0], *names)
        queries, keys, values = self._features(*parts)
        new = _summed(keys, _with_ones(values))  # (R, H, K, Kv + 1)
        before = of_parents(cache[0], place.parents)
        sums = ops.reshape(before, (-1, *new.shape[1:])) + new
        outputs = ops.cast(_divided(ops.matmul(queries, sums)), self.compute_dtype)
        outputs = self.projections.merge_step(outputs, weights[1])
        outputs = ops.reshape(outputs, (-1, inputs.shape[1], outputs.shape[-1]))
        return outputs, (ops.reshape(sums, shape_of(before)),)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"causal": self.causal}
