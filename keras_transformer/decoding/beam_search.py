"""Greedy and beam search over a step function; no model is known here.

A search asks one thing of its user, a function `step(ids, state) -> (logits, state)`:

- `ids` (R,) int32: the last token of each row, `start_id` at first.
- `logits` (R, V), any float type: unnormalised scores of the next token.
- `state`: any nested structure of tensors whose first axis is the row, such as a
  key/value cache; beam search repeats and reorders those rows with its hypotheses. A
  tensor of rank 0, such as a position counter, has no rows and is left alone. `step`
  returns the structure, shapes and dtypes that it was given.

Row `sentence * K + hypothesis` of the R = B * K rows belongs to that hypothesis; greedy
search has K = 1. What is the same for all hypotheses of a sentence (encoder output, its
keys and values) should not be in the state: let `step` close over it, and no search
repeats or copies it.

Letters: B sentences, K beam size, N hypotheses returned, L longest output, V
vocabulary, R rows, C candidates of a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.result import (
    IMPOSSIBLE,
    DecodingResult,
    SpecialIds,
    length_penalty,
)
from keras_transformer.decoding.rows import reorder_rows, repeat_rows, select, write


def greedy_search(
    step: Callable, state, *, max_lengths, limit, special_ids: SpecialIds, alpha=0.6
) -> DecodingResult:
    """Takes the most probable token at every step: `beam_search` with a beam of 1.

    The state's rows are never copied.

    Args:
        step: As in `beam_search`, with one row a sentence.
        state: As in `beam_search`.
        max_lengths: As in `beam_search`.
        limit: As in `beam_search`.
        special_ids: Ids of padding, start and end.
        alpha: Exponent of `length_penalty`, which enters the scores alone.

    Returns:
        A `DecodingResult` with N = 1.

    Raises:
        ValueError: If an argument or the shape of the logits is out of range.

    Example:
        >>> def step(ids, state):
        ...     return ops.one_hot(ids + 1, 7) * 9.0, state
        >>> ids = SpecialIds(pad_id=0, start_id=1, end_id=5)
        >>> result = greedy_search(
        ...     step, (), max_lengths=[6], limit=6, special_ids=ids
        ... )
        >>> ops.convert_to_numpy(result.ids).tolist()
        [[[2, 3, 4, 5, 0, 0]]]
    """
    return beam_search(
        step,
        state,
        max_lengths=max_lengths,
        limit=limit,
        special_ids=special_ids,
        beam_size=1,
        alpha=alpha,
    )


def beam_search(
    step: Callable,
    state,
    *,
    max_lengths,
    limit,
    special_ids: SpecialIds,
    beam_size: int = 4,
    n_best: int = 1,
    alpha: float = 0.6,
) -> DecodingResult:
    """Searches for the outputs with the highest scores.

    A score is the log-probability divided by `length_penalty`. Of all one-token
    continuations of a sentence's K unfinished hypotheses the 2K most probable are
    looked at: those that end compete by score for the sentence's N finished places,
    the best K others live on (at most K of the 2K can end). A beam of 1 looks at the
    best continuation alone, which is greedy search: with two, an end that was only
    second best would count. At the sentence's longest output every continuation is
    cut, and competes as it is.

    A sentence is done when no unfinished hypothesis can enter its finished places.
    Log-probabilities only fall and, for alpha >= 0, the penalty only grows, so the
    best unfinished log-probability over the penalty of the longest output bounds all
    that can come: stopping there changes no result. The unfinished hypotheses of a done
    sentence are dropped, so the longer search for others in the batch cannot change it.

    Probabilities are a float32 softmax over the whole vocabulary; `pad_id` and
    `start_id` are passed over after it and keep their share. Exact ties go to the
    better hypothesis, then to the lower id; PyTorch leaves their order open.

    Args:
        step: The step function (see the module), rows R = B * K.
        state: The state before the first token, B rows; repeated to R rows here.
        max_lengths: (B,) int32, longest output of each sentence (tokens, end token
            counted), at least 1. The paper's is source length + 50 (section 6.1).
        limit: The largest of `max_lengths` or more (tokens), an integer or a scalar
            tensor: the width L of the result. JAX needs an integer under `jit`.
        special_ids: Ids of padding, start and end.
        beam_size: Unfinished hypotheses kept a sentence, K.
        n_best: Hypotheses returned a sentence, N, at most `beam_size`.
        alpha: Exponent of `length_penalty`, at least 0.

    Returns:
        A `DecodingResult`, best hypothesis first.

    Raises:
        ValueError: If an argument or the shape of the logits is out of range.

    Example:
        >>> ids = SpecialIds(pad_id=0, start_id=1, end_id=5)
        >>> result = beam_search(
        ...     step, (), max_lengths=[6], limit=6, special_ids=ids, n_best=2
        ... )
        >>> result.ids.shape  # (1, 2, 6)
    """
    _check_arguments(max_lengths, limit, beam_size, n_best, alpha)
    max_lengths = ops.minimum(ops.cast(max_lengths, "int32"), ops.cast(limit, "int32"))
    rules = _Rules(max_lengths, limit, special_ids, alpha)

    def unfinished(*fields):
        beam = _Beam(*fields)
        alive = ops.any(beam.log_probabilities > IMPOSSIBLE)
        return ops.logical_and(beam.position < limit, alive)

    def advance(*fields):
        beam = _Beam(*fields)
        logits, state = step(ops.reshape(beam.last_ids, (-1,)), beam.state)
        candidates = _candidates(beam, logits, special_ids)
        beam, parents = _advance(beam, candidates, rules)
        return tuple(beam._replace(state=reorder_rows(state, parents)))

    beam = _start(state, beam_size, n_best, rules)
    beam = _Beam(*ops.while_loop(unfinished, advance, tuple(beam)))
    return _result(beam, rules)


class _Rules(NamedTuple):
    """What stays the same during a search."""

    max_lengths: Any  # (B,) int32
    limit: Any  # L, an integer or a scalar tensor
    special_ids: SpecialIds
    alpha: float


class _Beam(NamedTuple):
    """What a search carries from step to step; both sets of hypotheses are sorted."""

    position: Any  # () int32, tokens that unfinished hypotheses have
    last_ids: Any  # (B, K) int32
    ids: Any  # (B, K, L) int32
    log_probabilities: Any  # (B, K) float32
    finished_ids: Any  # (B, N, L) int32
    finished_lengths: Any  # (B, N) int32
    finished_log_probabilities: Any  # (B, N) float32
    state: Any  # the step function's, B * K rows


class _Candidates(NamedTuple):
    """Best one-token continuations of each sentence's hypotheses, sorted."""

    parents: Any  # (B, C) int32, the hypothesis continued
    ids: Any  # (B, C) int32, the token added
    log_probabilities: Any  # (B, C) float32, of the whole continuation


def _start(state, beam_size, n_best, rules):
    batch, limit = ops.shape(rules.max_lengths)[0], rules.limit
    pad_id, start_id, _ = rules.special_ids
    # One hypothesis at first: K equal ones would stay equal.
    first = ops.where(ops.arange(beam_size) == 0, 0.0, IMPOSSIBLE)
    return _Beam(
        position=ops.zeros((), "int32"),
        last_ids=ops.full((batch, beam_size), start_id, "int32"),
        ids=ops.full((batch, beam_size, limit), pad_id, "int32"),
        log_probabilities=ops.zeros((batch, beam_size)) + ops.cast(first, "float32"),
        finished_ids=ops.full((batch, n_best, limit), pad_id, "int32"),
        finished_lengths=ops.zeros((batch, n_best), "int32"),
        finished_log_probabilities=ops.full((batch, n_best), IMPOSSIBLE, "float32"),
        state=repeat_rows(state, beam_size),
    )


def _candidates(beam, logits, special_ids):
    """Returns the best 2K continuations of a sentence, the best one if K is 1."""
    beam_size = beam.last_ids.shape[1]
    count = 1 if beam_size == 1 else 2 * beam_size
    # The best of a sentence are among the best of each of its hypotheses.
    added, ids = _best_tokens(logits, count, special_ids)  # (R, k), k <= count
    width = added.shape[1]
    added = ops.reshape(added, (-1, beam_size, width))
    totals = ops.expand_dims(beam.log_probabilities, -1) + added
    flat = (-1, beam_size * width)
    best, order = ops.top_k(ops.reshape(totals, flat), min(count, flat[1]))
    ids = ops.take_along_axis(ops.reshape(ids, flat), order, axis=1)
    return _Candidates(ops.cast(order, "int32") // width, ids, best)


def _best_tokens(logits, count, special_ids):
    """Returns log-probabilities and ids, both (R, k), of each row's best tokens."""
    if len(logits.shape) != 2 or logits.shape[-1] is None:
        raise ValueError(
            "`step` must return logits of shape (rows, vocabulary), the vocabulary "
            f"known. Received: shape {tuple(logits.shape)}"
        )
    pad_id, start_id, end_id = special_ids
    logits = ops.cast(logits, "float32")
    normaliser = ops.logsumexp(logits, axis=-1, keepdims=True)  # (R, 1)
    # A NaN among the logits, or no possible token, leaves the row without candidates.
    usable = ops.isfinite(normaliser)
    tokens = ops.arange(logits.shape[-1], dtype="int32")
    allowed = (tokens == end_id) | ((tokens != pad_id) & (tokens != start_id))
    logits = ops.where(ops.logical_and(usable, allowed), logits, IMPOSSIBLE)
    best, ids = ops.top_k(logits, min(count, logits.shape[-1]))
    return best - ops.where(usable, normaliser, 0.0), ops.cast(ids, "int32")


def _advance(beam, candidates, rules):
    """Returns the beam after one more token, and the parents (B, K) of its rows."""
    cut = ops.expand_dims(beam.position + 1 >= rules.max_lengths, 1)  # (B, 1)
    ends = ops.logical_or(candidates.ids == rules.special_ids.end_id, cut)  # (B, C)
    parents, grown = _grow(beam, candidates, ends, rules)
    finished = _finish(beam, candidates, ends, rules)
    beam = beam._replace(position=beam.position + 1, **grown, **finished)
    return _drop_beaten(beam, rules), parents


def _grow(beam, candidates, ends, rules):
    """Returns the parents (B, K) and the fields of the best K that do not end."""
    totals = ops.where(ends, IMPOSSIBLE, candidates.log_probabilities)
    totals, order = ops.top_k(totals, beam.last_ids.shape[1])
    parents = ops.take_along_axis(candidates.parents, order, axis=1)
    last_ids = ops.take_along_axis(candidates.ids, order, axis=1)
    ids = write(select(beam.ids, parents), last_ids, beam.position)
    return parents, dict(last_ids=last_ids, ids=ids, log_probabilities=totals)


def _finish(beam, candidates, ends, rules):
    """Returns the fields of the best N among the finished and what ends now."""
    ending = ops.where(ends, candidates.log_probabilities, IMPOSSIBLE)  # (B, C)
    now = ops.where(ending > IMPOSSIBLE, beam.position + 1, 0)
    totals = ops.concatenate([beam.finished_log_probabilities, ending], axis=1)
    lengths = ops.concatenate([beam.finished_lengths, now], axis=1)  # (B, N + C)
    n_best = beam.finished_lengths.shape[1]
    # Of equal scores the older stays: top_k prefers the lower place.
    _, order = ops.top_k(_scores(totals, lengths, rules.alpha), n_best)
    older = ops.zeros_like(beam.finished_lengths)  # (B, N)
    sources = older + ops.arange(n_best, dtype="int32")
    sources = ops.concatenate([sources, candidates.parents + n_best], axis=1)
    sources = ops.take_along_axis(sources, order, axis=1)
    ids = select(ops.concatenate([beam.finished_ids, beam.ids], axis=1), sources)
    # What finished before gets one more padding id.
    last_ids = ops.concatenate([older + rules.special_ids.pad_id, candidates.ids], 1)
    last_ids = ops.take_along_axis(last_ids, order, axis=1)
    return dict(
        finished_ids=write(ids, last_ids, beam.position),
        finished_lengths=ops.take_along_axis(lengths, order, axis=1),
        finished_log_probabilities=ops.take_along_axis(totals, order, axis=1),
    )


def _drop_beaten(beam, rules):
    """Returns the beam with nothing unfinished in the sentences that are done."""
    lengths, finished = beam.finished_lengths, beam.finished_log_probabilities
    worst = _scores(finished, lengths, rules.alpha)[:, -1:]  # (B, 1)
    longest = ops.expand_dims(rules.max_lengths, 1)
    bound = _scores(beam.log_probabilities[:, :1], longest, rules.alpha)
    alive = ops.where(bound > worst, beam.log_probabilities, IMPOSSIBLE)
    return beam._replace(log_probabilities=alive)


def _result(beam, rules):
    log_probabilities = beam.finished_log_probabilities
    # Where the order of ties is open, an impossible hypothesis can sit in a free place.
    found = ops.expand_dims(log_probabilities > IMPOSSIBLE, -1)
    return DecodingResult(
        ids=ops.where(found, beam.finished_ids, rules.special_ids.pad_id),
        lengths=beam.finished_lengths,
        scores=_scores(log_probabilities, beam.finished_lengths, rules.alpha),
        log_probabilities=log_probabilities,
    )


def _scores(log_probabilities, lengths, alpha):
    return log_probabilities / length_penalty(lengths, alpha)


def _check_arguments(max_lengths, limit, beam_size, n_best, alpha):
    if len(ops.shape(max_lengths)) != 1:
        raise ValueError(
            "`max_lengths` must have one length a sentence, shape (B,). "
            f"Received: shape {tuple(ops.shape(max_lengths))}"
        )
    for name, value in (("limit", limit), ("beam_size", beam_size)):
        if isinstance(value, int) and value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
    if not 1 <= n_best <= beam_size:
        raise ValueError(
            "`n_best` must be from 1 to `beam_size`. "
            f"Received: n_best={n_best}, beam_size={beam_size}"
        )
    if not 0 <= alpha < math.inf:
        raise ValueError(
            f"`alpha` must be finite and at least 0. Received: alpha={alpha}"
        )
