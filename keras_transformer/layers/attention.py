"""Attention as pure functions of tensors."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from keras import ops

from keras_transformer.kernels.few_passes import dropped_weights, masked_softmax
from keras_transformer.kernels.fused_attention import fused_attention
from keras_transformer.layers.flash_attention import can_fuse
from keras_transformer.types import Tensor, TensorLike


def scaled_dot_product_attention(
    query: TensorLike, key: TensorLike, value: TensorLike,
    mask: TensorLike | None = None, dropout: Callable[[Any], Any] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attends to values by the scaled dot product of queries and keys.

    softmax(Q K^T / sqrt(K)) V: equation 1 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762.

    Args:
        query: Float tensor (..., T, K).
        key: Float tensor (..., S, K).
        value: Float tensor (..., S, Kv).
        mask: Boolean tensor that broadcasts to (..., T, S), True where a query may
            attend to a key, or `None`. A query with nothing to attend to gets zeros.
        dropout: Callable applied to the attention weights, or `None`.

    Returns:
        The output (..., T, Kv) and the attention weights (..., T, S) before dropout.

    Example:
        >>> query, key = np.zeros((1, 4), "float32"), np.ones((2, 4), "float32")
        >>> value = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
        >>> output, weights = scaled_dot_product_attention(query, key, value)
        >>> ops.convert_to_numpy(output).tolist()  # The mean: the scores are equal.
        [[2.0, 3.0]]
        >>> ops.convert_to_numpy(weights).tolist()
        [[0.5, 0.5]]
    """
    scores = grouped_product(
        query * key.shape[-1] ** -0.5, ops.swapaxes(key, -1, -2)
    )  # (..., T, S)
    attention_weights = masked_softmax(scores, mask)
    dropped = attention_weights if dropout is None else dropout(attention_weights)
    return grouped_product(dropped, value), attention_weights


def dot_product_attention(
    query: TensorLike, key: TensorLike, value: TensorLike,
    mask: TensorLike | None = None, bias: TensorLike | None = None,
    weigh: Callable[..., Any] = masked_softmax,
    dropout: Callable[[Any], Any] | None = None, fused: bool | None = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attends to values by the dot product of queries and keys, not scaled.

    Keys and values may have fewer heads than queries; see `grouped_product`.

    Args:
        query: Float tensor (..., T, K).
        key: Float tensor (..., S, K).
        value: Float tensor (..., S, Kv).
        mask: Boolean tensor that broadcasts to (..., T, S), or `None`.
        bias: Float tensor that broadcasts to (..., T, S), added to the scores, or
            `None`. With a float32 bias even half-precision scores are float32.
        weigh: Function of scores and mask that returns the attention weights.
        dropout: `Dropout` layer in training, or `None` to drop no weight.
        fused: Whether to use `fused_attention`, which gives no weights: `False` never,
            `None` where it can be used and gains, `True` always.

    Returns:
        The output (..., T, Kv) and the attention weights (..., T, S) before dropout,
        or `None` in place of the weights after `fused_attention`.

    Raises:
        ValueError: If `fused` is True and `fused_attention` cannot be used.
    """
    tensors, must = (query, key, value, mask, bias), bool(fused)
    if fused is not False and can_fuse(tensors, weigh, dropout, must):
        return fused_attention(*tensors, must=must), None
    scores = grouped_product(query, ops.swapaxes(key, -1, -2))  # (..., T, S)
    return attention_by_scores(scores, value, mask, bias, weigh, dropout)


def attention_by_scores(
    scores, value, mask=None, bias=None, weigh=masked_softmax, dropout=None
):
    """Attends to values, once there is a score of each query and key.

    Args:
        scores: Float tensor (..., T, S).
        value: Float tensor (..., S, Kv).
        mask: As of `dot_product_attention`, like the rest.
        bias: What is added to the scores, or `None`.
        weigh: Function of scores and mask that returns the attention weights.
        dropout: `Dropout` layer in training, or `None`.

    Returns:
        The output (..., T, Kv) and the attention weights (..., T, S) before dropout.
    """
    if bias is not None:
        scores = ops.add(scores, bias)
    dropped, attention_weights = dropped_weights(scores, mask, weigh, dropout)
    # A float32 bias has made them float32.
    dropped, attention_weights = (
        ops.cast(weights, value.dtype) for weights in (dropped, attention_weights)
    )
    return grouped_product(dropped, value), attention_weights


def grouped_product(rows, matrices):
    """Multiplies the rows of H heads by matrices, of which there may be fewer.

    With G matrices each one serves H / G consecutive heads, without being copied:
    section 2.2 of Ainslie et al., 2023, https://arxiv.org/abs/2305.13245.

    Args:
        rows: Float tensor (B, H, T, M), or (..., T, M) where each has its matrix.
        matrices: Float tensor (B, G, M, N), or (..., M, N).

    Returns:
        Float tensor (B, H, T, N), or (..., T, N).
    """
    if len(rows.shape) != 4 or rows.shape[1] == matrices.shape[1]:
        return ops.matmul(rows, matrices)
    batch, heads, length, width = ops.shape(rows)
    groups = matrices.shape[1]
    folded = ops.reshape(rows, (batch, groups, heads // groups * length, width))
    product = ops.matmul(folded, matrices)
    return ops.reshape(product, (batch, heads, length, ops.shape(product)[-1]))


def additive_attention(
    query: TensorLike, key: TensorLike, value: TensorLike, kernel: TensorLike,
    mask: TensorLike | None = None, dropout: Callable[[Any], Any] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attends to values by a small network's score of each pair of query and key.

    softmax_s(w . tanh(q_t + k_s)) V, with queries and keys projected beforehand: the
    alignment model of Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473 (appendix
    A.1.2). Takes memory for T * S vectors of width U.

    Args:
        query: Float tensor (..., T, U).
        key: Float tensor (..., S, U).
        value: Float tensor (..., S, Dv).
        kernel: Float tensor (U,), w.
        mask: Boolean tensor that broadcasts to (..., T, S), True where a query may
            attend to a key, or `None`. A query with nothing to attend to gets zeros.
        dropout: Callable applied to the attention weights, or `None`.

    Returns:
        The output (..., T, Dv) and the attention weights (..., T, S) before dropout.

    Example:
        >>> query, key = np.zeros((1, 2), "float32"), np.zeros((3, 2), "float32")
        >>> value, kernel = np.eye(3, dtype="float32"), np.ones(2, "float32")
        >>> mask = np.array([[True, True, False]])
        >>> output, weights = additive_attention(query, key, value, kernel, mask)
        >>> ops.convert_to_numpy(output).tolist()
        [[0.5, 0.5, 0.0]]
    """
    scores = additive_scores(query, key, kernel)
    attention_weights = masked_softmax(scores, mask)
    dropped = attention_weights if dropout is None else dropout(attention_weights)
    return ops.matmul(dropped, value), attention_weights


def additive_scores(query, key, kernel):
    """Scores each pair of query and key by w . tanh(q_t + k_s).

    Args:
        query: Float tensor (..., T, U), or (B, H, T, U).
        key: Float tensor (..., S, U), or (B, H, S, U).
        kernel: Float tensor (U,), w; or (H, U), that of each head.

    Returns:
        Float tensor (..., T, S).
    """
    hidden = ops.tanh(ops.expand_dims(query, -2) + ops.expand_dims(key, -3))
    by_head = len(kernel.shape) == 2
    columns = kernel[:, None, :, None] if by_head else kernel[:, None]
    return ops.matmul(hidden, columns)[..., 0]


_RECORD = contextvars.ContextVar("attention_record", default=None)


@contextlib.contextmanager
def recorded_attention() -> Iterator[dict]:
    """Records the attention weights that layers compute in the `with` block.

    Any model will do, as it is: each `MultiHeadAttention` that is called records its
    weights. Call the model directly; `fit`, `predict` and functions compiled before
    record nothing that can be read.

    Yields:
        A dictionary from each attention layer to a list of its weights, (B, H, T, S),
        one tensor a call; in the order of the calls.

    Example:
        >>> layer = EncoderLayer(num_heads=2, d_ff=8)
        >>> with recorded_attention() as record:
        ...     outputs = layer(np.zeros((1, 3, 4), "float32"))
        >>> (weights,) = record[layer.self_attention]
        >>> tuple(weights.shape)  # (B, H, S, S)
        (1, 2, 3, 3)
    """
    record = {}
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def is_recording() -> bool:
    """Whether attention weights are being recorded.

    Example:
        >>> is_recording()
        False
    """
    return _RECORD.get() is not None


def record_attention(layer, weights):
    """Hands attention weights to the record, if there is one.

    Call it in the attention layer that you write, so that plots can show its weights.

    Args:
        layer: The attention layer.
        weights: Float tensor (B, H, T, S).

    Example:
        >>> with recorded_attention() as record:
        ...     record_attention("mine", np.ones((1, 2, 3, 3)))
        >>> record["mine"][0].shape
        (1, 2, 3, 3)
    """
    record = _RECORD.get()
    if record is not None:
        record.setdefault(layer, []).append(weights)
