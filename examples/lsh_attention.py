"""Reformer attention within hash buckets, by overriding one method.

A subclass of `MultiHeadAttention` overrides `attend`. A random projection hashes every
position to a bucket, and a position attends to its own bucket (Kitaev et al., 2020,
https://arxiv.org/abs/2001.04451), so the cost grows about linearly with the length. The
task is that of linformer_attention.py.

    python examples/lsh_attention.py
"""

import keras_transformer.quiet

import keras
from keras import ops
from linformer_attention import train
from local_attention import join_blocks, split_blocks, with_neighbours

import keras_transformer as kt
from keras_transformer.nn.layers.basic import project

# Score of a position with itself, as in the paper: any other position wins.
OWN_SCORE = -1e5
# Score of a masked position.
LOWEST = -1e9


@keras.saving.register_keras_serializable(package="examples")
class LSHAttention(kt.MultiHeadAttention):
    """Self-attention of each position to its hash bucket, for encoders.

    The keys are the queries divided by their lengths. In each of R rounds a random
    projection hashes positions to N buckets, and a position attends to at most 2 C
    positions of its bucket, C = `chunk_size` (see `lsh_attention`). All rounds share
    one softmax. A position attends to itself only if it sees no other. All heads share
    the projections, the untrained weight `hash_vectors` (R, K, N / 2).

    Args:
        num_buckets: Buckets per round, N, even; 2 S / C in the paper.
        chunk_size: Positions in a chunk, C.
        num_rounds: Number of rounds, R.
    """

    def __init__(
        self, num_heads, key_dim, num_buckets=32, chunk_size=64, num_rounds=2, **options
    ):
        super().__init__(num_heads, key_dim, **options)
        if num_buckets % 2:
            raise ValueError(
                "`num_buckets` must be even: half of them are for the opposite "
                f"directions. Received: num_buckets={num_buckets}"
            )
        if self.positions is not None or self.key_heads.number != num_heads:
            raise ValueError(
                "`positions` and `num_key_value_heads` must be None: the queries are "
                f"the keys. Received: positions={self.positions}, "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        self.num_buckets, self.chunk_size = num_buckets, chunk_size
        self.num_rounds = num_rounds

    def dense(self, name, units, use_bias=True, **options):
        """Queries are the keys, so the keys have no projection of their own."""
        if name == "key_dense":
            return keras.layers.Identity(name=name)
        return super().dense(name, units, use_bias, **options)

    def build(self, query_shape, value_shape=None, key_shape=None):
        super().build(query_shape, value_shape, key_shape)
        self.hash_vectors = self.add_weight(
            (self.num_rounds, self.key_dim, self.num_buckets // 2),
            keras.initializers.RandomNormal(stddev=1.0, seed=self.seed),
            dtype="float32",
            autocast=False,
            trainable=False,
            name="hash_vectors",
        )

    def project_to_heads(self, query, value, key, weights=None):
        if value is not query or key is not query:
            raise ValueError(
                "This layer is self-attention, whose queries are the keys: give "
                "`query` alone. Received: another `value` or `key`"
            )
        denses = [self.query_dense, self.value_dense]
        queries, values = project(denses, query, self.query_scale, weights)
        queries = self._split(queries, query, self.query_heads)
        values = self._split(values, query, self.value_heads)
        return queries, queries, values

    def attend(
        self,
        queries,
        keys,
        values,
        mask=None,
        causal=False,
        training=None,
        with_weights=False,
        prepared=None,
    ):
        if causal or (mask is not None and mask.shape[2] != 1):
            raise ValueError("`mask` must be the same for all queries, so not causal")
        buckets = hash_buckets(queries, self.hash_vectors)
        if mask is not None:
            # Masked positions come last, so that they do not shift chunks.
            buckets = ops.where(mask, buckets, self.num_buckets)
        # Each head of each row is a group: (B, H, ...) --> (G, ...).
        groups = [
            ops.reshape(x, (-1, *ops.shape(x)[2:])) for x in (queries, values, buckets)
        ]
        outputs = lsh_attention(
            *groups,
            self.num_buckets,
            self.chunk_size,
            self.attention_dropout if training else None,
        )
        outputs = ops.reshape(outputs, ops.shape(values))
        return ops.cast(outputs, values.dtype), None

    def get_config(self):
        return super().get_config() | {
            "num_buckets": self.num_buckets,
            "chunk_size": self.chunk_size,
            "num_rounds": self.num_rounds,
        }


def hash_buckets(inputs, vectors):
    """Returns buckets of vectors; similar directions are likely to share one.

    argmax([x R; -x R]): section 2 of the paper.

    Args:
        inputs: Float tensor (B, H, T, K), x.
        vectors: Float tensor (R, K, N / 2), a random matrix for each round.

    Returns:
        Integer tensor (B, H, R, T), buckets 0 to N - 1.
    """
    inputs = ops.expand_dims(ops.cast(inputs, "float32"), 2)  # (B, H, 1, T, K)
    turned = ops.matmul(inputs, ops.cast(vectors, "float32"))  # (B, H, R, T, N / 2)
    turned = ops.concatenate([turned, -turned], axis=-1)
    return ops.cast(ops.argmax(turned, axis=-1), "int32")


def lsh_attention(queries, values, buckets, num_buckets, chunk_size, dropout=None):
    """Attends to positions that share a bucket in some round, with keys q / |q|.

    Each round sorts the positions by bucket and cuts them into chunks (figure 2 of the
    paper). A position sees its bucket in its own chunk and the one before. One softmax
    covers the positions seen in any round, each counted once (appendix A). A position
    attends to itself only if it sees no other.

    Args:
        queries: Float tensor (G, T, K), multiplied by 1 / sqrt(K).
        values: Float tensor (G, T, Kv).
        buckets: Integer tensor (G, R, T), N where masked.
        num_buckets: Buckets, N.
        chunk_size: Positions in a chunk, C.
        dropout: `Dropout` layer in training, or `None`.

    Returns:
        Float32 tensor (G, T, Kv); zeros where nothing may be attended to.
    """
    _, rounds, length = ops.shape(buckets)
    marks = ops.sort(buckets * length + ops.arange(length, dtype="int32"), axis=-1)
    order = marks % length  # (G, R, T), the position at each place
    places = ops.argsort(order, axis=-1)  # the place of each position

    def chunks(inputs):
        """(G, T, K) --> (G, R, M, C, K), in the order of each round."""
        return split_blocks(gathered(inputs, order), chunk_size)

    def near(blocks):
        """(G, R, M, C, K) --> (G, R, M, 2 C, K), the chunk before and its own."""
        return with_neighbours(blocks, chunk_size, 0)

    def pairs(blocks):
        """(G, R, M, C, n) --> n pairs (..., C, 1) and (..., 1, 2 C)."""
        own, other = ops.expand_dims(blocks, 4), ops.expand_dims(near(blocks), 3)
        return [(own[..., i], other[..., i]) for i in range(blocks.shape[-1])]

    keys = near(chunks(unit_vectors(queries)))
    scores = ops.matmul(chunks(queries), ops.swapaxes(keys, -1, -2))
    scores = ops.cast(scores, "float32")  # (G, R, M, C, 2 C)
    # Chunks are filled up with zeros, so real positions count from 1.
    marks = ops.stack([order, marks // length], axis=-1) + 1  # (G, R, T, 2)
    (own, other), (bucket, other_bucket) = pairs(split_blocks(marks, chunk_size))
    is_seen = (bucket == other_bucket) & (other_bucket <= num_buckets)
    if rounds > 1:
        # A pair counts once, so divide by the number of rounds that see it.
        marks = ops.concatenate([buckets, places // chunk_size], axis=1)
        alike = pairs(chunks(ops.swapaxes(marks, 1, 2)))
        number = 0.0
        for (bucket, other_bucket), (chunk, other_chunk) in zip(
            alike[:rounds], alike[rounds:], strict=True
        ):
            is_near = (other_chunk == chunk) | (other_chunk == chunk - 1)
            number = number + ops.cast((bucket == other_bucket) & is_near, "float32")
        scores = scores - ops.log(ops.maximum(number, 1.0))
    scores = ops.where(own == other, OWN_SCORE, scores)
    scores = ops.where(is_seen, scores, LOWEST)
    totals = ops.logsumexp(scores, axis=-1, keepdims=True)
    weights = ops.where(is_seen, ops.exp(scores - totals), 0.0)
    weights = weights if dropout is None else dropout(weights, training=True)
    outputs = ops.matmul(ops.cast(weights, values.dtype), near(chunks(values)))
    outputs = ops.concatenate([ops.cast(outputs, "float32"), totals], axis=-1)
    # Back to each position's own place; then one softmax over the rounds.
    outputs = join_blocks(outputs, length)  # (G, R, T, Kv + 1)
    outputs = gathered(
        ops.reshape(outputs, (-1, *ops.shape(outputs)[2:])),
        ops.reshape(places, (-1, 1, length)),
    )
    outputs = ops.reshape(outputs, (-1, rounds, length, values.shape[-1] + 1))
    if rounds == 1:
        return outputs[:, 0, :, :-1]
    shares = ops.softmax(outputs[..., -1:], axis=1)
    return ops.sum(shares * outputs[..., :-1], axis=1)


def gathered(inputs, places):
    """Returns the rows of (G, T, K) at places (G, R, T): (G, R, T, K)."""
    groups, length, width = ops.shape(inputs)
    first = ops.arange(groups, dtype="int32")[:, None, None] * length
    rows = ops.reshape(inputs, (-1, width))
    taken = ops.take(rows, ops.reshape(places + first, (-1,)), axis=0)
    return ops.reshape(taken, (*ops.shape(places), width))


def unit_vectors(inputs):
    """Divides vectors (..., K) by their lengths; zeros stay zeros."""
    wide = ops.cast(inputs, "float32")
    squares = ops.sum(ops.square(wide), axis=-1, keepdims=True)
    return ops.cast(wide * ops.rsqrt(squares + 1e-12), inputs.dtype)


@keras.saving.register_keras_serializable(package="examples")
class LSHLayer(kt.EncoderLayer):
    """An encoder layer whose attention hashes to 16 buckets, in chunks of 16."""

    def make_attention(self, name, d_model):
        width = d_model // self.num_heads
        return LSHAttention(self.num_heads, width, 16, 16, seed=1, name=name)


def main(arguments=None):
    return train(LSHLayer, arguments)


if __name__ == "__main__":
    main()
