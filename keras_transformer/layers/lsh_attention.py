"""Attention to the positions that hash alike, for long sequences."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.kernels.decoding import new_cache, resize_cache, write_position
from keras_transformer.kernels.few_passes import masked_softmax
from keras_transformer.layers.arguments import check_rate, check_size
from keras_transformer.layers.basic import Dropout
from keras_transformer.layers.hashing import (
    OWN_SCORE,
    hash_buckets,
    lsh_attention,
    unit_vectors,
)
from keras_transformer.layers.linear_attention import (
    ProjectionOptions,
    SubquadraticAttention,
    add_drawn_weight,
    random_generator,
)
from keras_transformer.layers.quantization import float_policy
from keras_transformer.types import Nest, Shape, Tensor, TensorLike

CHUNK_SIZE, NUM_ROUNDS = 64, 2


@keras.saving.register_keras_serializable(package="keras_transformer")
class LSHAttention(SubquadraticAttention):
    """Multi-head self-attention of each position to those that hash alike.

    The Reformer's: Kitaev et al., 2020, https://arxiv.org/abs/2001.04451. Queries are
    keys too, as such divided by their lengths. In each round a random projection hashes
    every position to a bucket, and a position attends to those of its bucket that
    `lsh_attention` lets it see: with C = `chunk_size` at most 2 C a round, so time and
    memory grow with the length and not with its square. All rounds make one softmax. A
    position attends to itself only where there is nothing else.

    One thing differs from the paper: what a `causal` layer sees are the C positions of
    the bucket before, not those of two chunks, whose borders later positions move. So
    nothing of the future enters, and `initial_cache` and `step`, which do the same one
    position at a time, give what a call gives. The cache holds all positions.

    The projections are the weight `hash_vectors` (R, K, N / 2), which all heads share.
    They are drawn once, saved and not trained; `redraw` draws new ones.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries, which are its keys, K.
        num_buckets: Buckets of a round, an even number, N. The paper has 2 S / C at a
            length of S.
        chunk_size: Positions in a chunk, C.
        num_rounds: Rounds, R.
        value_dim: Width of each head's values; default `key_dim`.
        output_dim: Width of the output; default the width of `query`.
        causal: Whether a query sees no position after its own.
        dropout_rate: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections to heads and back add a bias.
        seed: Integer seed of `hash_vectors`; default drawn from Python's generator.
        kernel_initializer: Initializer of the projections' matrices.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
    Call arguments:
        query: Float tensor (B, T, D).
        value: `None`, or the same tensor as `query`, like `key`.
        key: `None`.
        mask: Boolean tensor (B, T) or (B, 1, T), True where a position may be attended
            to; default the Keras mask that `query` carries.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, output_dim).
    Raises:
        ValueError: If an argument is out of its range, the mask differs between
            queries, or another `value` or `key` is given.

    Example:
        >>> attention = LSHAttention(num_heads=2, key_dim=3, num_buckets=8)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    def __init__(
        self, num_heads: int, key_dim: int, num_buckets: int = 32,
        chunk_size: int = CHUNK_SIZE, num_rounds: int = NUM_ROUNDS,
        value_dim: int | None = None,
        output_dim: int | None = None, causal: bool = False, dropout_rate: float = 0.0,
        use_bias: bool = True, seed: int | None = None,
        **kwargs: Unpack[ProjectionOptions],
    ) -> None:  # fmt: skip
        super().__init__(num_heads, key_dim, value_dim, output_dim, use_bias, **kwargs)
        check_size("num_buckets", num_buckets)
        if num_buckets % 2:
            raise ValueError(
                "`num_buckets` must be even: half of them are for the opposite "
                f"directions. Received: num_buckets={num_buckets}"
            )
        check_size("chunk_size", chunk_size)
        check_size("num_rounds", num_rounds)
        check_rate("dropout_rate", dropout_rate)
        self.num_buckets = num_buckets
        self.chunk_size = chunk_size
        self.num_rounds = num_rounds
        self.causal = causal
        self.dropout_rate = dropout_rate
        self.seed = seed
        self.attention_dropout = Dropout(
            dropout_rate, dtype=float_policy(self.dtype_policy),
            name="attention_dropout",
        )  # fmt: skip
        # Queries are the keys.
        del self.projections.heads["key"]

    def build(
        self, query_shape: Shape, value_shape: Shape | None = None,
        key_shape: Shape | None = None,
    ) -> None:  # fmt: skip
        super().build(query_shape, value_shape, key_shape)
        self.hash_vectors = add_drawn_weight(
            self, "hash_vectors", lambda: self._draw(self.seed)
        )

    def _draw(self, seed):
        shape = (self.num_rounds, self.key_dim, self.num_buckets // 2)
        return random_generator(seed).standard_normal(shape)

    def redraw(self, seed: int | None = None) -> None:
        """Draws new projections to hash with; the layer must be built.

        Args:
            seed: Integer seed; default drawn from Python's generator.
        """
        self.hash_vectors.assign(self._draw(seed))

    def _buckets(self, queries):
        """(B, H, T, K) --> (B, H, R, T)."""
        return hash_buckets(queries, ops.cast(self.hash_vectors, "float32"))

    def _project(self, query, value, key):
        if value is not query or key is not query:
            raise ValueError(
                "This layer is self-attention, whose queries are the keys: give "
                "`query` alone. Received: another `value` or `key`"
            )
        queries, values = self.projections.project_one(query, "query", "value")
        return queries, queries, values

    def _attend(self, queries, keys, values, is_key, training):
        return lsh_attention(
            queries, values, self._buckets(queries), self.num_buckets, self.chunk_size,
            self.causal, is_key, self.attention_dropout if training else None,
        )  # fmt: skip

    def decoding_weights(self, *names: str) -> Nest:
        """Returns the matrices of `step`, prepared.

        Args:
            *names: Ignored; `MultiHeadAttention` needs them.
        """
        return self.projections.decoding_weights("query", "value")

    def initial_cache(self, sentences: int, hypotheses: int, length: int) -> Nest:
        """Returns an empty cache for `step`.

        Args:
            sentences: Number of sentences, B.
            hypotheses: Hypotheses of each that are decoded side by side, N.
            length: Most positions that one can have, L.

        Returns:
            Queries (B, H, L * N, K), values (B, H, L * N, Kv) and float32 buckets
            (B, H, L * N, R), all zero.
        """
        heads, entries = self.projections.heads, length * hypotheses
        sizes = [
            (heads["query"][1], self.compute_dtype),
            (heads["value"][1], self.compute_dtype),
            (self.num_rounds, "float32"),
        ]
        return tuple(
            new_cache(sentences, self.num_heads, entries, width, dtype)
            for width, dtype in sizes
        )

    def resize_cache(
        self, cache: Nest, sentences: TensorLike, more: int | TensorLike
    ) -> Nest:
        """As `MultiHeadAttention.resize_cache`."""
        return tuple(resize_cache(part, sentences, more) for part in cache)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: TensorLike | None,
        weights: Nest,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """Causal self-attention of one new position to itself and those before it.

        Args:
            inputs: Float tensor (B, N, D), the position's input for each hypothesis.
            cache: What `initial_cache` or the step before returned; not to be used
                again.
            place: `cache_place` of the position.
            mask: As of `MultiHeadAttention.step`.
            weights: `decoding_weights()`.

        Returns:
            The output (B, N, output_dim) and the cache with the position written.
        """
        projected = self.projections.project_step(inputs, weights[0], "query", "value")
        queries, values = projected  # (B, H, N, K), (B, H, N, Kv)
        own = ops.cast(ops.swapaxes(self._buckets(queries), -1, -2), "float32")
        cache = tuple(
            write_position(one, many, place)
            for one, many in zip(cache, (queries, values, own), strict=True)
        )
        past, past_values, buckets = cache
        is_seen = self._is_seen(own, buckets, mask.mask)
        scores = ops.matmul(queries, ops.swapaxes(unit_vectors(past), -1, -2))
        scores = ops.cast(scores * self.key_dim**-0.5, "float32")
        entries = ops.arange(ops.shape(past)[2], dtype="int32")
        is_own = entries // inputs.shape[1] == ops.cast(place.position, "int32")
        shares = masked_softmax(ops.where(is_own, OWN_SCORE, scores), is_seen)
        outputs = ops.matmul(ops.cast(shares, past_values.dtype), past_values)
        return self.projections.merge_step(outputs, weights[1]), cache

    def _is_seen(self, own, buckets, mask):
        """Which entries some round lets the new position see.

        Args:
            own: Buckets of the new position, float32 (B, H, N, R).
            buckets: Those of all entries, float32 (B, H, L * N, R).
            mask: Boolean tensor that broadcasts to (B, H, N, L * N).

        Returns:
            Boolean tensor (B, H, N, L * N).
        """
        seen = None
        for index in range(self.num_rounds):
            alike = own[..., index, None] == ops.expand_dims(buckets[..., index], -2)
            alike = ops.logical_and(alike, mask)
            # How many of the bucket came since an entry, itself included.
            counted = ops.flip(ops.cast(alike, "int32"), axis=-1)
            since = ops.flip(ops.cumsum(counted, axis=-1), axis=-1)
            near = ops.logical_and(alike, since <= self.chunk_size + 1)
            seen = near if seen is None else ops.logical_or(seen, near)
        return seen

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_buckets": self.num_buckets,
            "chunk_size": self.chunk_size,
            "num_rounds": self.num_rounds,
            "causal": self.causal,
            "dropout_rate": self.dropout_rate,
            "seed": self.seed,
        }
