"""The operations of a decoding step that are worth a way of their own.

A step of decoding is hundreds of small operations, and on TensorFlow's CPU some of the
usual ones cost more than the arithmetic in them: oneDNN's start-up makes a small
transposition, softmax or batched product take 30 to 45 microseconds in place of 5, and
a write to a cache copies all of it. Each function here does what its general line does,
and goes its own way in a TensorFlow graph that XLA does not compile.

B sentences, H heads, L positions, k hypotheses of a sentence, K width of a head.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.execution import compiled_by_xla, in_tensorflow_graph
from keras_transformer.layers.attention import masked_softmax, wide_dtype


def new_cache(sentences, heads, length, width, dtype):
    """Returns an empty cache (B, H, L, K) of its own memory.

    With k hypotheses of a sentence, `length` is k times the positions: entry l * k + j
    belongs to position l of hypothesis j. A hypothesis attends to all entries and a
    mask says which of them are its own past, so that hypotheses change places without
    the cache being touched.
    """
    shape = (sentences, heads, length, width)
    if in_tensorflow_graph():
        import tensorflow as tf

        # Zeros of one shape are one tensor in a graph, and writing to one of two
        # caches would write to both; this operation is never shared.
        return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=True)
    return ops.zeros(shape, dtype=dtype)


def cache_place(cache, hypotheses, index):
    """Works out where a position lies, once for all caches of a size.

    Args:
        cache: Float tensor (B, H, L * k, K).
        hypotheses: k.
        index: Integer scalar, the position.

    Returns:
        What `write_position` takes in place of `index`.
    """
    if not in_tensorflow_graph():
        return index
    import tensorflow as tf

    sentences, _, entries, _ = tf.unstack(tf.shape(cache))
    return tf.range(sentences * cache.shape[1]) * (entries // hypotheses) + index


def position_of(place):
    """Returns the position that `cache_place` was given.

    Args:
        place: Integer scalar, the position, or `cache_place` of it.

    Returns:
        Integer scalar.
    """
    # The first row of the first cache starts at entry 0.
    return place[0] if len(getattr(place, "shape", ())) else place


def write_position(cache, new, index):
    """Writes one position.

    Args:
        cache: Float tensor (B, H, L * k, K), which must not be used afterwards: in a
            TensorFlow graph it is overwritten.
        new: Float tensor (B, H, k, K).
        index: Integer scalar, the position, or `cache_place` of it.

    Returns:
        The cache with `new` at the entries index * k to (index + 1) * k.
    """
    hypotheses, width = new.shape[2:]
    if in_tensorflow_graph():
        import tensorflow as tf

        if not tf.convert_to_tensor(index).shape.rank:
            index = cache_place(cache, hypotheses, index)
        # Every other operation would copy the whole cache.
        rows = (-1, hypotheses * width)
        written = tf.raw_ops.InplaceUpdate(
            x=tf.reshape(cache, rows), i=index, v=tf.reshape(new, rows)
        )
        known = None not in cache.shape[1:]
        shape = (-1, *cache.shape[1:]) if known else tf.shape(cache)
        return tf.reshape(written, shape)
    start = index * hypotheses
    if compiled_by_xla():
        zero = ops.zeros_like(start)
        return ops.slice_update(cache, (zero, zero, start, zero), new)
    parts = [cache[:, :, :start], new, cache[:, :, start + hypotheses :]]
    return ops.concatenate(parts, axis=2)


def resize_cache(cache, sentences, more):
    """Returns the cache of some sentences, with room for more.

    Args:
        cache: Float tensor (B, H, L, K).
        sentences: Integer tensor (B',), places of the sentences to keep.
        more: Entries to add, an integer or a scalar tensor.

    Returns:
        Float tensor (B', H, L + more, K).
    """
    kept = ops.take(cache, sentences, axis=0)
    return ops.pad(kept, ((0, 0), (0, 0), (0, more), (0, 0)))


def prepared(kernel, bias=None):
    """Returns the arguments of `affine` after its input.

    oneDNN multiplies a single row in bfloat16 twice as fast where a bias is added: then
    one of zeros is.
    """
    if bias is None and keras.backend.standardize_dtype(kernel.dtype) == "bfloat16":
        bias = ops.zeros(kernel.shape[-1:], kernel.dtype)
    return (kernel,) if bias is None else (kernel, bias)


def affine(inputs, kernel, bias=None):
    """Multiplies (R, D) by (D, E) and adds a bias (E,) if there is one."""
    outputs = ops.matmul(inputs, kernel)
    return outputs if bias is None else outputs + bias


def split_heads(projected, hypotheses, heads, widths):
    """Cuts one projection into tensors of heads.

    Args:
        projected: Float tensor (B * k, H * sum(widths)), the parts side by side.
        hypotheses: k.
        heads: H.
        widths: Width of a head of each part.

    Returns:
        Tensors (B, H, k, width), one a part.
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
    """Joins heads (B, H, k, K) to rows (B * k, H * K)."""
    _, heads, hypotheses, width = outputs.shape
    if hypotheses > 1:
        outputs = transpose(outputs, (0, 2, 1, 3))
    return ops.reshape(outputs, (-1, heads * width))


def transpose(x, axes):
    """As `ops.transpose`."""
    if not in_tensorflow_graph():
        return ops.transpose(x, axes)
    import tensorflow as tf

    # oneDNN takes over what holds floats, and no integers.
    integers = {2: tf.int16, 4: tf.int32, 8: tf.int64}[x.dtype.size]
    return tf.bitcast(tf.transpose(tf.bitcast(x, integers), axes), x.dtype)


def attend(queries, keys, values, bias, by_row=False):
    """Attends as `scaled_dot_product_attention` does, with less to compute.

    The queries come scaled by 1 / sqrt(K), the mask comes as a bias that is made once
    for many layers, and every query must have something to attend to.

    Args:
        queries: Float tensor (B, H, k, K), scaled.
        keys: Float tensor (B, H, S, K).
        values: Float tensor (B, H, S, Kv).
        bias: Float tensor that broadcasts to (B, H, k, S), from `attention_bias`.
        by_row: Whether to multiply the k rows one by one, which pays where S is the
            length of a sentence and not k times that.

    Returns:
        The output (B, H, k, Kv) and the attention weights (B, H, k, S).
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
    """Multiplies (B, H, k, M) by (B, H, M, N), or by its transpose."""
    import tensorflow as tf

    product = tf.raw_ops.BatchMatMulV3
    if x.dtype == tf.float16:  # For which it has no kernel.
        return tf.matmul(x, y, transpose_b=adj_y)
    if x.shape[2] == 1:
        return product(x=x, y=y, Tout=x.dtype, adj_y=adj_y)
    # One row at a time: above some size of each product it is several times slower.
    rows = product(x=x[:, :, :, None], y=y[:, :, None], Tout=x.dtype, adj_y=adj_y)
    return tf.squeeze(rows, 3)
