"""Attention that is linear in the length: features in place of a softmax."""

from __future__ import annotations

import math
import random
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.decoding import of_parents
from keras_transformer.layers.arguments import check_size
from keras_transformer.layers.attention import refuse_fused
from keras_transformer.layers.local_attention import join_blocks, split_blocks
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.masks import mask_of_keys
from keras_transformer.types import Nest, Tensor, TensorLike

BLOCK = 64  # positions that causal attention takes at once
SMALLEST_TOTAL = 1e-30  # A sum of weights below it is no number to divide by.
LARGEST_EXPONENT = 64.0  # of a key's feature: float32 holds exp(88), and sums are made


def linear_attention(
    queries: TensorLike, keys: TensorLike, values: TensorLike, causal: bool = False
) -> Tensor:
    """Attends by the product of features, without a matrix of T times S.

    phi(Q) (phi(K)^T V) / phi(Q) sum(phi(K)): equations 4 to 9 of Katharopoulos et al.,
    2020, https://arxiv.org/abs/2006.16236. The causal form works in blocks: a sum over
    the blocks before, and a small product within the block.

    Args:
        queries: Features of the queries, float tensor (B, H, T, F), not negative.
        keys: Those of the keys, (B, H, S, F); 0 where a position is masked.
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
    """Adds a unit of 1: its weighted sum is the sum of the weights."""
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
class LinearAttention(MultiHeadAttention):
    """Multi-head attention without softmax, linear in the length.

    A query's weight on a key is phi(q) . phi(k) over the sum of these, with phi(x) =
    elu(x) + 1 of each unit: Katharopoulos et al., 2020,
    https://arxiv.org/abs/2006.16236. Override `feature_map` for other features. Sums
    are in float32.

    Call and methods are those of `MultiHeadAttention`. There are no weights to return
    or to drop, a mask must be the same for all queries, and the state of `step` does
    not grow with the length.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys, K.
        value_dim: Width of each head's values, Kv; default `key_dim`.
        **options: As of `MultiHeadAttention`, without `dropout`, `flash_attention`,
            `num_key_value_heads` and `positions`.
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
            if given := getattr(self, name):
                raise ValueError(
                    f"`{name}` must be left out: {type(self).__name__} has no scores "
                    f"of queries and keys. Received: {name}={given!r}"
                )

    @property
    def feature_dim(self) -> int:
        """How many features `feature_map` gives."""
        return self.key_dim

    def feature_map(self, inputs: TensorLike) -> Tensor:
        """Turns queries or keys (B, H, T, K) into positive features (B, H, T, F).

        Override it for other features, with F = `feature_dim`.
        """
        return ops.elu(inputs) + 1.0

    def features(self, queries: TensorLike, keys: TensorLike) -> tuple[Tensor, Tensor]:
        """Returns the features that the sums are made of, of float32 inputs."""
        return self.feature_map(queries), self.feature_map(keys)

    def attend(
        self, queries: TensorLike, keys: TensorLike, values: TensorLike,
        mask: TensorLike | None = None, causal: bool = False,
        training: bool | None = None, with_weights: bool = False, step: Any = None,
    ) -> tuple[Tensor, None]:  # fmt: skip
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
        """Returns the sums so far, (B, N, H * F * (Kv + 1)); `length` is ignored."""
        number, width = self.heads["value"]
        size = number * self.feature_dim * (width + 1)
        return (ops.zeros((sentences, hypotheses, size), "float32"),)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: Nest, weights: Nest
    ) -> tuple[Tensor, Nest]:
        """As `MultiHeadAttention.step`; the sums need no mask."""
        rows = ops.reshape(inputs, (-1, 1, inputs.shape[-1]))  # (R, 1, D)
        parts = self.project_to_heads(rows, rows, rows, weights[0])
        queries, keys, values = (ops.cast(x, "float32") for x in parts)
        queries, keys = self.features(queries, keys)
        new = _summed(keys, _with_ones(values))  # (R, H, F, Kv + 1)
        before = of_parents(cache[0], place.parents)
        sums = ops.reshape(before, (-1, *new.shape[1:])) + new
        outputs = ops.cast(_divided(ops.matmul(queries, sums)), self.compute_dtype)
        outputs = self.merge(outputs, weights[1])
        outputs = ops.reshape(outputs, (-1, inputs.shape[1], outputs.shape[-1]))
        return outputs, (ops.reshape(sums, ops.shape(before)),)


@keras.saving.register_keras_serializable(package="keras_transformer")
class PerformerAttention(LinearAttention):
    """Multi-head attention whose softmax is approximated, linear in the length.

    FAVOR+ of Choromanski et al., 2021, https://arxiv.org/abs/2009.14794 (section 2 and
    lemma 1): with x = q or k over K^(1/4) and vectors w_1 to w_F, each Gaussian,
    orthogonal in blocks of K,

        phi_i(x) = exp(w_i . x - |x|^2 / 2) / sqrt(F)

    is positive, and phi(q) . phi(k) has the mean exp(q . k / sqrt(K)), the softmax's
    numerator. More features make it exact; large queries and keys need more.

    The vectors are the weight `random_features` (F, K), which all heads share. They are
    not trained; `redraw` draws new ones, as the paper does in training at times.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys, K.
        value_dim: Width of each head's values, Kv; default `key_dim`.
        num_features: Random features of each head, F; default K ln K, at least K.
        seed: Integer seed of the features; default drawn from Python's generator.
        **options: As of `LinearAttention`.
    Raises:
        ValueError: As `LinearAttention`, or if `num_features` is not positive.

    Example:
        >>> attention = PerformerAttention(num_heads=2, key_dim=3, num_features=32)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    def __init__(
        self, num_heads: int, key_dim: int, value_dim: int | None = None,
        num_features: int | None = None, seed: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(num_heads, key_dim, value_dim, seed=seed, **options)
        check_size("num_features", num_features, optional=True)
        self.num_features = num_features

    @property
    def feature_dim(self) -> int:
        least = math.ceil(self.key_dim * math.log(self.key_dim))
        return self.num_features or max(self.key_dim, least)

    def add_own_weights(self) -> None:
        numbers = self._draw(self.seed)
        self.random_features = self.add_weight(
            numbers.shape, name="random_features", trainable=False, dtype="float32",
            autocast=False,
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(numbers),
        )  # fmt: skip

    def _draw(self, seed):
        seed = random.randrange(2**31) if seed is None else seed
        generator = np.random.default_rng(seed)
        vectors = orthogonal_gaussians(self.feature_dim, self.key_dim, generator)
        return vectors.astype("float32")  # (F, K)

    def redraw(self, seed: int | None = None) -> None:
        """Draws new random features, by an integer seed if one is given."""
        self.random_features.assign(self._draw(seed))

    def feature_map(self, inputs: TensorLike) -> Tensor:
        """Returns the features phi; `call` uses them up to factors that cancel."""
        return ops.exp(self._exponents(inputs)) * self.feature_dim**-0.5

    def _exponents(self, inputs):
        """w_i . x - |x|^2 / 2 with x = inputs / K^(1/4)."""
        inputs = inputs * self.key_dim**-0.25
        vectors = ops.cast(self.random_features, "float32")
        squares = ops.sum(ops.square(inputs), axis=-1, keepdims=True)
        return ops.matmul(inputs, ops.transpose(vectors)) - squares / 2

    def features(self, queries: TensorLike, keys: TensorLike) -> tuple[Tensor, Tensor]:
        queries, keys = self._exponents(queries), self._exponents(keys)
        # A factor of a query's features cancels, and so does one of all keys' features.
        queries -= ops.stop_gradient(ops.max(queries, axis=-1, keepdims=True))
        # The latter must not depend on keys, because a later one would change it. The
        # exponents w . k - |k|^2 / 2 are |w|^2 / 2 at most.
        vectors = ops.cast(self.random_features, "float32")
        squares = ops.sum(ops.square(vectors), axis=-1)
        excess = ops.relu(ops.max(squares) / 2 - LARGEST_EXPONENT)
        return ops.exp(queries), ops.exp(keys - excess)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_features": self.num_features}


def orthogonal_gaussians(number, width, generator):
    """Draws vectors (F, K) of which each is Gaussian, orthogonal in blocks of K."""
    # Section 2.4 of Choromanski et al., 2021, https://arxiv.org/abs/2009.14794.
    blocks = []
    for _ in range(-(-number // width)):
        matrix, upper = np.linalg.qr(generator.standard_normal((width, width)))
        # Without the signs the matrices would not be uniform.
        blocks.append((matrix * np.sign(np.diag(upper))).T)
    # The lengths of independent Gaussian vectors.
    lengths = np.linalg.norm(generator.standard_normal((number, width)), axis=1)
    return np.concatenate(blocks)[:number] * lengths[:, None]
