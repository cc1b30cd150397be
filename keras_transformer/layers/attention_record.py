"""The attention weights of every layer of a model, recorded while it computes."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

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
