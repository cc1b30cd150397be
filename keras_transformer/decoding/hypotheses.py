"""The hypotheses of a search: what continues them, which live on, which are finished.

Letters: B sentences, K beam size, N hypotheses returned, L longest output, V
vocabulary, R = B * K rows, C candidates of a sentence, P longest prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.candidates import best_tokens
from keras_transformer.decoding.constraints import (
    Constraints,
    banned_tokens,
    forced_tokens,
)
from keras_transformer.decoding.result import IMPOSSIBLE, SpecialIds, length_penalty
from keras_transformer.decoding.rows import pick, select, write


class Rules(NamedTuple):
    """What stays the same during a search."""

    step: Callable
    limit: Any  # L, an integer or a scalar tensor
    special_ids: SpecialIds
    alpha: float
    constraints: Constraints
    penalty: Callable | None


class Finished(NamedTuple):
    """Finished hypotheses of each sentence, the best first."""

    ids: Any  # (B, N, L) int32
    lengths: Any  # (B, N) int32
    log_probabilities: Any  # (B, N) float32
    scores: Any  # (B, N) float32


class Sentences(NamedTuple):
    """What a search carries from step to step, one row a sentence."""

    max_lengths: Any  # (B,) int32
    prefix: Any  # (B, P) int32, or () if no output is begun
    last_ids: Any  # (B, K) int32, of the unfinished hypotheses, the best first
    parents: Any  # (B, K) int32, their places one token ago
    ids: Any  # (B, K, L) int32
    log_probabilities: Any  # (B, K) float32
    finished: Finished


class Candidates(NamedTuple):
    """Best one-token continuations of each sentence's hypotheses, sorted."""

    parents: Any  # (B, C) int32, the hypothesis continued
    ids: Any  # (B, C) int32, the token added
    log_probabilities: Any  # (B, C) float32, of the whole continuation
    ends: Any  # (B, C) bool, whether nothing may follow
    penalties: Any  # (B, C) float32, or 0.0


def is_alive(sentences):
    """Returns (B,), whether a sentence has an unfinished hypothesis."""
    return sentences.log_probabilities[:, 0] > IMPOSSIBLE


def best_candidates(position, sentences, logits, penalties, rules):
    """Returns the best 2K continuations of a sentence, the best one if K is 1."""
    beam_size = sentences.last_ids.shape[1]
    count = 1 if beam_size == 1 else 2 * beam_size
    # The best of a sentence are among the best of each of its hypotheses.
    ids, added = _allowed_tokens(position, sentences, logits, count, rules)  # (R, k)
    width = ids.shape[1]
    flat = (-1, beam_size * width)
    added = ops.reshape(added, (-1, beam_size, width))
    totals = ops.expand_dims(sentences.log_probabilities, -1) + added
    best, order = ops.top_k(ops.reshape(totals, flat), min(count, flat[1]))
    order = ops.cast(order, "int32")
    ids = pick(ops.reshape(ids, flat), order)
    parents = sentences.parents if beam_size == 1 else order // width
    cut = ops.expand_dims(position + 1 >= sentences.max_lengths, 1)  # (B, 1)
    ends = ops.logical_or(ids == rules.special_ids.end_id, cut)
    if penalties is not None:
        penalties = pick(ops.reshape(penalties, (-1, beam_size)), parents)
    return Candidates(parents, ids, best, ends, penalties)


def _allowed_tokens(position, sentences, logits, count, rules):
    """Returns ids and log-probabilities, both (R, k), of each row's best tokens."""
    pad_id, start_id, end_id = rules.special_ids
    constraints = rules.constraints
    banned = banned_tokens(sentences.ids, position, constraints)
    # What is never allowed takes at most three places among the best.
    tokens = best_tokens(logits, count + 3, banned)
    ids = tokens.ids
    is_end = ids == end_id
    allowed = ops.logical_or(is_end, (ids != pad_id) & (ids != start_id))
    if constraints.min_length > 1:
        too_short = position + 1 < constraints.min_length
        allowed &= ops.logical_not(ops.logical_and(is_end, too_short))
    added = ops.where(allowed, tokens.log_probabilities, IMPOSSIBLE)
    if constraints.prefix is None:
        return ids, added
    # A forced token comes as one candidate more, and alone.
    forced, is_forced = (
        ops.expand_dims(ops.repeat(x, sentences.last_ids.shape[1], axis=0), 1)
        for x in forced_tokens(sentences.prefix, position, pad_id)  # (B,) --> (R, 1)
    )
    its = ops.cast(pick(logits, forced), "float32") - tokens.normaliser
    its = ops.where(ops.logical_and(is_forced, ops.isfinite(its)), its, IMPOSSIBLE)
    added = ops.where(is_forced, IMPOSSIBLE, added)
    return ops.concatenate([ids, forced], 1), ops.concatenate([added, its], 1)


def add_token(position, sentences, candidates, rules):
    """Returns the sentences after one more token."""
    last_ids, parents, totals = _grow(sentences, candidates)
    ids = write(_of_parents(sentences, parents), last_ids, position)
    finished = _finish(position, sentences, candidates, rules)
    # No unfinished hypothesis is left in a sentence that is done.
    longest = ops.expand_dims(sentences.max_lengths, 1)
    bound = totals[:, :1] / length_penalty(longest, rules.alpha)
    totals = ops.where(bound > finished.scores[:, -1:], totals, IMPOSSIBLE)
    return sentences._replace(
        last_ids=last_ids,
        parents=parents,
        ids=ids,
        log_probabilities=totals,
        finished=finished,
    )


def _of_parents(sentences, parents):
    """Returns the outputs so far (B, J, L) of the hypotheses at `parents` (B, J)."""
    if sentences.last_ids.shape[1] == 1:
        return sentences.ids
    return select(sentences.ids, parents)


def _grow(sentences, candidates):
    """Returns ids, parents and log-probabilities (B, K) of the best K to live on."""
    totals = ops.where(candidates.ends, IMPOSSIBLE, candidates.log_probabilities)
    beam_size = sentences.last_ids.shape[1]
    if beam_size == 1:
        return candidates.ids, candidates.parents, totals
    totals, order = ops.top_k(totals, beam_size)
    order = ops.cast(order, "int32")
    return pick(candidates.ids, order), pick(candidates.parents, order), totals


def _finish(position, sentences, candidates, rules):
    """Returns the best N among the finished hypotheses and what ends now."""
    if sentences.last_ids.shape[1] == 1:
        return _finish_greedy(position, sentences, candidates, rules)
    finished, length = sentences.finished, position + 1
    ending = ops.where(candidates.ends, candidates.log_probabilities, IMPOSSIBLE)
    scores = ending / length_penalty(length, rules.alpha)  # (B, C)
    if candidates.penalties is not None:
        scores = scores + candidates.penalties
    lengths = ops.where(ending > IMPOSSIBLE, length, 0)
    # Of equal scores the older stays: top_k prefers the lower place.
    scores = ops.concatenate([finished.scores, scores], axis=1)  # (B, N + C)
    n_best = finished.scores.shape[1]
    scores, order = ops.top_k(scores, n_best)
    order = ops.cast(order, "int32")
    ids = ops.concatenate(
        [
            finished.ids,
            # The whole output, written where it grew from.
            write(_of_parents(sentences, candidates.parents), candidates.ids, position),
        ],
        axis=1,
    )
    return Finished(
        ids=select(ids, order),
        lengths=pick(ops.concatenate([finished.lengths, lengths], axis=1), order),
        log_probabilities=pick(
            ops.concatenate([finished.log_probabilities, ending], axis=1), order
        ),
        scores=scores,
    )


def _finish_greedy(position, sentences, candidates, rules):
    """As `_finish` for K = 1, where a sentence ends once and there is no choice."""
    length = position + 1
    possible = candidates.log_probabilities > IMPOSSIBLE
    now = ops.logical_and(candidates.ends, possible)  # (B, 1)
    scores = candidates.log_probabilities / length_penalty(length, rules.alpha)
    if candidates.penalties is not None:
        scores = scores + candidates.penalties
    ended = Finished(
        ids=write(sentences.ids, candidates.ids, position),
        lengths=ops.broadcast_to(length, ops.shape(now)),
        log_probabilities=candidates.log_probabilities,
        scores=scores,
    )
    return Finished(
        *(
            ops.where(
                ops.expand_dims(now, -1) if len(new.shape) == 3 else now, new, old
            )
            for new, old in zip(ended, sentences.finished, strict=True)
        )
    )
