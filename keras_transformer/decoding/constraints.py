"""Which tokens may come next, and which must: pure functions called at each step.

Sampling asks about the whole vocabulary, beam search about the best few tokens alone.

A search takes a token's log-probability from the model's softmax over the whole
vocabulary. A banned token is passed over after that and keeps its share of the
probability, so a score is the model's own, with or without constraints.

Letters: B sentences, N beam size, R = B * N rows, C tokens of a row, L longest output,
P longest prefix, S source length, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding.result import IMPOSSIBLE, SpecialIds
from keras_transformer.decoding.rows import pick
from keras_transformer.types import Tensor, TensorLike


class Constraints(NamedTuple):
    """What an output must obey; the defaults allow every output.

    A prefix takes precedence over the others: its tokens are taken even where they end
    an output early or repeat an n-gram. A sentence's longest output takes
    precedence over the shortest.
    """

    min_length: int = 1  # tokens, the end token counted
    no_repeat_ngram_size: int = 0  # no n-gram comes twice in an output; 0 allows all
    prefix: Any = None  # (B, P) integers, first tokens of each output, then `pad_id`
    never: int | None = None  # an id that no output has, such as the unknown piece's


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
    """Bans tokens of the whole vocabulary; `force` sees to the prefix.

    Args:
        logits: Float tensor (R, V).
        ids: Integer tensor (B, N, L), the outputs so far.
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
    tokens = ops.arange(logits.shape[-1], dtype="int32")
    allowed = allowed_tokens(tokens, position, special_ids, constraints)
    logits = ops.where(allowed, logits, IMPOSSIBLE)
    banned = banned_tokens(ids, position, constraints)
    return logits if banned is None else ban(logits, *banned)


def allowed_tokens(tokens, position, special_ids: SpecialIds, constraints: Constraints):
    """Says which tokens an output may have next, whatever its tokens so far.

    Args:
        tokens: Integer tensor (...).
        position: Integer scalar, the number of tokens before.
        special_ids: Padding and start are never allowed, unless they are the end too.
        constraints: Its shortest output, before which the end is not allowed, and the
            id that is never allowed.

    Returns:
        Boolean tensor (...).
    """
    pad_id, start_id, end_id = special_ids
    is_end = ops.equal(tokens, end_id)
    allowed = is_end | (ops.not_equal(tokens, pad_id) & (tokens != start_id))
    if constraints.never is not None:
        allowed &= ops.not_equal(tokens, constraints.never)
    if constraints.min_length > 1:
        too_short = position + 1 < constraints.min_length
        allowed &= ops.logical_not(ops.logical_and(is_end, too_short))
    return allowed


def banned_tokens(ids, position, constraints):
    """Finds the tokens that would complete an n-gram for the second time.

    Args:
        ids: Integer tensor (B, N, L), the outputs so far.
        position: Integer scalar, the number of tokens in them.
        constraints: A `Constraints`.

    Returns:
        As `repeated_ngrams`, R = B * N; or `None` where nothing can be banned.
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
    # What a shift brings from the front lies past `position` and does not count.
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


def ban(logits, tokens, banned):
    """Makes some tokens of each row impossible.

    Args:
        logits: Float tensor (R, V).
        tokens: Integer tensor (R, C), repetitions allowed.
        banned: Boolean tensor (R, C), True where the token is banned.

    Returns:
        Float tensor (R, V).
    """
    tokens = ops.cast(tokens, "int32")
    rows = ops.expand_dims(ops.arange(ops.shape(tokens)[0], dtype="int32"), 1)
    places = ops.stack([ops.zeros_like(tokens) + rows, tokens], axis=-1)  # (R, C, 2)
    # Adding needs no order among repetitions, as replacing would.
    added = ops.cast(ops.where(banned, IMPOSSIBLE, 0.0), logits.dtype)
    return ops.scatter_update(
        logits, ops.reshape(places, (-1, 2)), ops.reshape(added, (-1,)), "add"
    )


def forced_tokens(prefix, position, pad_id, beam_size=1):
    """Returns the token that each row must have next, where a prefix says it.

    Args:
        prefix: Integer tensor (B, P), first tokens of each output; where it is
            `pad_id`, any token may come.
        position: Integer scalar, the number of tokens before.
        pad_id: Id of padding.
        beam_size: Rows of a sentence, N.

    Returns:
        Tokens (R, 1) int32 and a boolean (R, 1), True where the token is forced.
    """
    prefix = ops.convert_to_tensor(prefix, "int32")
    length = ops.shape(prefix)[1]
    # One column of padding more: past the prefix, and for a prefix of no columns.
    prefix = ops.pad(prefix, ((0, 0), (0, 1)), constant_values=pad_id)
    tokens = ops.take(prefix, ops.minimum(position, length), axis=1)
    tokens = ops.expand_dims(ops.repeat(tokens, beam_size, axis=0), 1)
    return tokens, ops.not_equal(tokens, pad_id)


def force(tokens, log_probabilities, logits, normaliser, forced):
    """Puts the token that must come next in place of those that might.

    Args:
        tokens: Integer tensor (R, C), next tokens of each row.
        log_probabilities: Float32 tensor (R, C), those of `tokens`.
        logits: Float tensor (R, V).
        normaliser: Float32 tensor (R, 1), the log-sum-exp of the logits.
        forced: What `forced_tokens` returns.

    Returns:
        Tokens and log-probabilities (R, C). Where a token is forced, the first is that
        token with the model's log-probability, and the others are impossible.
    """
    forced, is_forced = forced
    its = ops.cast(pick(logits, forced), "float32") - normaliser
    is_first = ops.arange(tokens.shape[1]) == 0
    its = ops.where(ops.logical_and(is_first, ops.isfinite(its)), its, IMPOSSIBLE)
    tokens = ops.where(is_forced, forced, tokens)
    return tokens, ops.where(is_forced, its, log_probabilities)


def coverage_penalty(
    coverage: TensorLike, source_mask: TensorLike, beta: float
) -> Tensor:
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
