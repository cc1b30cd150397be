"""Attention whose time is linear in the length."""

from __future__ import annotations

import math
import random
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.caches import Place, PreparedMask, of_parents
from keras_transformer.nn.layers.arguments import check_size
from keras_transformer.nn.layers.attention import refuse_fused
from keras_transformer.nn.layers.local_attention import join_blocks, split_blocks
from keras_transformer.nn.layers.multi_head_attention import (
    MultiHeadAttention,
    StepWeights,
)
from keras_transformer.nn.masks import mask_of_keys
from keras_transformer.types import Nest, Tensor, TensorLike

BLOCK = 64  # positions of a block of causal attention
SMALLEST_TOTAL = 1e-30  # smaller sums of weights are not divided by
LARGEST_EXPONENT = 64.0  # of a key's feature; float32 holds exp(88)


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
        training: bool | None = None,
        with_weights: bool = False,
        prepared: PreparedMask | None = None,
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


@keras.saving.register_keras_serializable(package="keras_transformer")
class PerformerAttention(LinearAttention):
    """Multi-head attention with an approximate softmax, linear in the length.

    FAVOR+ of Choromanski et al., 2021, https://arxiv.org/abs/2009.14794 (section 2 and
    lemma 1). With x = q or k over K^(1/4) and Gaussian vectors w_1 to w_F, orthogonal
    in blocks of K, the features

        phi_i(x) = exp(w_i . x - |x|^2 / 2) / sqrt(F)

    are positive, and phi(q) . phi(k) has the mean exp(q . k / sqrt(K)). More features
    are more exact; large queries and keys need more.

    All heads share the vectors, the untrained weight `random_features` (F, K); `redraw`
    draws new ones, as the paper does from time to time in training.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys, K.
        value_dim: Width of each head's values, Kv; default `key_dim`.
        num_features: Random features of each head, F; default K ln K, at least K.
        seed: Integer seed of the features; default random.
        **options: See `LinearAttention`.
    Raises:
        ValueError: As `LinearAttention`, or if `num_features` is not positive.

    Example:
        >>> attention = PerformerAttention(num_heads=2, key_dim=3, num_features=32)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        num_features: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, value_dim, seed=seed, **options)
        check_size("num_features", num_features, optional=True)
        check_number("seed", seed, int, optional=True, minimum=0)
        self.num_features = num_features

    @property
    def feature_dim(self) -> int:
        least = math.ceil(self.key_dim * math.log(self.key_dim))
        return self.num_features or max(self.key_dim, least)

    def add_own_weights(self) -> None:
        numbers = self._draw(self.seed)
        self.random_features = self.add_weight(
            numbers.shape,
            name="random_features",
            trainable=False,
            dtype="float32",
            autocast=False,
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(numbers),
        )

    def _draw(self, seed):
        seed = random.randrange(2**31) if seed is None else seed
        generator = np.random.default_rng(seed)
        vectors = orthogonal_gaussians(self.feature_dim, self.key_dim, generator)
        return vectors.astype("float32")  # (F, K)

    def redraw(self, seed: int | None = None) -> None:
        """Draws new random features."""
        check_number("seed", seed, int, optional=True, minimum=0)
        self.random_features.assign(self._draw(seed))

    def feature_map(self, inputs: TensorLike) -> Tensor:
        """Returns the features phi; `call` leaves out factors that cancel."""
        return ops.exp(self._exponents(inputs)) * self.feature_dim**-0.5

    def _exponents(self, inputs):
        """w_i . x - |x|^2 / 2 with x = inputs / K^(1/4)."""
        inputs = inputs * self.key_dim**-0.25
        vectors = ops.cast(self.random_features, "float32")
        squares = ops.sum(ops.square(inputs), axis=-1, keepdims=True)
        return ops.matmul(inputs, ops.transpose(vectors)) - squares / 2

    def features(self, queries: TensorLike, keys: TensorLike) -> tuple[Tensor, Tensor]:
        queries = self._exponents(queries)
        keys = self._exponents(keys)
        # Factors of one query's features cancel, and so does a factor of all keys'.
        queries -= ops.stop_gradient(ops.max(queries, axis=-1, keepdims=True))
        # That of the keys must not depend on them, or a later one would change it: the
        # exponents w . k - |k|^2 / 2 are |w|^2 / 2 at most.
        vectors = ops.cast(self.random_features, "float32")
        squares = ops.sum(ops.square(vectors), axis=-1)
        excess = ops.relu(ops.max(squares) / 2 - LARGEST_EXPONENT)
        return ops.exp(queries), ops.exp(keys - excess)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_features": self.num_features}


def orthogonal_gaussians(number, width, generator):
    """Returns Gaussian vectors (F, K), orthogonal in blocks of K."""
    # Section 2.4 of Choromanski et al., 2021, https://arxiv.org/abs/2009.14794.
    blocks = []
    for _ in range(-(-number // width)):
        matrix, upper = np.linalg.qr(generator.standard_normal((width, width)))
        # Without the signs the matrices would not be uniform.
        blocks.append((matrix * np.sign(np.diag(upper))).T)
    # The lengths of independent Gaussian vectors.
    lengths = np.linalg.norm(generator.standard_normal((number, width)), axis=1)
    return np.concatenate(blocks)[:number] * lengths[:, None]
