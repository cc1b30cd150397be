"""What an output must obey, as pure functions that a search calls at each step.

A search takes a token's log-probability from the model's softmax over the whole
vocabulary. What a constraint bans is passed over after that and keeps its share, so a
score is the model's own, with or without constraints.

Letters: B sentences, K hypotheses of a sentence, R = B * K rows, L longest output, P
longest prefix, S source length, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.result import IMPOSSIBLE, SpecialIds


class Constraints(NamedTuple):
    """What an output must obey; the defaults allow every output.

    A prefix goes before the other two: its tokens are taken even where they end an
    output early or repeat an n-gram. A sentence's longest output goes before the
    shortest.
    """

    min_length: int = 1  # tokens, the end token counted
    no_repeat_ngram_size: int = 0  # no n-gram comes twice in an output; 0 allows all
    prefix: Any = None  # (B, P) integers, first tokens of each output, then `pad_id`


def check_constraints(constraints: Constraints):
    """Raises `ValueError` unless the constraints make sense.

    Raises:
        ValueError: If a number is out of its range or the prefix is no matrix.
    """
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
    """Makes impossible what must not follow; the prefix is left to `forced_tokens`.

    Args:
        logits: Float tensor (R, V).
        ids: Integer tensor (B, K, L), the outputs so far.
        position: Integer scalar, the number of tokens in them.
        special_ids: A `SpecialIds`.
        constraints: A `Constraints`.

    Returns:
        Float tensor (R, V), minus infinity where a token is banned.

    Example:
        >>> logits, ids = np.zeros((1, 4)), np.array([[[3, 0]]])
        >>> constrain(logits, ids, 1, SpecialIds(), Constraints(min_length=3))
        ... # [[-inf, -inf, -inf, 0]]
    """
    allowed = allowed_tokens(
        logits.shape[-1], position, special_ids, constraints.min_length
    )
    logits = ops.where(allowed, logits, IMPOSSIBLE)
    banned = banned_tokens(ids, position, constraints)
    return logits if banned is None else ban(logits, *banned)


def allowed_tokens(vocabulary_size, position, special_ids: SpecialIds, min_length=1):
    """Says which tokens any output may have next.

    Args:
        vocabulary_size: V.
        position: Integer scalar, the number of tokens before.
        special_ids: Padding and start are never allowed, unless they are the end too.
        min_length: Shortest output (tokens, end token counted): the end is not allowed
            before.

    Returns:
        Boolean tensor (V,).
    """
    pad_id, start_id, end_id = special_ids
    tokens = ops.arange(vocabulary_size, dtype="int32")
    inner = (tokens != pad_id) & (tokens != start_id) & (tokens != end_id)
    is_end = ops.equal(tokens, end_id)
    if min_length > 1:
        is_end = ops.logical_and(is_end, position + 1 >= min_length)
    return ops.logical_or(inner, is_end)


def banned_tokens(ids, position, constraints):
    """Finds the tokens that would complete an n-gram for the second time.

    Args:
        ids: Integer tensor (B, K, L), the outputs so far.
        position: Integer scalar, the number of tokens in them.
        constraints: A `Constraints`.

    Returns:
        As `repeated_ngrams`, R = B * K; or `None` where nothing can be banned.
    """
    size, longest = constraints.no_repeat_ngram_size, ids.shape[-1]
    # Two n-grams take n + 1 tokens or more.
    if not size or (longest is not None and size >= longest):
        return None
    return repeated_ngrams(ops.reshape(ids, (-1, ops.shape(ids)[-1])), position, size)


def repeated_ngrams(ids, position, size):
    """Finds the tokens that would complete an n-gram for the second time.

    An n-gram whose first n - 1 tokens are the last n - 1 of the row bans its last.

    Args:
        ids: Integer tensor (R, L), the outputs so far.
        position: Integer scalar, the number of tokens in them.
        size: n, at least 1.

    Returns:
        Tokens (R, L) and a boolean (R, L), True where the token is banned.

    Example:
        >>> tokens, banned = repeated_ngrams(np.array([[7, 8, 7, 0]]), 3, 2)
        >>> ops.convert_to_numpy(tokens)[ops.convert_to_numpy(banned)]
        array([8], dtype=int32)
    """
    ids = ops.cast(ids, "int32")
    starts = ops.arange(ops.shape(ids)[-1], dtype="int32")
    # Shifting wraps around; what it brings lies past `position` and does not count.
    banned = ops.expand_dims(starts + size <= position, 0)  # (1, L)
    banned = ops.logical_or(banned, ops.zeros_like(ids, dtype="bool"))
    for i in range(size - 1):
        place = ops.maximum(position - (size - 1) + i, 0)
        last = ops.expand_dims(ops.take(ids, place, axis=1), 1)  # (R, 1)
        banned = ops.logical_and(banned, ops.roll(ids, -i, axis=1) == last)
    return ops.roll(ids, 1 - size, axis=1), banned


def ban(logits, tokens, banned):
    """Makes some tokens of each row impossible.

    Args:
        logits: Float tensor (R, V).
        tokens: Integer tensor (R, M), repetitions allowed.
        banned: Boolean tensor (R, M), True where the token is banned.

    Returns:
        Float tensor (R, V).
    """
    tokens = ops.cast(tokens, "int32")
    rows = ops.expand_dims(ops.arange(ops.shape(tokens)[0], dtype="int32"), 1)
    places = ops.stack([ops.zeros_like(tokens) + rows, tokens], axis=-1)  # (R, M, 2)
    # Adding needs no order among repetitions, as replacing would.
    added = ops.cast(ops.where(banned, IMPOSSIBLE, 0.0), logits.dtype)
    return ops.scatter_update(
        logits, ops.reshape(places, (-1, 2)), ops.reshape(added, (-1,)), "add"
    )


def forced_tokens(prefix, position, pad_id):
    """Returns the token that each output must have next, where it must.

    Args:
        prefix: Integer tensor (B, P), first tokens of each output; `pad_id` is free.
        position: Integer scalar, the number of tokens before.
        pad_id: Id of padding.

    Returns:
        Tokens (B,) int32 and a boolean (B,), True where the token is forced.
    """
    prefix = ops.convert_to_tensor(prefix, "int32")
    length = ops.shape(prefix)[1]
    # One free column more: past the prefix, and for a prefix of no columns.
    prefix = ops.pad(prefix, ((0, 0), (0, 1)), constant_values=pad_id)
    tokens = ops.take(prefix, ops.minimum(position, length), axis=1)
    return tokens, ops.not_equal(tokens, pad_id)


def coverage_penalty(coverage, source_mask, beta):
    """Penalises an output for the source tokens that it attended to too little.

    beta * sum_i log(min(sum_j p_ij, 1)), with p_ij the attention of target token j to
    source token i: cp of equation 14 of Wu et al., 2016,
    https://arxiv.org/abs/1609.08144. It is added to a score and never above 0, and it
    only rises while an output grows. A source token without any attention counts as
    one with the smallest float32, not as minus infinity.

    Args:
        coverage: Float tensor (..., S), attention summed over the target tokens.
        source_mask: Boolean tensor that broadcasts to `coverage`, True where a source
            token counts.
        beta: Weight of the penalty, at least 0.

    Returns:
        Float32 tensor (...), nats.

    Example:
        >>> counts = np.array([True, True, False])
        >>> coverage_penalty(np.array([1.7, 0.5, 0.0]), counts, 2)  # 2 log 0.5
    """
    smallest = float(np.finfo("float32").tiny)
    covered = ops.clip(ops.cast(coverage, "float32"), smallest, 1.0)
    return beta * ops.sum(ops.where(source_mask, ops.log(covered), 0.0), axis=-1)
