"""Weights that are drawn at random and not trained."""

from __future__ import annotations

import math
import random
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.decoding import of_parents
from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.adaptable_layer import AdaptableLayer
from keras_transformer.layers.argument_order import ValueBeforeKey
from keras_transformer.layers.arguments import (
    check_inputs,
    check_mask,
    check_size,
    default_inputs,
    mask_of_keys,
)
from keras_transformer.layers.head_projections import HeadProjections
from keras_transformer.layers.local_attention import join_blocks, split_blocks
from keras_transformer.masks import attention_mask, carried_mask
from keras_transformer.types import (
    Constraint,
    Initializer,
    LayerOptions,
    Nest,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


def random_generator(seed):
    """Returns NumPy's generator of random numbers for a seed.

    Args:
        seed: Integer, or `None` for one drawn from Python's generator, which
            `keras.utils.set_random_seed` sets.
    """
    return np.random.default_rng(random.randrange(2**31) if seed is None else seed)


def add_drawn_weight(layer, name, draw):
    """Adds a weight to a layer that keeps the numbers it begins with.

    It is saved and loaded like any other, and stays float32 in mixed precision.

    Args:
        layer: The layer.
        name: Name of the weight.
        draw: Function without arguments that returns an array.

    Returns:
        The variable.
    """
    numbers = draw().astype("float32")
    return layer.add_weight(
        numbers.shape, name=name, trainable=False, dtype="float32", autocast=False,
        initializer=lambda shape, dtype=None: ops.convert_to_tensor(numbers),
    )  # fmt: skip


def orthogonal_gaussians(number, width, generator):
    """Draws vectors of which each is Gaussian, orthogonal in blocks.

    The directions of a block are the rows of a random orthogonal matrix and the lengths
    are those of independent Gaussian vectors: section 2.4 of Choromanski et al., 2021,
    https://arxiv.org/abs/2009.14794.

    Args:
        number: Vectors, F.
        width: Their width, K.
        generator: A `numpy.random.Generator`.

    Returns:
        Array (F, K).

    Example:
        >>> vectors = orthogonal_gaussians(2, 2, np.random.default_rng(1))
        >>> bool(abs(vectors[0] @ vectors[1]) < 1e-9)
        True
    """
    blocks = []
    for _ in range(-(-number // width)):
        matrix, upper = np.linalg.qr(generator.standard_normal((width, width)))
        # Without the signs the matrices would not be uniform.
        blocks.append((matrix * np.sign(np.diag(upper))).T)
    lengths = np.linalg.norm(generator.standard_normal((number, width)), axis=1)
    return np.concatenate(blocks)[:number] * lengths[:, None]


class ProjectionOptions(LayerOptions, total=False):
    """What the subclasses of `SubquadraticAttention` hand on to it."""

    kernel_initializer: Initializer
    bias_initializer: Initializer
    kernel_regularizer: Regularizer | None
    bias_regularizer: Regularizer | None
    kernel_constraint: Constraint | None
    bias_constraint: Constraint | None


class SubquadraticAttention(AdaptableLayer, ValueBeforeKey):
    """Base of the attention layers whose cost does not grow with T times S.

    A subclass overrides `_attend`. There are no weights of T queries on S keys, so none
    to return, and a mask is the same for all queries; what is `causal` is so by itself.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys, K.
        value_dim: Width of each head's values, Kv; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        use_bias: Whether the projections add a bias.
        kernel_initializer: Initializer of the projections' matrices.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
    """

    causal = False

    def __init__(
        self, num_heads: int, key_dim: int, value_dim: int | None = None,
        output_dim: int | None = None, use_bias: bool = True, *,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        kernel_constraint: Constraint | None = None,
        bias_constraint: Constraint | None = None, **kwargs: Unpack[LayerOptions],
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.projections = HeadProjections(
            num_heads, key_dim, value_dim, output_dim, use_bias,
            dtype=self.compute_dtype,
        )  # fmt: skip
        kernel = kernel_initializer, kernel_regularizer, kernel_constraint
        bias = bias_initializer, bias_regularizer, bias_constraint
        self.projections.set_options(kernel, bias)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.output_dim = output_dim
        self.use_bias = use_bias
        self.supports_masking = True

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:  # fmt: skip
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        check_inputs(query_shape, value_shape, key_shape, "B", "T", "D")
        self.projections.build(self, query_shape, value_shape, key_shape)
        self.built = True

    def call(
        self, query: TensorLike, value: TensorLike | None = None,
        key: TensorLike | None = None, mask: TensorLike | None = None,
        training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        if self.causal and value is not None:
            raise ValueError(
                "Causal attention is self-attention: give `query` alone, or set "
                "`causal=False`. Received: causal=True and a `value`"
            )
        value, key = default_inputs(query, value, key, "B", "T", "D")
        mask = attention_mask(carried_mask(key) if mask is None else mask)
        check_mask("mask", mask, query, key)
        is_key = None
        if mask is not None:
            is_key = ops.expand_dims(self._mask_of_keys(mask), (1, 3))  # (B, 1, S, 1)
        parts = self._project(query, value, key)
        outputs = self._attend(*parts, is_key, training)
        return self.projections.merge(ops.cast(outputs, self.compute_dtype))

    def _mask_of_keys(self, mask):
        """(B, 1, S) --> (B, S), or an error if the mask differs between queries."""
        return mask_of_keys(mask)

    def _project(self, query, value, key):
        """Returns queries (B, H, T, K), keys (B, H, S, K) and values (B, H, S, Kv)."""
        return self.projections.project(query, value, key)

    def _attend(self, queries, keys, values, is_key, training):
        """Attends with all heads.

        Args:
            queries: Float tensor (B, H, T, K).
            keys: Float tensor (B, H, S, K).
            values: Float tensor (B, H, S, Kv).
            is_key: Boolean tensor (B, 1, S, 1), True where a position may be attended
                to, or `None` for all.
            training: Whether dropout is applied.

        Returns:
            Float tensor (B, H, T, Kv).
        """
        raise NotImplementedError

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> Shape:  # fmt: skip
        return self.projections.output_shape(query_shape)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output is as long as the query and carries its mask."""
        return carried_mask(inputs)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim,
            "use_bias": self.use_bias,
            **self.projections.weights_config(),
        }


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
