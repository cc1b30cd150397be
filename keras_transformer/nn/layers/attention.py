"""Attention as pure functions, and recording of attention weights."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.nn.kernels import few_passes
from keras_transformer.nn.kernels.execution import in_tensorflow_graph
from keras_transformer.nn.kernels.few_passes import masked_softmax
from keras_transformer.nn.kernels.fused_attention import (
    HAS_KERNELS,
    fused_attention,
    obstacle,
)
from keras_transformer.nn.kernels.keras_private import traced_output_spec
from keras_transformer.types import Tensor, TensorLike


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


def dot_product_attention(
    queries,
    keys,
    values,  # (B, H, T, K), (B, G, S, K) and (B, G, S, Kv)
    mask=None,  # boolean, broadcasts to (B, H, T, S)
    bias=None,  # float, added to the scores
    weigh=masked_softmax,  # function of scores and mask
    dropout=None,  # a `Dropout` layer in training
    fused=False,  # use a fused kernel: False never, None where faster, True always
    score=None,  # function of queries and keys; default their product
    with_weights=False,  # whether the attention weights are needed
):
    """Returns outputs (B, H, T, Kv) and, if made, weights (B, H, T, S)."""
    # Queries are scaled already.
    if fused or (fused is None and HAS_KERNELS):
        must = bool(fused)
        if with_weights:
            reason = "it returns no attention weights"
        elif not must and keras.config.is_flash_attention_enabled() is False:
            reason = "flash attention is disabled in Keras"
        elif score is not None:
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
    if score is None:
        scores = grouped_product(queries, ops.swapaxes(keys, -1, -2))
    else:
        scores = score(queries, keys)
    if bias is not None:
        scores = ops.add(scores, bias)
    is_quick = dropout is not None and weigh is masked_softmax and in_tensorflow_graph()
    if is_quick and dropout.makes_masks():
        dropped = few_passes.dropped_softmax_in_graph(scores, mask, dropout)
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


def attention_spec(layer, args, kwargs):
    """Returns what `call` of an attention layer returns, as `KerasTensor`s."""
    if layer.built:
        # Traces `call`, of which a subclass may make more.
        return traced_output_spec(layer, args, kwargs)
    given = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    names = ("query", "value", "key")
    shapes = [given[name].shape for name in names if given.get(name) is not None]
    shape = layer.compute_output_shape(*shapes)
    dtype = layer.compute_dtype
    output = keras.KerasTensor(shape, dtype)
    if not given.get("return_attention_scores"):
        return output
    batch, length, num_keys = *shapes[0][:2], shapes[-1][1]
    return output, keras.KerasTensor((batch, layer.num_heads, length, num_keys), dtype)


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
