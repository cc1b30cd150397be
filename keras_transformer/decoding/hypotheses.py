"""The hypotheses of beam search: what continues them, which live on, which end.

Letters: B sentences, N beam size, R = B * N rows, L longest output, V vocabulary, C
candidates of a sentence or a row, P longest prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.best_tokens import best_tokens
from keras_transformer.decoding.constraints import (
    Constraints,
    allowed_tokens,
    banned_tokens,
    force,
    forced_tokens,
)
from keras_transformer.decoding.result import (
    IMPOSSIBLE,
    LengthPenaltyForm,
    SpecialIds,
    length_penalty,
)
from keras_transformer.decoding.rows import pick, select, write


class Rules(NamedTuple):
    """What stays the same during a search."""

    step: Callable
    limit: Any  # L, an integer or a scalar tensor
    special_ids: SpecialIds
    alpha: float
    length_penalty_form: LengthPenaltyForm
    constraints: Constraints
    penalty: Callable | None
    ends_within_beam: bool

    def length_penalty(self, length):
        """Returns the divisor of the log-probabilities of outputs of a length."""
        return length_penalty(length, self.alpha, self.length_penalty_form)


class Finished(NamedTuple):
    """Finished hypotheses of each sentence, the best first."""

    ids: Any  # (B, n_best, L) int32
    lengths: Any  # (B, n_best) int32
    log_probabilities: Any  # (B, n_best) float32
    scores: Any  # (B, n_best) float32


class Sentences(NamedTuple):
    """What a search carries from step to step, one row a sentence."""

    max_lengths: Any  # (B,) int32
    prefix: Any  # (B, P) int32, or () without one
    last_ids: Any  # (B, N) int32, of the unfinished hypotheses, the best first
    parents: Any  # (B, N) int32, their places one token ago
    ids: Any  # (B, N, L) int32
    log_probabilities: Any  # (B, N) float32
    finished: Finished


class Candidates(NamedTuple):
    """Best one-token continuations of each sentence's hypotheses, the best first."""

    parents: Any  # (B, C) int32, the hypothesis continued
    ids: Any  # (B, C) int32, the token added
    log_probabilities: Any  # (B, C) float32, of the whole continuation
    ends: Any  # (B, C) bool, whether nothing may follow
    penalties: Any  # (B, C) float32, or 0.0


def is_alive(sentences):
    """Returns (B,), whether a sentence has an unfinished hypothesis."""
    return sentences.log_probabilities[:, 0] > IMPOSSIBLE


def best_candidates(position, sentences, logits, penalties, rules):
    """Returns the best 2N continuations of a sentence, the best one if N is 1."""
    beam_size = sentences.last_ids.shape[1]
    count = 1 if beam_size == 1 else 2 * beam_size
    # The best of a sentence are among the best of each of its hypotheses.
    ids, added = _next_tokens(position, sentences, logits, count, rules)  # (R, C)
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


def _next_tokens(position, sentences, logits, count, rules):
    """Returns each row's best tokens and their log-probabilities, both (R, C)."""
    constraints, special_ids = rules.constraints, rules.special_ids
    banned = banned_tokens(sentences.ids, position, constraints)
    # Padding, start, an early end and what never comes take a place each at most.
    more = 3 if constraints.never is None else 4
    ids, added, normaliser = best_tokens(logits, count + more, banned)
    allowed = allowed_tokens(ids, position, special_ids, constraints)
    added = ops.where(allowed, added, IMPOSSIBLE)
    if constraints.prefix is None:
        return ids, added
    forced = forced_tokens(
        sentences.prefix, position, special_ids.pad_id, sentences.last_ids.shape[1]
    )
    return force(ids, added, logits, normaliser, forced)


def add_token(position, sentences, candidates, rules):
    """Returns the sentences after one more token."""
    last_ids, parents, totals = _grow(sentences, candidates)
    ids = write(_of_parents(sentences, parents), last_ids, position)
    finished = _finish(position, sentences, candidates, rules)
    # No unfinished hypothesis is left in a sentence that is done.
    longest = ops.expand_dims(sentences.max_lengths, 1)
    bound = totals[:, :1] / rules.length_penalty(longest)
    totals = ops.where(bound > finished.scores[:, -1:], totals, IMPOSSIBLE)
    return sentences._replace(
        last_ids=last_ids,
        parents=parents,
        ids=ids,
        log_probabilities=totals,
        finished=finished,
    )


def _of_parents(sentences, parents):
    """Returns the outputs so far (B, C, L) of the hypotheses at `parents` (B, C)."""
    if sentences.last_ids.shape[1] == 1:
        return sentences.ids
    return select(sentences.ids, parents)


def _grow(sentences, candidates):
    """Returns ids, parents and log-probabilities (B, N) of the N that live on."""
    totals = ops.where(candidates.ends, IMPOSSIBLE, candidates.log_probabilities)
    beam_size = sentences.last_ids.shape[1]
    if beam_size == 1:
        return candidates.ids, candidates.parents, totals
    totals, order = ops.top_k(totals, beam_size)
    order = ops.cast(order, "int32")
    return pick(candidates.ids, order), pick(candidates.parents, order), totals


def _finish(position, sentences, candidates, rules):
    """Returns the best of the hypotheses finished before and of those that end now."""
    if sentences.last_ids.shape[1] == 1:
        return _finish_greedy(position, sentences, candidates, rules)
    finished, length = sentences.finished, position + 1
    ends = candidates.ends
    if rules.ends_within_beam:
        is_best = ops.arange(ends.shape[1]) < sentences.last_ids.shape[1]
        ends = ops.logical_and(ends, is_best)
    ending = ops.where(ends, candidates.log_probabilities, IMPOSSIBLE)
    scores = ending / rules.length_penalty(length)  # (B, C)
    if candidates.penalties is not None:
        scores = scores + candidates.penalties
    lengths = ops.where(ending > IMPOSSIBLE, length, 0)
    # Of equal scores the older stays: top_k prefers the lower place.
    scores = ops.concatenate([finished.scores, scores], axis=1)  # (B, n_best + C)
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
    """As `_finish` for a beam of 1: a sentence ends once, and there is no choice."""
    length = position + 1
    possible = candidates.log_probabilities > IMPOSSIBLE
    now = ops.logical_and(candidates.ends, possible)  # (B, 1)
    scores = candidates.log_probabilities / rules.length_penalty(length)
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
