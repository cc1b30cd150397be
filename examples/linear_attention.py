"""Linear attention, without a softmax: time linear in the length, and a small state.

A subclass of `MultiHeadAttention` overrides `attend`, and `step`, whose state does not
grow. The task is that of linformer_attention.py.

    python examples/linear_attention.py
"""

import keras_transformer.quiet

import keras
from keras import ops
from linformer_attention import train
from local_attention import join_blocks, split_blocks

import keras_transformer as kt
from keras_transformer.nn.kernels.caches import of_parents
from keras_transformer.nn.masks import mask_of_keys

BLOCK = 64  # positions of a block of causal attention
SMALLEST_TOTAL = 1e-30  # smaller sums of weights are not divided by


def linear_attention(queries, keys, values, causal=False):
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
    """
    values = with_ones(values)
    if not causal:
        return divided(ops.matmul(queries, summed(keys, values)))
    length = ops.shape(queries)[2]
    queries, keys, values = (split_blocks(x, BLOCK) for x in (queries, keys, values))
    sums = summed(keys, values)  # (B, H, M, K, Kv + 1)
    rest = ((0, 0), (0, 0))
    # JAX sees only in this order that the number of blocks stays the same.
    before = ops.pad(sums, (*rest, (1, 0), *rest))[:, :, :-1]
    before = ops.cumsum(before, axis=2)
    products = ops.tril(ops.matmul(queries, ops.swapaxes(keys, -1, -2)))
    outputs = ops.matmul(products, values) + ops.matmul(queries, before)
    return divided(join_blocks(outputs, length))


def with_ones(values):
    """Appends 1 to each value: its weighted sum is the sum of the weights."""
    return ops.pad(values, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=1)


def summed(keys, values):
    """(..., S, K), (..., S, Kv + 1) --> (..., K, Kv + 1)."""
    return ops.matmul(ops.swapaxes(keys, -1, -2), values)


def divided(outputs):
    """(..., T, Kv + 1) --> (..., T, Kv), divided by the last unit."""
    totals = outputs[..., -1:]
    # Dividing twice keeps the square of a small total out of the gradient.
    scale = ops.stop_gradient(ops.where(totals > SMALLEST_TOTAL, totals, 1.0))
    outputs = outputs[..., :-1] / scale
    totals = totals / scale
    return outputs / ops.where(totals > SMALLEST_TOTAL, totals, 1.0)


@keras.saving.register_keras_serializable(package="examples")
class LinearAttention(kt.MultiHeadAttention):
    """Multi-head attention without softmax, linear in the length.

    A query's weight on a key is phi(q) . phi(k), normalised over the keys, with phi(x)
    = elu(x) + 1. Override `features` for others. There are no attention weights: it
    drops none, and takes no `positions`. A mask must be the same for all queries.
    """

    equals_keras = False  # `from_keras` refuses weights made for a softmax.

    def __init__(self, num_heads, key_dim, value_dim=None, **options):
        super().__init__(num_heads, key_dim, value_dim, **options)
        self.query_scale = 1.0
        for name in ("dropout", "positions", "num_key_value_heads", "flash_attention"):
            if getattr(self, name):
                raise ValueError(f"`{name}` must be left out: there are no weights")

    @property
    def feature_dim(self):
        """Number of features, F."""
        return self.key_dim

    def features(self, queries, keys):
        """Returns positive features (B, H, T, F) of queries and keys (B, H, T, K)."""
        return ops.elu(queries) + 1.0, ops.elu(keys) + 1.0

    def attend(self, queries, keys, values, mask=None, causal=False, **options):
        if causal and queries.shape[2] != keys.shape[2]:
            raise ValueError("`use_causal_mask` needs as many queries as keys")
        # Half precision is too coarse for sums over a whole sequence.
        wide = (ops.cast(x, "float32") for x in (queries, keys, values))
        queries, keys, values = wide
        queries, keys = self.features(queries, keys)
        if mask is not None:
            keys = ops.where(ops.expand_dims(mask_of_keys(mask), -1), keys, 0.0)
        outputs = linear_attention(queries, keys, values, causal)
        return ops.cast(outputs, self.compute_dtype), None

    def initial_cache(self, sentences, hypotheses, length):
        """Returns zero sums, (B, N, H * F * (Kv + 1)); `length` is ignored."""
        heads = self.value_heads
        size = heads.number * self.feature_dim * (heads.width + 1)
        return (ops.zeros((sentences, hypotheses, size), "float32"),)

    def step(self, inputs, cache, place, mask, weights):
        """As `MultiHeadAttention.step`, without a mask."""
        rows = ops.reshape(inputs, (-1, 1, inputs.shape[-1]))  # (R, 1, D)
        parts = self.project_to_heads(rows, rows, rows, weights.projections)
        queries, keys, values = (ops.cast(x, "float32") for x in parts)
        queries, keys = self.features(queries, keys)
        new = summed(keys, with_ones(values))  # (R, H, F, Kv + 1)
        before = of_parents(cache[0], place.parents)
        sums = ops.reshape(before, (-1, *new.shape[1:])) + new
        outputs = ops.cast(divided(ops.matmul(queries, sums)), self.compute_dtype)
        outputs = self.merge(outputs, weights.output)
        outputs = ops.reshape(outputs, (-1, inputs.shape[1], outputs.shape[-1]))
        return outputs, (ops.reshape(sums, ops.shape(before)),)


@keras.saving.register_keras_serializable(package="examples")
class LinearLayer(kt.EncoderLayer):
    """An encoder layer whose attention has no softmax."""

    def make_attention(self, name, d_model):
        sizes = self.num_heads, d_model // self.num_heads
        return LinearAttention(*sizes, dtype=self.dtype_policy, name=name)


def main(arguments=None):
    return train(LinearLayer, arguments)


if __name__ == "__main__":
    main()
