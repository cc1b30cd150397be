"""Attention among positions that hash alike, in chunks of a sorted sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.layers.local_attention import (
    join_blocks,
    split_blocks,
    with_neighbours,
)
from keras_transformer.types import Tensor, TensorLike

# Score of a position with itself: the paper's, so low that any other one wins.
OWN_SCORE = -1e5
# Score of what may not be attended to.
LOWEST = -1e9


def hash_buckets(inputs: TensorLike, vectors: TensorLike) -> Tensor:
    """Hashes vectors so that near directions are likely to share a bucket.

    argmax([x R; -x R]): section 2 of Kitaev et al., 2020,
    https://arxiv.org/abs/2001.04451.

    Args:
        inputs: Float tensor (B, H, T, K), x.
        vectors: Float tensor (R, K, N / 2), a random matrix for each round.

    Returns:
        Integer tensor (B, H, R, T), buckets 0 to N - 1.

    Example:
        >>> inputs = np.array([[[[1.0, 0.1], [0.0, 2.0], [-3.0, 0.0]]]], "float32")
        >>> buckets = hash_buckets(inputs, np.eye(2, dtype="float32")[None])
        >>> ops.convert_to_numpy(buckets).tolist()
        [[[[0, 1, 2]]]]
    """
    inputs = ops.expand_dims(ops.cast(inputs, "float32"), 2)  # (B, H, 1, T, K)
    turned = ops.matmul(inputs, vectors)  # (B, H, R, T, N / 2)
    turned = ops.concatenate([turned, -turned], axis=-1)
    return ops.cast(ops.argmax(turned, axis=-1), "int32")


def lsh_attention(
    queries: TensorLike, values: TensorLike, buckets: TensorLike, num_buckets: int,
    chunk_size: int, causal: bool = False, is_key: TensorLike | None = None,
    dropout: Callable[..., Any] | None = None,
) -> Tensor:  # fmt: skip
    """Attends to positions that share a bucket in some round, with keys q / |q|.

    Each round sorts the positions by bucket and then by place and cuts them into chunks
    (figure 2 of Kitaev et al., 2020, https://arxiv.org/abs/2001.04451). A position sees
    those of its bucket in its own chunk and the one before, if `causal` those of its
    bucket among the C before it: no later position can change which these are. The
    result is one softmax over all that the rounds let it see, each counted once
    (appendix A). A position sees itself only where it sees nothing else.

    Args:
        queries: Float tensor (B, H, T, K).
        values: Float tensor (B, H, T, Kv).
        buckets: Integer tensor (B, H, R, T), one row a round.
        num_buckets: Buckets, N.
        chunk_size: Positions in a chunk, C.
        causal: Whether a query sees no position after its own.
        is_key: Boolean tensor (B, 1, T, 1), True where a position may be attended to,
            or `None` for all.
        dropout: `Dropout` layer in training, or `None`.

    Returns:
        Float tensor (B, H, T, Kv); zeros where nothing may be attended to.
    """
    if is_key is not None:
        # What is masked stands last in the order, so that it moves no chunk.
        is_key = ops.swapaxes(is_key, -1, -2)
        buckets = ops.where(is_key, buckets, num_buckets)
    rounds = _Rounds(buckets, num_buckets, chunk_size, causal)
    scaled = queries * queries.shape[-1] ** -0.5
    own, near = map(rounds.blocks, (scaled, unit_vectors(queries)))
    near = with_neighbours(near, chunk_size, 0)
    scores = ops.matmul(own, ops.swapaxes(near, -1, -2))
    scores, is_seen = rounds.masked_scores(ops.cast(scores, "float32"))
    totals = ops.logsumexp(scores, axis=-1, keepdims=True)
    weights = ops.where(is_seen, ops.exp(scores - totals), 0.0)
    weights = weights if dropout is None else dropout(weights, training=True)
    near_values = with_neighbours(rounds.blocks(values), chunk_size, 0)
    outputs = ops.matmul(ops.cast(weights, values.dtype), near_values)
    outputs = ops.concatenate([ops.cast(outputs, "float32"), totals], axis=-1)
    outputs = rounds.unsorted(outputs)  # (B, H, R, T, Kv + 1)
    outputs, totals = outputs[..., :-1], outputs[..., -1:]
    if buckets.shape[2] == 1:
        return outputs[:, :, 0]
    return ops.sum(ops.softmax(totals, axis=2) * outputs, axis=2)


def unit_vectors(inputs):
    """Divides vectors (..., K) by their lengths; zeros stay zeros."""
    wide = ops.cast(inputs, "float32")
    squares = ops.sum(ops.square(wide), axis=-1, keepdims=True)
    return ops.cast(wide * ops.rsqrt(squares + 1e-12), inputs.dtype)


class _Rounds:
    """The order of the positions in each round, and what it lets them see.

    Args:
        buckets: Integer tensor (B, H, R, T); N for what may not be attended to.
        num_buckets: N.
        chunk_size: C.
        causal: Whether a position sees the C places before its own and no others.
    """

    def __init__(self, buckets, num_buckets, chunk_size, causal):
        self.sizes = shape_of(buckets)
        self.num_buckets, self.chunk_size, self.causal = num_buckets, chunk_size, causal
        length = self.sizes[-1]
        marks = ops.sort(buckets * length + ops.arange(length, dtype="int32"), axis=-1)
        self.order = marks % length  # (B, H, R, T), the position at each place
        self.places = ops.argsort(self.order, axis=-1)  # the place of each position
        self.buckets = buckets
        self.sorted_buckets = marks // length

    def blocks(self, inputs):
        """(B, H, T, K) --> (B, H * R, M, C, K), sorted, each round by itself."""
        batch, heads, rounds, length = self.sizes
        width = inputs.shape[-1]
        rows = ops.reshape(inputs, (-1, width))
        first = ops.arange(batch * heads, dtype="int32") * length
        first = ops.reshape(first, (batch, heads, 1, 1))
        taken = ops.take(rows, ops.reshape(self.order + first, (-1,)), axis=0)
        taken = ops.reshape(taken, (batch, heads * rounds, length, width))
        return split_blocks(taken, self.chunk_size)

    def unsorted(self, blocks):
        """(B, H * R, M, C, K) --> (B, H, R, T, K), each position at its own place."""
        batch, heads, rounds, length = self.sizes
        width = blocks.shape[-1]
        rows = ops.reshape(join_blocks(blocks, length), (-1, width))
        first = ops.arange(batch * heads * rounds, dtype="int32") * length
        first = ops.reshape(first, (batch, heads, rounds, 1))
        taken = ops.take(rows, ops.reshape(self.places + first, (-1,)), axis=0)
        return ops.reshape(taken, (batch, heads, rounds, length, width))

    def masked_scores(self, scores):
        """Gives what a position may not see the lowest score.

        Args:
            scores: Float tensor (B, H * R, M, C, 2 C).

        Returns:
            The scores, less by the log of in how many rounds a pair can be seen, and a
            boolean tensor, True where a pair can be seen.
        """
        batch, heads, rounds, length = self.sizes
        shape = (batch, heads * rounds, length, 1)
        # Split fills up with zeros, so what is there counts from 1.
        parts = [ops.reshape(x, shape) for x in (self.order + 1, self.sorted_buckets)]
        marks = split_blocks(ops.concatenate(parts, axis=-1), self.chunk_size)
        (own_order, own_bucket), (order, bucket) = self._pairs(marks)
        is_seen = ops.logical_and(own_bucket == bucket, order > 0)
        is_seen = ops.logical_and(is_seen, bucket < self.num_buckets)
        is_seen = ops.logical_and(is_seen, self._is_near_in_own_round())
        if rounds > 1:
            scores = scores - ops.log(self._rounds_in_common())
        scores = ops.where(own_order == order, OWN_SCORE, scores)
        return ops.where(is_seen, scores, LOWEST), is_seen

    def _pairs(self, blocks):
        """Integers (B, H * R, M, C, n) as n of queries (..., C, 1), n of (..., 2 C)."""
        near = with_neighbours(blocks, self.chunk_size, 0)
        number = blocks.shape[-1]
        return (
            [blocks[..., i : i + 1] for i in range(number)],
            [ops.expand_dims(near[..., i], -2) for i in range(number)],
        )

    def _is_near_in_own_round(self):
        """Boolean tensor (C or 1, 2 C), by the places within two chunks."""
        size = self.chunk_size
        own = ops.arange(size, dtype="int32")[:, None] + size
        near = ops.arange(2 * size, dtype="int32")[None]
        if not self.causal:
            return near >= 0
        return ops.logical_and(near <= own, near >= own - size)

    def _rounds_in_common(self):
        """In how many rounds a pair can be seen, at least 1, as floats."""
        rounds = self.sizes[2]
        spans = self.places if self.causal else self.places // self.chunk_size
        limit = self.chunk_size if self.causal else 1
        marks = ops.concatenate([self.buckets, spans], axis=2)  # (B, H, 2 R, T)
        own, near = self._pairs(self.blocks(ops.swapaxes(marks, -1, -2)))
        number = 0.0
        for i in range(rounds):
            distance = own[rounds + i] - near[rounds + i]
            together = ops.logical_and(distance >= 0, distance <= limit)
            together = ops.logical_and(together, own[i] == near[i])
            number = number + ops.cast(together, "float32")
        return ops.maximum(number, 1.0)
