"""The best next tokens of each row of logits."""

from __future__ import annotations

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.arguments import check_logits
from keras_transformer.decoding.constraints import ban
from keras_transformer.decoding.result import IMPOSSIBLE
from keras_transformer.decoding.rows import pick, select

# Below this many tokens one search over all is faster than one over blocks.
_LARGE_VOCABULARY = 2048


class BestTokens(NamedTuple):
    """The most probable next tokens of each row, the best first."""

    ids: Any  # (R, C) int32
    log_probabilities: Any  # (R, C) float32
    normaliser: Any  # (R, 1) float32, log-sum-exp of all logits


def best_tokens(logits, count, banned=None) -> BestTokens:
    """Returns the most probable next tokens of each row.

    The log-probabilities are those of a float32 softmax over the whole vocabulary,
    which is never computed whole: the best logits less one log-sum-exp are enough.

    Args:
        logits: Float tensor (R, V).
        count: Tokens to return, C; at most V come.
        banned: What `banned_tokens` returns. A banned token keeps its share of the
            probability.

    Returns:
        `BestTokens`. Of equally probable ones the lower id comes first (PyTorch leaves
        that open). In a row with a NaN among its logits, or without a possible token,
        all log-probabilities are minus infinity.

    Raises:
        ValueError: If the logits are not (R, V) with V known.
    """
    check_logits(logits)
    logits, size = ops.cast(logits, "float32"), logits.shape[1]
    allowed = logits if banned is None else ban(logits, *banned)
    best, ids = best_logits(allowed, min(count, size))
    highest = best[:, :1]
    if banned is not None:
        highest = ops.max(logits, axis=-1, keepdims=True)
    exponentials = ops.exp(logits - highest)
    # With a NaN, or without a possible token, the sum is NaN.
    normaliser = highest + ops.log(ops.sum(exponentials, axis=-1, keepdims=True))
    added = ops.where(ops.isfinite(normaliser), best - normaliser, IMPOSSIBLE)
    return BestTokens(ids, added, normaliser)


def _block_width(size):
    """Returns the divisor of `size` nearest to 128, or `None` if none fits."""
    if size < _LARGE_VOCABULARY:
        return None
    widths = [width for width in range(32, 513) if size % width == 0]
    return min(widths, key=lambda width: abs(width - 128), default=None)


def best_logits(logits, count):
    """Returns the best of each row of logits and their ids, as `ops.top_k` does.

    Args:
        logits: Float tensor (R, V).
        count: Logits to return, C, at most V.

    Returns:
        The logits (R, C), the best first, and their ids (R, C) int32.
    """
    width = _block_width(logits.shape[1])
    if width is None or logits.shape[1] // width < count:
        best, ids = ops.top_k(logits, count)
        return best, ops.cast(ids, "int32")
    # The C best tokens lie in the C blocks with the highest maxima; a search there
    # costs a tenth of one over the vocabulary.
    blocks = ops.reshape(logits, (-1, logits.shape[1] // width, width))
    chosen = ops.top_k(ops.max(blocks, axis=-1), count)[1]
    # In the order of the ids, so that of equal tokens the lower id stays first.
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)
    nearby = ops.reshape(select(blocks, chosen), (-1, count * width))
    best, places = ops.top_k(nearby, count)
    places = ops.cast(places, "int32")
    return best, pick(chosen, places // width) * width + places % width
