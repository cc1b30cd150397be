"""Attention as pure functions, its softmax, and recording of attention weights.

B sentences, H heads, G heads of keys and values, T queries, S keys, K width.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.nn.kernels.execution import has_gpu, in_tensorflow_graph
from keras_transformer.nn.kernels.keras_private import custom_gradient
from keras_transformer.types import Tensor, TensorLike

# Kernels that never hold the scores: cuDNN's on JAX, PyTorch's own. They compute a
# softmax only, return no attention weights and drop none. Flash attention: Dao et al.,
# 2022, https://arxiv.org/abs/2205.14135.
_WITH_KERNELS = ("jax", "torch")
HAS_KERNELS = keras.backend.backend() in _WITH_KERNELS
_HALF = ("float16", "bfloat16")
# From these lengths on PyTorch's kernel is faster on an AMD EPYC, forward and backward;
# on sentences of 30 to 40 tokens it is slower, in bfloat16 up to 7 times.
_SHORTEST_ON_PROCESSOR = {"float32": 128, "bfloat16": 512}


def wide_dtype(*dtypes) -> str:
    """Returns float64 if one of these is, else float32."""
    names = map(keras.backend.standardize_dtype, dtypes)
    return "float64" if "float64" in names else "float32"


def masked_softmax(scores: TensorLike, mask: TensorLike | None = None) -> Tensor:
    """Returns the softmax over the last axis, among the positions that the mask allows.

    It is computed in at least float32.

    Args:
        scores: Float tensor (..., S).
        mask: Boolean tensor that broadcasts to `scores`, or `None`.

    Returns:
        Float tensor (..., S) that sums to 1, or to 0 where the mask allows no position.

    Example:
        >>> mask = np.array([[True, True, False], [False, False, False]])
        >>> ops.convert_to_numpy(masked_softmax(np.zeros((2, 3)), mask)).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    dtype = scores.dtype
    wide = wide_dtype(scores.dtype)
    scores = ops.cast(scores, wide)
    if mask is not None:
        scores = ops.where(mask, scores, np.finfo(wide).min)
    if scores.shape[-1] in (0, 1):
        # Keras warns of a softmax over one position, and JAX has none over none.
        weights = ops.exp(scores - scores)
    else:
        weights = ops.softmax(scores, axis=-1)
    if mask is not None:
        # Zero where nothing is allowed and the softmax is uniform.
        weights = ops.where(mask, weights, 0.0)
    return ops.cast(weights, dtype)


def dropped_softmax_in_graph(scores, mask, dropout):
    """As `dropout(masked_softmax(scores, mask), training=True)`."""
    dtype = scores.dtype
    wide = wide_dtype(scores.dtype)
    keep, factors = dropout.next_mask(ops.shape(scores))
    if mask is not None:
        # A row with no key to attend to has zero weights.
        factors = ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype) * factors
    if keep is not None:
        factors = ops.cast(keep, dtype) * factors

    @custom_gradient
    def dropped_weights(scores):
        scores = ops.cast(scores, wide)
        if mask is not None:
            # Adding is cheaper than selecting.
            scores = scores + attention_bias(mask, wide)
        weights = ops.softmax(scores, axis=-1)
        dropped = ops.cast(weights, dtype) * factors

        def gradient(upstream):
            # w (u - sum(w u)), with u = factors * upstream; w u are the products.
            products = ops.cast(dropped, wide) * ops.cast(upstream, wide)
            total = ops.sum(products, axis=-1, keepdims=True)
            return ops.cast(products - weights * total, dtype)

        return dropped, gradient

    return dropped_weights(scores)


def attention_bias(mask, dtype):
    """Returns a bias that masks scores: 0, or a very low number where masked."""
    dtype = keras.backend.standardize_dtype(dtype)
    # Half of the lowest value, lest the sum overflow.
    lowest = float(np.finfo("float16" if dtype == "float16" else "float32").min) / 2
    return ops.cast(ops.where(mask, 0.0, lowest), dtype)


class PreparedMask(NamedTuple):
    """A mask that the layers share in a step, and the positions it is of."""

    mask: Any  # boolean, broadcasts to the scores
    bias: Any  # `attention_bias` of it
    places: Any = None  # of queries (1,) and of cache entries (S,); `None`: a source


def prepare_mask(mask, dtype, places=None):
    """Returns the `PreparedMask` of a boolean mask, for scores of a float type."""
    return PreparedMask(mask, attention_bias(mask, dtype), places)


def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    mask: TensorLike | None = None,
    dropout: Callable[[Any], Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes softmax(Q K^T / sqrt(K)) V, scaled dot-product attention.

    Equation 1 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762.

    Args:
        query: Float tensor (..., T, K).
        key: Float tensor (..., S, K).
        value: Float tensor (..., S, Kv).
        mask: Boolean tensor that broadcasts to (..., T, S), True where a query may
            attend to a key, or `None`. A query with no key to attend to gets zeros.
        dropout: Function of the attention weights, or `None`.

    Returns:
        The output (..., T, Kv) and the attention weights (..., T, S) before dropout.

    Example:
        >>> query, key = np.zeros((1, 4), "float32"), np.ones((2, 4), "float32")
        >>> value = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
        >>> output, weights = scaled_dot_product_attention(query, key, value)
        >>> ops.convert_to_numpy(output).tolist()  # the mean of the values
        [[2.0, 3.0]]
        >>> ops.convert_to_numpy(weights).tolist()
        [[0.5, 0.5]]
    """
    query = query * key.shape[-1] ** -0.5
    scores = grouped_product(query, ops.swapaxes(key, -1, -2))  # (..., T, S)
    attention_weights = masked_softmax(scores, mask)
    dropped = attention_weights if dropout is None else dropout(attention_weights)
    return grouped_product(dropped, value), attention_weights


def dot_products(queries: TensorLike, keys: TensorLike) -> Tensor:
    """Returns the products of queries and keys: the scores before mask and softmax.

    The `score` of `MultiHeadAttention`. Override it to score otherwise.

    A call passes all T positions in order. A step of decoding passes one query of each
    of N hypotheses, T = N, and the whole cache, S = L * N: the keys of L positions,
    entry l * N + n position l of hypothesis n, with places that are not yet written or
    belong to others, which the mask then excludes. So a score must follow from the two
    vectors alone; what depends on the distance is a matter of `RelativePositions`.

    Args:
        queries: Float tensor (B, H, T, K), multiplied by `query_scale`.
        keys: Float tensor (B, G, S, K) of G `num_key_value_heads`.

    Returns:
        Float tensor (B, H, T, S).

    Example:
        >>> queries, keys = np.ones((1, 2, 3, 4)), np.ones((1, 2, 5, 4))
        >>> dot_products(queries, keys).shape  # (1, 2, 3, 5)
    """
    return grouped_product(queries, ops.swapaxes(keys, -1, -2))


def dot_product_attention(
    queries,
    keys,
    values,  # (B, H, T, K), (B, G, S, K) and (B, G, S, Kv)
    mask=None,  # boolean, broadcasts to (B, H, T, S)
    bias=None,  # float, added to the scores
    weigh=masked_softmax,  # function of scores and mask
    dropout=None,  # a `Dropout` layer in training
    fused=False,  # use a fused kernel: False never, None where faster, True always
    score=dot_products,  # function of queries and keys
    with_weights=False,  # whether the attention weights are requested
):
    """Returns outputs (B, H, T, Kv) and, if made, weights (B, H, T, S)."""
    # Queries are scaled already.
    with_weights = with_weights or is_recording()
    if fused or (fused is None and HAS_KERNELS):
        must = bool(fused)
        if with_weights:
            reason = "it returns no attention weights"
        elif not must and keras.config.is_flash_attention_enabled() is False:
            reason = "flash attention is disabled in Keras"
        elif score is not dot_products:
            reason = "it computes dot products, and `score` is another function"
        elif weigh is not masked_softmax:
            reason = "it computes a softmax, and `weigh` is another function"
        elif dropout is not None and dropout.rate > 0:
            reason = "it drops no attention weights"
        else:
            reason = obstacle(queries, keys, values, mask, bias, must)
        if reason is None:
            return fused_attention(queries, keys, values, mask, bias, must), None
        if must:
            refuse_fused(reason)
    scores = score(queries, keys)
    if bias is not None and 0 not in scores.shape:  # Keras cannot add to nothing.
        scores = ops.add(scores, bias)
    is_quick = dropout is not None and weigh is masked_softmax and in_tensorflow_graph()
    if is_quick and dropout.makes_masks():
        dropped = dropped_softmax_in_graph(scores, mask, dropout)
        attention_weights = weigh(scores, mask) if with_weights else None
    else:
        dropped = attention_weights = weigh(scores, mask)
        if dropout is not None:
            dropped = dropout(attention_weights, training=True)
    # A float32 bias has made half-precision weights float32.
    outputs = grouped_product(ops.cast(dropped, values.dtype), values)
    if attention_weights is not None:
        attention_weights = ops.cast(attention_weights, values.dtype)
    return outputs, attention_weights


def refuse_fused(reason):
    """Raises the `ValueError` of `flash_attention=True` without a fused kernel."""
    raise ValueError(
        "`flash_attention` must be None or False where no fused kernel can be used: "
        f"{reason}. Received: flash_attention=True"
    )


def grouped_product(rows, matrices):
    """Multiplies the rows (B, H, T, M) of H heads by matrices (B, G, M, N)."""
    # Each matrix serves H / G consecutive heads (Ainslie et al., 2023, section 2.2).
    if len(rows.shape) != 4 or rows.shape[1] == matrices.shape[1]:
        return ops.matmul(rows, matrices)
    batch, heads, length, width = ops.shape(rows)
    groups = matrices.shape[1]
    folded = ops.reshape(rows, (batch, groups, heads // groups * length, width))
    product = ops.matmul(folded, matrices)  # No matrix is copied.
    return ops.reshape(product, (batch, heads, length, ops.shape(product)[-1]))


def obstacle(queries, keys, values, mask=None, bias=None, must=False) -> str | None:
    """Returns why `fused_attention` is not used, or `None`; `must`: even if slower."""
    backend = keras.backend.backend()
    if backend not in _WITH_KERNELS:
        return f"the backend {backend} has none"
    dtype = keras.backend.standardize_dtype(queries.dtype)
    widths = queries.shape[-1], values.shape[-1]
    lengths = queries.shape[2], keys.shape[2]
    if backend == "jax":
        is_plain = mask is None and bias is None
        return _obstacle_of_cudnn(dtype, widths, lengths, is_plain)
    if not has_gpu():
        shortest = _SHORTEST_ON_PROCESSOR.get(dtype)
        if must or (shortest is not None and min(lengths) >= shortest):
            return None
        if shortest is None:
            return f"PyTorch's has not been measured on a processor in {dtype}"
        return f"PyTorch's gains from {shortest} positions on in {dtype}, not {lengths}"
    # In these cases PyTorch would hold the scores.
    if dtype == "float64":
        return "PyTorch's are not for float64"
    multiple = 8 if dtype in _HALF else 4
    if any(width % multiple for width in widths):
        return f"heads of {dtype} must be multiples of {multiple} wide, not {widths}"
    return None


def _obstacle_of_cudnn(dtype, widths, lengths, is_plain):
    if not has_gpu():
        return "JAX has none without a GPU"
    if dtype not in _HALF:
        return f"cuDNN's is for float16 and bfloat16, not {dtype}"
    width, value_width = widths
    if value_width != width or width % 8 or width > 128:
        return (
            "cuDNN's takes keys and values of one width, a multiple of 8 up to 128, "
            f"not {widths}"
        )
    if not is_plain and any(length % 2 for length in lengths):
        # Its backward pass refuses them.
        return f"cuDNN's takes a mask of even lengths only, not {lengths}"
    if keras.distribution.distribution() is not None:
        return "cuDNN's has not been tried on several devices"
    import jax

    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    if not capability.partition(".")[0].isdigit() or float(capability) < 8.0:
        return f"cuDNN's needs compute capability 8.0, not {capability!r}"
    return None


def fused_attention(queries, keys, values, mask=None, bias=None, must=False):
    """As `dot_product_attention`, with a bias in the queries' type."""
    # With `must`, JAX raises an error without cuDNN; else it computes the same without.
    alive = None
    if mask is not None:
        # A query with no key to attend to attends to all, lest a kernel divide by zero;
        # its output is replaced, which stops its gradient.
        alive = ops.any(mask, axis=-1, keepdims=True)
        mask = ops.logical_or(mask, ops.logical_not(alive))
    if keras.backend.backend() == "jax":
        if bias is not None and len(bias.shape) == 3:
            bias = bias[None]
        # cuDNN broadcasts over sentences and heads only.
        lengths = queries.shape[2], keys.shape[2]
        mask, bias = (
            x if x is None else ops.broadcast_to(x, (*x.shape[:2], *lengths))
            for x in (mask, bias)
        )
        options = {"mask": mask, "flash_attention": must or None}
    else:
        if mask is not None:
            masked = attention_bias(mask, queries.dtype)
            bias = masked if bias is None else masked + ops.cast(bias, queries.dtype)
        if keys.shape[1] == 1:
            # Keras copies shared heads; of a single one a view is enough.
            batch, heads = queries.shape[:2]
            keys, values = (
                ops.broadcast_to(x, (batch, heads, *x.shape[2:]))
                for x in (keys, values)
            )
        # With True PyTorch would use its flash kernel only, which takes no bias.
        options = {"flash_attention": False}
    # Keras' axes are positions, then heads.
    tensors = (ops.swapaxes(x, 1, 2) for x in (queries, keys, values))
    outputs = ops.dot_product_attention(*tensors, bias=bias, scale=1.0, **options)
    outputs = ops.swapaxes(outputs, 1, 2)
    return outputs if alive is None else ops.where(alive, outputs, 0.0)


def attention_of_step(queries, keys, values, bias, by_row=False):
    """Returns outputs (B, H, N, Kv) and weights (B, H, N, S) for scaled queries.

    `by_row` multiplies the N rows one by one, which is faster for a short source.
    """
    if (by_row or queries.shape[2] == 1) and in_tensorflow_graph():
        return _attend_by_row(queries, keys, values, bias)
    scores = ops.add(ops.matmul(queries, ops.swapaxes(keys, -1, -2)), bias)
    weights = ops.cast(masked_softmax(scores), values.dtype)
    return ops.matmul(weights, values), weights


def _attend_by_row(queries, keys, values, bias):
    """As `attention_of_step`, with operations that oneDNN does not replace."""
    import tensorflow as tf

    dtype = queries.dtype
    wide = wide_dtype(dtype)
    weights = tf.cast(_product(queries, keys, adj_y=True), wide)
    weights += tf.cast(bias, wide)
    weights = tf.exp(weights - tf.reduce_max(weights, axis=-1, keepdims=True))
    weights /= tf.reduce_sum(weights, axis=-1, keepdims=True)
    weights = tf.cast(weights, dtype)
    return _product(weights, values), weights


def _product(x, y, adj_y=False):
    """Returns the product of (B, H, N, M) and (B, H, M, O), or its transpose."""
    import tensorflow as tf

    product = tf.raw_ops.BatchMatMulV3
    if x.dtype == tf.float16:  # The operation has no kernel for it.
        return tf.matmul(x, y, transpose_b=adj_y)
    if x.shape[2] == 1:
        return product(x=x, y=y, Tout=x.dtype, adj_y=adj_y)
    # Row by row: a large product is several times slower.
    rows = product(x=x[:, :, :, None], y=y[:, :, None], Tout=x.dtype, adj_y=adj_y)
    return tf.squeeze(rows, 3)


_RECORD = contextvars.ContextVar("attention_record", default=None)


@contextlib.contextmanager
def recorded_attention() -> Iterator[dict]:
    """Records the attention weights computed in the `with` block.

    Call the model directly: `fit`, `predict` and compiled functions record nothing.

    Yields:
        A dictionary from each attention layer to a list of its weights (B, H, T, S),
        one tensor per call.

    Example:
        >>> layer = EncoderLayer(num_heads=2, d_ff=8)
        >>> with recorded_attention() as record:
        ...     outputs = layer(np.zeros((1, 3, 4), "float32"))
        >>> (weights,) = record[layer.self_attention]
        >>> tuple(weights.shape)
        (1, 2, 3, 3)
    """
    record = {}
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def is_recording() -> bool:
    """Whether attention weights are being recorded."""
    return _RECORD.get() is not None


def record_attention(layer: keras.layers.Layer, weights: TensorLike | None) -> None:
    """Adds a layer's weights (B, H, T, S) to the record, if one is kept.

    Call it in an attention layer of your own, so that plots can show its weights.

    Example:
        >>> with recorded_attention() as record:
        ...     record_attention("mine", np.ones((1, 2, 3, 3)))
        >>> record["mine"][0].shape
        (1, 2, 3, 3)
    """
    record = _RECORD.get()
    if record is not None and weights is not None:
        record.setdefault(layer, []).append(weights)
