"""Attention of one new position, in few and cheap operations.

A step of decoding is hundreds of small operations, and on TensorFlow's CPU some of the
usual ones cost more than the arithmetic in them: oneDNN's start-up makes a small
transposition, softmax or batched product take 30 to 45 microseconds instead of 5. Each
function here computes what its general version does, with other operations in a
TensorFlow graph that XLA does not compile.

B sentences, N hypotheses of each, H heads, S positions to attend to, K width of a head.
"""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.execution import in_tensorflow_graph
from keras_transformer.kernels.softmax import masked_softmax, wide_dtype


def split_heads(projected, hypotheses, heads, widths):
    """Cuts one projection into tensors of heads.

    Args:
        projected: Float tensor (B * N, H * sum(widths)), the parts side by side.
        hypotheses: N.
        heads: H.
        widths: Width of a head of each part.

    Returns:
        Tensors (B, H, N, width), one a part.
    """
    if len(set(widths)) > 1:
        ends = [heads * sum(widths[:i]) for i in range(1, len(widths))]
        parts = ops.split(projected, ends, axis=-1)
        return tuple(
            split_heads(part, hypotheses, heads, [width])[0]
            for part, width in zip(parts, widths, strict=True)
        )
    count, width = len(widths), widths[0]
    if count == 1 and hypotheses == 1:
        return (ops.reshape(projected, (-1, heads, 1, width)),)
    parts = ops.reshape(projected, (-1, hypotheses, count, heads, width))
    return tuple(ops.unstack(transpose(parts, (2, 0, 3, 1, 4)), count))


def merge_heads(outputs):
    """Joins heads (B, H, N, K) to rows (B * N, H * K)."""
    _, heads, hypotheses, width = outputs.shape
    if hypotheses > 1:
        outputs = transpose(outputs, (0, 2, 1, 3))
    return ops.reshape(outputs, (-1, heads * width))


def transpose(x, axes):
    """As `ops.transpose`."""
    if not in_tensorflow_graph():
        return ops.transpose(x, axes)
    import tensorflow as tf

    # oneDNN takes over tensors of floats, but not of integers.
    integers = {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
    return tf.bitcast(tf.transpose(tf.bitcast(x, integers), axes), x.dtype)


def attend(queries, keys, values, bias, by_row=False):
    """Attends as `scaled_dot_product_attention` does, with less to compute.

    The queries come scaled by 1 / sqrt(K), the mask is a bias that is made once
    for many layers, and every query must have something to attend to.

    Args:
        queries: Float tensor (B, H, N, K), scaled.
        keys: Float tensor (B, H, S, K).
        values: Float tensor (B, H, S, Kv).
        bias: Float tensor that broadcasts to (B, H, N, S), from `attention_bias`.
        by_row: Whether to multiply the N rows one by one, which pays where S is the
            length of a sentence and not N times that.

    Returns:
        The output (B, H, N, Kv) and the attention weights (B, H, N, S).
    """
    if (by_row or queries.shape[2] == 1) and in_tensorflow_graph():
        return _attend_by_row(queries, keys, values, bias)
    scores = ops.add(ops.matmul(queries, ops.swapaxes(keys, -1, -2)), bias)
    weights = ops.cast(masked_softmax(scores), values.dtype)
    return ops.matmul(weights, values), weights


def _attend_by_row(queries, keys, values, bias):
    """As `attend`, with operations that oneDNN leaves alone."""
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
    """Multiplies (B, H, N, M) by (B, H, M, O), or by its transpose."""
    import tensorflow as tf

    product = tf.raw_ops.BatchMatMulV3
    if x.dtype == tf.float16:  # The operation has no kernel for it.
        return tf.matmul(x, y, transpose_b=adj_y)
    if x.shape[2] == 1:
        return product(x=x, y=y, Tout=x.dtype, adj_y=adj_y)
    # One row at a time: above some size a product is several times slower.
    rows = product(x=x[:, :, :, None], y=y[:, :, None], Tout=x.dtype, adj_y=adj_y)
    return tf.squeeze(rows, 3)
