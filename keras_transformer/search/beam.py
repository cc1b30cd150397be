"""Greedy and beam search over a step function.

Letters: B sentences, N beam size, R rows, L longest output, V vocabulary, C candidates,
P longest prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.caches import pick
from keras_transformer.nn.kernels.execution import in_tensorflow_graph, known_as
from keras_transformer.search.tokens import (
    IMPOSSIBLE,
    Constraints,
    DecodingResult,
    LengthPenaltyForm,
    SpecialIds,
    allowed_tokens,
    banned_tokens,
    best_tokens,
    check_constraints,
    checked_lengths,
    checked_penalty,
    force,
    forced_tokens,
    write,
)
from keras_transformer.types import Nest, TensorLike

# Room for most sentences of most searches (tokens).
FIRST_ROOM = 16


def beam_search(
    step: Callable[..., Any],
    state: Nest,
    *,
    max_lengths: TensorLike | Sequence[int],
    limit: int,
    special_ids: SpecialIds,
    beam_size: int = 4,
    n_best: int = 1,
    length_penalty: float = 0.6,
    length_penalty_form: LengthPenaltyForm = "gnmt",
    constraints: Constraints = Constraints(),  # noqa: B008, it is a tuple
    resize: Callable[..., Any] | None = None,
    ends_within_beam: bool = False,
) -> DecodingResult:
    """Returns the outputs with the highest scores, by beam search.

    A score is the log-probability divided by `length_penalty`. Each step extends the N
    unfinished hypotheses of a sentence by its 2N most probable continuations. Those
    that end compete by score for `n_best` finished places; the best N of the others go
    on. A beam of 1 is greedy search. At the longest output of a sentence every
    continuation is cut and competes.

    A sentence is done when no unfinished hypothesis can enter its finished places: the
    best unfinished log-probability over the penalty of the longest output bounds all
    scores to come, so stopping there changes no result.

    `pad_id` and `start_id` are never chosen but keep their share of the softmax. Ties
    go to the better hypothesis, then to the lower id, except on PyTorch.

    Args:
        step: Function `step(ids, parents, state) -> (logits, state)` of R = B * N rows,
            row `sentence * N + hypothesis`: `ids` (R,) int32 are the last tokens,
            `start_id` at first; `parents` (B, N) int32 the hypotheses, 0 to N - 1, of
            the last step that the rows continue; `logits` (R, V) the scores of the next
            token. The step itself reorders its state by `parents`; `reordering` wraps a
            step that does not.
        state: State before the first token, any nested structure of tensors, whose
            shapes and dtypes `step` keeps.
        max_lengths: (B,) int32, longest output of each sentence (tokens, end token
            counted), at least 1. The paper's is source length + 50 (section 6.1).
        limit: Width L of the result, at least the largest of `max_lengths` (tokens): an
            integer, or a scalar tensor except on JAX under `jit`.
        special_ids: Ids of padding, start and end.
        beam_size: Unfinished hypotheses per sentence, N.
        n_best: Hypotheses returned per sentence, at most `beam_size`.
        length_penalty: Exponent, alpha, of the function `length_penalty`, at least 0.
        length_penalty_form: "gnmt" or "power"; see `length_penalty`.
        constraints: Constraints on every output.
        resize: Function `resize(state, sentences, length)` that returns the state of
            the sentences at (B',), with room for `length` tokens; or `None`. With it
            finished sentences cost nothing, and `state` needs room for 16 tokens
            only. XLA, and so JAX, cannot use it.
        ends_within_beam: Whether only the best N of the 2N continuations may end, as in
            Hugging Face, CTranslate2 and fairseq.

    Returns:
        A `DecodingResult`, best hypothesis first.

    Raises:
        ValueError: If an argument or the shape of the logits is out of range.

    Example:
        >>> chances = [  # of the next token, one row per last token
        ...     [0.20, 0.20, 0.20, 0.20, 0.20],  # 0 is padding
        ...     [0.01, 0.01, 0.01, 0.57, 0.40],  # 1 starts
        ...     [0.20, 0.20, 0.20, 0.20, 0.20],  # 2 ends
        ...     [0.01, 0.01, 0.40, 0.29, 0.29],
        ...     [0.01, 0.01, 0.90, 0.04, 0.04],
        ... ]
        >>> table = ops.convert_to_tensor(np.log(chances), "float32")
        >>> def step(ids, parents, state):
        ...     return ops.take(table, ids, axis=0), state
        >>> result = beam_search(
        ...     step, (), max_lengths=[6], limit=6, special_ids=SpecialIds(), n_best=2
        ... )
        >>> ops.convert_to_numpy(result.ids).tolist()
        [[[4, 2, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0]]]
        >>> ops.convert_to_numpy(ops.exp(result.log_probabilities)).round(2)
        array([[0.36, 0.23]], dtype=float32)
    """
    check_constraints(constraints, special_ids)
    max_lengths = checked_lengths(max_lengths, limit)
    divisor = checked_penalty(length_penalty, length_penalty_form)
    check_number("beam_size", beam_size, int, minimum=1)
    check_number("n_best", n_best, int)
    if not 1 <= n_best <= beam_size:
        raise ValueError(
            "`n_best` must be from 1 to `beam_size`. "
            f"Received: n_best={n_best}, beam_size={beam_size}"
        )
    rules = _Rules(
        step=step,
        limit=limit,
        special_ids=special_ids,
        divisor=divisor,
        constraints=constraints,
        ends_within_beam=ends_within_beam,
    )
    batch = ops.shape(max_lengths)[0]
    # One hypothesis at first: N equal ones would stay equal.
    first = ops.where(ops.arange(beam_size) == 0, 0.0, IMPOSSIBLE)
    nothing = ops.full((batch, n_best), IMPOSSIBLE, "float32")
    prefix = constraints.prefix
    sentences = _Sentences(
        max_lengths=max_lengths,
        prefix=() if prefix is None else ops.cast(prefix, "int32"),
        last_ids=ops.full((batch, beam_size), special_ids.start_id, "int32"),
        parents=ops.zeros((batch, beam_size), "int32"),
        ids=ops.full((batch, beam_size, limit), special_ids.pad_id, "int32"),
        log_probabilities=ops.zeros((batch, beam_size)) + ops.cast(first, "float32"),
        finished=DecodingResult(
            ids=ops.full((batch, n_best, limit), special_ids.pad_id, "int32"),
            lengths=ops.zeros((batch, n_best), "int32"),
            scores=nothing,
            log_probabilities=nothing,
        ),
    )
    beam = (ops.zeros((), "int32"), sentences, state)
    if resize is None:
        finished = _search(beam, rules, limit)[1].finished
    else:
        finished = _search_resized(beam, rules, resize)
    # An impossible hypothesis can sit in a free place.
    found = ops.expand_dims(finished.log_probabilities > IMPOSSIBLE, -1)
    return finished._replace(ids=ops.where(found, finished.ids, special_ids.pad_id))


class _Rules(NamedTuple):
    """Constants of a search."""

    step: Callable
    limit: Any  # L, an integer or a scalar tensor
    special_ids: SpecialIds
    divisor: Callable  # the length penalty of a length
    constraints: Constraints
    ends_within_beam: bool


class _Sentences(NamedTuple):
    """The state of a search, one row per sentence."""

    max_lengths: Any  # (B,) int32
    prefix: Any  # (B, P) int32, or () without one
    last_ids: Any  # (B, N) int32, of the unfinished hypotheses, the best first
    parents: Any  # (B, N) int32, their places one token ago
    ids: Any  # (B, N, L) int32
    log_probabilities: Any  # (B, N) float32
    finished: DecodingResult  # (B, n_best), the best first


class _Candidates(NamedTuple):
    """The best continuations of each sentence by one token, best first."""

    parents: Any  # (B, C) int32, the hypothesis continued
    ids: Any  # (B, C) int32, the token added
    log_probabilities: Any  # (B, C) float32, of the whole continuation
    ends: Any  # (B, C) bool, whether nothing may follow


def _search(beam, rules, room, enough=0.0):
    """Adds tokens while there is room and more than `enough` are unfinished."""

    def unfinished(position, sentences, state):
        share = ops.mean(ops.cast(_is_alive(sentences), "float32"))
        return ops.logical_and(position < room, share > enough)

    def advance(position, sentences, state):
        ids = ops.reshape(sentences.last_ids, (-1,))
        logits, state = rules.step(ids, sentences.parents, state)
        candidates = _best_candidates(position, sentences, logits, rules)
        return position + 1, _add_token(position, sentences, candidates, rules), state

    return ops.while_loop(unfinished, advance, beam)


def _search_resized(beam, rules, resize):
    """As `_search`, dropping finished sentences and making room now and then."""
    position, sentences, state = beam
    places = ops.arange(ops.shape(sentences.max_lengths)[0], dtype="int32")
    first = ops.minimum(FIRST_ROOM, ops.cast(rules.limit, "int32"))

    def keep(kept, sentences, state, room):
        sentences = keras.tree.map_structure(
            lambda leaf: ops.take(leaf, kept, axis=0), sentences
        )
        return sentences, resize(state, kept, room)

    if in_tensorflow_graph() and places.shape[0] is not None:
        # The loop needs the shapes that its body returns, which drops sentences.
        places = known_as(places, (None,))
        first = known_as(first, ())
        sentences, state = keras.tree.map_structure(
            lambda leaf, kept: known_as(leaf, kept.shape),
            (sentences, state),
            keep(places, sentences, state, first),
        )

    def unfinished(room, places, finished, beam):
        return ops.shape(places)[0] > 0

    def advance(room, places, finished, beam):
        position, sentences, state = _search(beam, rules, room, enough=0.75)
        at = ops.expand_dims(places, 1)
        finished = keras.tree.map_structure(
            lambda all, some: ops.scatter_update(all, at, some),
            finished,
            sentences.finished,
        )
        alive = ops.logical_and(_is_alive(sentences), position < rules.limit)
        # As `ops.nonzero(alive)[0]`, whose operations LiteRT lacks.
        rows = ops.arange(ops.shape(alive)[0], dtype="int32")
        rows = ops.sort(ops.where(alive, rows, np.iinfo("int32").max))
        kept = rows[: ops.sum(ops.cast(alive, "int32"))]
        room = ops.where(position < room, room, ops.minimum(2 * room, rules.limit))
        sentences, state = keep(kept, sentences, state, room)
        return room, ops.take(places, kept), finished, (position, sentences, state)

    loop = (first, places, sentences.finished, (position, sentences, state))
    return ops.while_loop(unfinished, advance, loop)[2]


def _is_alive(sentences):
    """Returns which sentences (B,) have an unfinished hypothesis."""
    return sentences.log_probabilities[:, 0] > IMPOSSIBLE


def _best_candidates(position, sentences, logits, rules):
    """Returns the best 2N continuations per sentence, or the best one if N is 1."""
    beam_size = sentences.last_ids.shape[1]
    constraints = rules.constraints
    special_ids = rules.special_ids
    count = 1 if beam_size == 1 else 2 * beam_size
    # They are among the best of each hypothesis. Padding, start, an early end and
    # `never` take at most one place each.
    more = 3 if constraints.never is None else 4
    size = constraints.no_repeat_ngram_size
    banned = banned_tokens(sentences.ids, position, size)
    ids, added, normaliser = best_tokens(logits, count + more, banned)  # (R, C)
    allowed = allowed_tokens(ids, position, special_ids, constraints)
    added = ops.where(allowed, added, IMPOSSIBLE)
    if constraints.prefix is not None:
        pad_id = special_ids.pad_id
        prefix = sentences.prefix
        forced = forced_tokens(prefix, position, pad_id, beam_size)
        ids, added = force(ids, added, logits, normaliser, forced)
    width = ids.shape[1]
    flat = (-1, beam_size * width)
    added = ops.reshape(added, (-1, beam_size, width))
    totals = ops.expand_dims(sentences.log_probabilities, -1) + added
    best, order = ops.top_k(ops.reshape(totals, flat), min(count, flat[1]))
    order = ops.cast(order, "int32")
    ids = pick(ops.reshape(ids, flat), order)
    parents = sentences.parents if beam_size == 1 else order // width
    cut = ops.expand_dims(position + 1 >= sentences.max_lengths, 1)  # (B, 1)
    ends = ops.logical_or(ids == special_ids.end_id, cut)
    return _Candidates(parents=parents, ids=ids, log_probabilities=best, ends=ends)


def _add_token(position, sentences, candidates, rules):
    """Returns the sentences after one more token."""
    beam_size = sentences.last_ids.shape[1]
    finished = _finish(position, sentences, candidates, rules)
    last_ids = candidates.ids
    parents = candidates.parents
    ids = sentences.ids
    totals = ops.where(candidates.ends, IMPOSSIBLE, candidates.log_probabilities)
    if beam_size > 1:
        totals, order = ops.top_k(totals, beam_size)
        last_ids = pick(last_ids, order)
        parents = pick(parents, order)
        ids = pick(ids, parents)
    # A sentence that is done has no unfinished hypothesis.
    longest = ops.expand_dims(sentences.max_lengths, 1)
    bound = totals[:, :1] / rules.divisor(longest)
    totals = ops.where(bound > finished.scores[:, -1:], totals, IMPOSSIBLE)
    ids = write(ids, last_ids, position)
    return sentences._replace(
        last_ids=last_ids,
        parents=parents,
        ids=ids,
        log_probabilities=totals,
        finished=finished,
    )


def _finish(position, sentences, candidates, rules):
    """Returns the best of the finished hypotheses, old and new."""
    finished = sentences.finished
    length = position + 1
    beam_size = sentences.last_ids.shape[1]
    ends = candidates.ends
    if rules.ends_within_beam:
        ends = ops.logical_and(ends, ops.arange(ends.shape[1]) < beam_size)
    ending = ops.where(ends, candidates.log_probabilities, IMPOSSIBLE)
    scores = ending / rules.divisor(length)  # (B, C)
    ids = sentences.ids if beam_size == 1 else pick(sentences.ids, candidates.parents)
    ids = write(ids, candidates.ids, position)
    now = ending > IMPOSSIBLE
    if beam_size == 1:
        return DecodingResult(
            ids=ops.where(ops.expand_dims(now, -1), ids, finished.ids),
            lengths=ops.where(now, length, finished.lengths),
            scores=ops.where(now, scores, finished.scores),
            log_probabilities=ops.where(now, ending, finished.log_probabilities),
        )
    both = keras.tree.map_structure(
        lambda old, new: ops.concatenate([old, new], axis=1),
        finished,
        DecodingResult(ids, ops.where(now, length, 0), scores, ending),
    )
    # Of equal scores the older stays: `top_k` prefers the lower index.
    scores, order = ops.top_k(both.scores, finished.scores.shape[1])
    return DecodingResult(
        ids=pick(both.ids, order),
        lengths=pick(both.lengths, order),
        scores=scores,
        log_probabilities=pick(both.log_probabilities, order),
    )


def reordering(
    step: Callable[..., Any], state: Nest, beam_size: int
) -> tuple[Callable[..., Any], Nest]:
    """Returns a step function and state for `beam_search` from plain ones.

    A plain step function is `step(ids, state) -> (logits, state)`, with one row per
    hypothesis. The whole state is copied at each step; a step with a large cache had
    better follow `parents` itself.

    Args:
        step: The plain step function.
        state: Its state before the first token, one row per sentence; scalars, such as
            a position, are not repeated.
        beam_size: Hypotheses per sentence, N.

    Returns:
        The step function and the state, with R = B * N rows.

    Raises:
        ValueError: If `beam_size` is not positive.

    Example:
        >>> table = np.random.default_rng(1).normal(size=(7, 7, 7))
        >>> def step(ids, before):  # the two last tokens choose the logits
        ...     return ops.take(table.reshape(49, 7), 7 * before + ids, axis=0), ids
        >>> step, state = reordering(step, np.zeros(3, "int32"), beam_size=4)
        >>> result = beam_search(
        ...     step, state, max_lengths=[9] * 3, limit=9, special_ids=SpecialIds()
        ... )
        >>> tuple(result.ids.shape)
        (3, 1, 9)
    """

    check_number("beam_size", beam_size, int, minimum=1)

    def repeat(leaf):
        leaf = ops.convert_to_tensor(leaf)
        return ops.repeat(leaf, beam_size, axis=0) if len(leaf.shape) else leaf

    def reordered(ids, parents, state):
        if beam_size > 1:
            rows = ops.reshape(ops.arange(ops.shape(ids)[0]), (-1, beam_size))
            order = ops.reshape(pick(rows, parents), (-1,))
            state = keras.tree.map_structure(
                lambda leaf: ops.take(leaf, order, axis=0) if len(leaf.shape) else leaf,
                state,
            )
        return step(ids, state)

    return reordered, keras.tree.map_structure(repeat, state)
