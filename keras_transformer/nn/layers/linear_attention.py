"""Attention whose time is linear in the length."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.nn.kernels.caches import Place, of_parents
from keras_transformer.nn.layers.attention import PreparedMask, refuse_fused
from keras_transformer.nn.layers.local_attention import join_blocks, split_blocks
from keras_transformer.nn.layers.multi_head_attention import (
    MultiHeadAttention,
    StepWeights,
)
from keras_transformer.nn.masks import mask_of_keys
from keras_transformer.types import Nest, Tensor, TensorLike

BLOCK = 64  # positions of a block of causal attention
SMALLEST_TOTAL = 1e-30  # smaller sums of weights are not divided by


def linear_attention(
    queries: TensorLike, keys: TensorLike, values: TensorLike, causal: bool = False
) -> Tensor:
    """Returns phi(Q) (phi(K)^T V) / phi(Q) sum(phi(K)): attention without a softmax.

    Equations 4 to 9 of Katharopoulos et al., 2020, https://arxiv.org/abs/2006.16236.
    The causal form sums over earlier blocks and multiplies within a block.

    Args:
        queries: Features of the queries, float tensor (B, H, T, F), at least 0.
        keys: Features of the keys, float tensor (B, H, S, F), 0 where masked.
        values: Float tensor (B, H, S, Kv).
        causal: Whether query t attends to keys 0 to t only; needs S = T.

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
    """Appends 1 to each value: its weighted sum is the sum of the weights."""
    return ops.pad(values, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=1)


def _summed(keys, values):
    """(..., S, K), (..., S, Kv + 1) --> (..., K, Kv + 1)."""
    return ops.matmul(ops.swapaxes(keys, -1, -2), values)


def _divided(outputs):
    """(..., T, Kv + 1) --> (..., T, Kv), divided by the last unit."""
    totals = outputs[..., -1:]
    # Dividing twice keeps the square of a small total out of the gradient.
    scale = ops.stop_gradient(ops.where(totals > SMALLEST_TOTAL, totals, 1.0))
    outputs = outputs[..., :-1] / scale
    totals = totals / scale
    return outputs / ops.where(totals > SMALLEST_TOTAL, totals, 1.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class LinearAttention(MultiHeadAttention):
    """Multi-head attention without softmax, linear in the length.

    A query's weight on a key is phi(q) . phi(k), normalised over the keys, with phi(x)
    = elu(x) + 1: Katharopoulos et al., 2020, https://arxiv.org/abs/2006.16236. Override
    `feature_map` for other features.

    It is called like `MultiHeadAttention` and returns no weights. A mask must be the
    same for all queries. The state of `step` does not grow with the length.

    Args:
        num_heads: See `MultiHeadAttention`, as for the rest.
        key_dim: Width of a head's queries and keys, K.
        value_dim: Width of a head's values, Kv; default `key_dim`.
        **options: Not `dropout`, `flash_attention`, `num_key_value_heads`, `positions`.
    Raises:
        ValueError: If one of these is given, or the mask differs between queries.

    Example:
        >>> attention = LinearAttention(num_heads=2, key_dim=3)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    equals_keras = False

    def __init__(
        self, num_heads: int, key_dim: int, value_dim: int | None = None, **options: Any
    ) -> None:
        super().__init__(num_heads, key_dim, value_dim, **options)
        self.query_scale = 1.0
        if self.flash_attention:
            refuse_fused("it computes a softmax")
        for name in ("dropout", "positions", "num_key_value_heads"):
            given = getattr(self, name)
            if given:
                raise ValueError(
                    f"`{name}` must be left out: {type(self).__name__} has no "
                    f"attention weights. Received: {name}={given!r}"
                )

    @property
    def feature_dim(self) -> int:
        """Number of features of `feature_map`, F."""
        return self.key_dim

    def feature_map(self, inputs: TensorLike) -> Tensor:
        """Returns positive features (B, H, T, F) of queries or keys (B, H, T, K)."""
        return ops.elu(inputs) + 1.0

    def features(self, queries: TensorLike, keys: TensorLike) -> tuple[Tensor, Tensor]:
        """Returns the features of float32 queries and keys; `attend` sums them."""
        return self.feature_map(queries), self.feature_map(keys)

    def attend(
        self,
        queries: TensorLike,
        keys: TensorLike,
        values: TensorLike,
        mask: TensorLike | None = None,
        causal: bool = False,
        **options: Any,
    ) -> tuple[Tensor, None]:
        if causal and queries.shape[2] != keys.shape[2]:
            expected = "`use_causal_mask` needs as many queries as keys"
            received = f"{queries.shape[2]} and {keys.shape[2]}"
            raise ValueError(f"{expected}. Received: {received}")
        # Half precision is too coarse for sums over a whole sequence.
        wide = (ops.cast(x, "float32") for x in (queries, keys, values))
        queries, keys, values = wide
        queries, keys = self.features(queries, keys)
        if mask is not None:
            keys = ops.where(ops.expand_dims(mask_of_keys(mask), -1), keys, 0.0)
        outputs = linear_attention(queries, keys, values, causal)
        return ops.cast(outputs, self.compute_dtype), None

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns zero sums, (B, N, H * F * (Kv + 1)); `length` is ignored."""
        heads = self.value_heads
        size = heads.number * self.feature_dim * (heads.width + 1)
        return (ops.zeros((sentences, hypotheses, size), "float32"),)

    def step(
        self,
        inputs: TensorLike,
        cache: Nest,
        place: Place,
        mask: PreparedMask,
        weights: StepWeights,
    ) -> tuple[Tensor, Nest]:
        """As `MultiHeadAttention.step`, without a mask."""
        rows = ops.reshape(inputs, (-1, 1, inputs.shape[-1]))  # (R, 1, D)
        parts = self.project_to_heads(rows, rows, rows, weights.projections)
        queries, keys, values = (ops.cast(x, "float32") for x in parts)
        queries, keys = self.features(queries, keys)
        new = _summed(keys, _with_ones(values))  # (R, H, F, Kv + 1)
        before = of_parents(cache[0], place.parents)
        sums = ops.reshape(before, (-1, *new.shape[1:])) + new
        outputs = ops.cast(_divided(ops.matmul(queries, sums)), self.compute_dtype)
        outputs = self.merge(outputs, weights.output)
        outputs = ops.reshape(outputs, (-1, inputs.shape[1], outputs.shape[-1]))
        return outputs, (ops.reshape(sums, ops.shape(before)),)
