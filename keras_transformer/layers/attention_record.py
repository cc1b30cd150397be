"""The attention weights of every layer of a model, recorded while it computes."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_RECORD = contextvars.ContextVar("attention_record", default=None)


@contextlib.contextmanager
def recorded_attention() -> Iterator[dict]:
    """Records the attention weights that layers compute inside.

    Of any model, without it knowing: each `MultiHeadAttention` that is called hands its
    weights over. Call the model directly; `fit`, `predict` and functions compiled
    before record nothing that can be read.

    Yields:
        A dictionary from each attention layer to a list of its weights, (B, H, T, S),
        one tensor a call; in the order of the calls.

    Example:
        >>> with recorded_attention() as record:
        ...     model((source, target_in))
        >>> record[model.encoder_layers[0].self_attention][0]  # (B, H, S, S)
    """
    record = {}
    token = _RECORD.set(record)
    try:
        yield record
    finally:
        _RECORD.reset(token)


def is_recording() -> bool:
    """Whether somebody wants to see attention weights.

    Example:
        >>> is_recording()
        False
    """
    return _RECORD.get() is not None


def record_attention(layer, weights):
    """Hands attention weights to the record, if there is one.

    Args:
        layer: The attention layer.
        weights: Float tensor (B, H, T, S).
    """
    record = _RECORD.get()
    if record is not None:
        record.setdefault(layer, []).append(weights)
