"""Which tokens may come next, and which must.

A banned token keeps its share of the softmax, so a score is the model's own, with or
without constraints. Sampling constrains the whole vocabulary, beam search only the best
tokens.

Letters: B sentences, N beam size, R = B * N rows, C tokens of a row, L longest output,
P longest prefix, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.tokens import IMPOSSIBLE, ban
from keras_transformer.kernels.decoding import pick


class Constraints(NamedTuple):
    """Constraints on an output; the defaults allow every output.

    A prefix takes precedence over the others, the longest output over `min_length`.
    """

    min_length: int = 1  # tokens, the end token counted
    no_repeat_ngram_size: int = 0  # no n-gram of this size is repeated; 0 allows all
    prefix: Any = None  # (B, P) integers, first tokens, padded with `pad_id`
    never: int | None = None  # an id that is never output


def check_constraints(constraints):
    """Raises `ValueError` if a number or the shape of the prefix is out of range."""
    for name, minimum in (("min_length", 1), ("no_repeat_ngram_size", 0)):
        value = getattr(constraints, name)
        if value < minimum:
            raise ValueError(
                f"`{name}` must be at least {minimum}. Received: {name}={value}"
            )
    if constraints.prefix is None:
        return
    shape = tuple(ops.convert_to_tensor(constraints.prefix).shape)
    if len(shape) != 2:
        raise ValueError(
            "`prefix` must have one row a sentence, shape (B, P). "
            f"Received: shape {shape}"
        )


def constrain(logits, ids, position, special_ids, constraints):
    """Returns logits (R, V) without tokens that may not follow `ids` (B, N, L)."""
    tokens = ops.arange(logits.shape[-1], dtype="int32")
    allowed = allowed_tokens(tokens, position, special_ids, constraints)
    logits = ops.where(allowed, logits, IMPOSSIBLE)
    banned = banned_tokens(ids, position, constraints.no_repeat_ngram_size)
    return logits if banned is None else ban(logits, *banned)


def allowed_tokens(tokens, position, special_ids, constraints):
    """Returns which tokens (...) may follow any `position` others."""
    pad_id, start_id, end_id = special_ids
    is_end = ops.equal(tokens, end_id)
    # Padding and start are not allowed unless they are the end.
    allowed = is_end | (ops.not_equal(tokens, pad_id) & (tokens != start_id))
    if constraints.never is not None:
        allowed &= ops.not_equal(tokens, constraints.never)
    if constraints.min_length > 1:
        too_short = position + 1 < constraints.min_length
        allowed &= ops.logical_not(ops.logical_and(is_end, too_short))
    return allowed


def banned_tokens(ids, position, size):
    """Returns tokens (R, L) and whether each would repeat an n-gram of `size`."""
    # A banned token ends an n-gram whose first n - 1 tokens are the last of the output.
    if not size or (ids.shape[-1] is not None and size >= ids.shape[-1]):
        return None
    ids = ops.cast(ops.reshape(ids, (-1, ops.shape(ids)[-1])), "int32")  # (R, L)
    starts = ops.arange(ops.shape(ids)[-1], dtype="int32")
    # Tokens that wrap around lie past `position` and do not count.
    banned = ops.expand_dims(starts + size <= position, 0)  # (1, L)
    banned = ops.logical_or(banned, ops.zeros_like(ids, dtype="bool"))
    for i in range(size - 1):
        place = ops.maximum(position - (size - 1) + i, 0)
        last = ops.expand_dims(ops.take(ids, place, axis=1), 1)  # (R, 1)
        banned = ops.logical_and(banned, _shifted(ids, i) == last)
    return _shifted(ids, size - 1), banned


def _shifted(ids, count):
    """As `ops.roll(ids, -count, axis=1)`, which LiteRT lacks."""
    return ops.concatenate([ids[:, count:], ids[:, :count]], axis=1) if count else ids


def forced_tokens(prefix, position, pad_id, beam_size=1):
    """Returns the next tokens (R, 1) of a prefix, and where there is one, (R, 1)."""
    prefix = ops.convert_to_tensor(prefix, "int32")
    length = ops.shape(prefix)[1]
    # One more column of padding, for positions after the prefix.
    prefix = ops.pad(prefix, ((0, 0), (0, 1)), constant_values=pad_id)
    tokens = ops.take(prefix, ops.minimum(position, length), axis=1)
    tokens = ops.expand_dims(ops.repeat(tokens, beam_size, axis=0), 1)
    return tokens, ops.not_equal(tokens, pad_id)


def force(tokens, log_probabilities, logits, normaliser, forced):
    """Makes forced tokens the first of their rows (R, C) and the others impossible."""
    forced, is_forced = forced
    # Their log-probability: logits (R, V) less their log-sum-exp (R, 1).
    its = ops.cast(pick(logits, forced), "float32") - normaliser
    is_first = ops.arange(tokens.shape[1]) == 0
    its = ops.where(ops.logical_and(is_first, ops.isfinite(its)), its, IMPOSSIBLE)
    tokens = ops.where(is_forced, forced, tokens)
    return tokens, ops.where(is_forced, its, log_probabilities)
