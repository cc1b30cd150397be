"""Greedy and beam search over a step function; no model is known here.

A search asks one thing of its user, a function
`step(ids, parents, state) -> (logits, state)`:

- `ids` (R,) int32: the last token of each row, `start_id` at first.
- `parents` (B, N) int32: the hypothesis of the same sentence, 0 to N - 1, that each row
  continues. Row `sentence * N + hypothesis` of the R = B * N rows belongs to that
  hypothesis; greedy search has N = 1 and `parents` of 0.
- `state`: any nested structure of tensors. The search carries it and moves nothing in
  it: the step function knows best how to follow `parents`. It returns the structure,
  shapes and dtypes that it was given. `reordering` fits a plain step function to this.
- `logits` (R, V), any float type: unnormalised scores of the next token.

Letters: B sentences, N beam size, R rows, L longest output, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Required, TypedDict, Unpack

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding.arguments import check_beam, check_search
from keras_transformer.decoding.constraints import Constraints, check_constraints
from keras_transformer.decoding.hypotheses import (
    Finished,
    Rules,
    Sentences,
    add_token,
    best_candidates,
    is_alive,
)
from keras_transformer.decoding.result import (
    IMPOSSIBLE,
    DecodingResult,
    LengthPenaltyForm,
    SpecialIds,
)
from keras_transformer.types import Nest, TensorLike


class SearchOptions(TypedDict, total=False):
    """What `greedy_search` hands on to `beam_search`."""

    max_lengths: Required[TensorLike | Sequence[int]]
    limit: Required[int]
    special_ids: Required[SpecialIds]
    alpha: float
    length_penalty_form: LengthPenaltyForm
    constraints: Constraints
    penalty: Callable[..., Any] | None
    resize: Callable[..., Any] | None
    ends_within_beam: bool


def greedy_search(
    step: Callable[..., Any], state: Nest, **options: Unpack[SearchOptions]
) -> DecodingResult:
    """Takes the most probable token at every step: `beam_search` with a beam of 1.

    Args:
        step: As in `beam_search`, with one row a sentence.
        state: As in `beam_search`.
        **options: As in `beam_search`, without `beam_size` and `n_best`.

    Returns:
        A `DecodingResult` with one hypothesis a sentence.

    Raises:
        ValueError: If an argument or the shape of the logits is out of range.

    Example:
        >>> def step(ids, parents, state):
        ...     return ops.one_hot(ids + 1, 7) * 9.0, state
        >>> ids = SpecialIds(pad_id=0, start_id=1, end_id=5)
        >>> result = greedy_search(
        ...     step, (), max_lengths=[6], limit=6, special_ids=ids
        ... )
        >>> ops.convert_to_numpy(result.ids).tolist()
        [[[2, 3, 4, 5, 0, 0]]]
    """
    return beam_search(step, state, beam_size=1, **options)


def beam_search(
    step: Callable[..., Any],
    state: Nest,
    *,
    max_lengths: TensorLike | Sequence[int],
    limit: int,
    special_ids: SpecialIds,
    beam_size: int = 4,
    n_best: int = 1,
    alpha: float = 0.6,
    length_penalty_form: LengthPenaltyForm = "gnmt",
    constraints: Constraints = Constraints(),  # noqa: B008, it is a tuple
    penalty: Callable[..., Any] | None = None,
    resize: Callable[..., Any] | None = None,
    ends_within_beam: bool = False,
) -> DecodingResult:
    """Searches for the outputs with the highest scores.

    A score is the log-probability divided by `length_penalty`. At each step the search
    looks at the 2N most probable one-token continuations of a sentence's N unfinished
    hypotheses. Those that end compete by score for the sentence's `n_best` finished
    places; the best N of the others live on (at most N of the 2N can end). A beam of 1
    looks at the best continuation alone, which is greedy search: with two, an end that
    was only second best would count. At the sentence's longest output every
    continuation is cut, and competes as it is.

    A sentence is done when no unfinished hypothesis can enter its finished places.
    Log-probabilities only fall and, for alpha >= 0, the penalty only grows, so the
    best unfinished log-probability over the penalty of the longest output bounds all
    that can come: stopping there changes no result. The unfinished hypotheses of a
    sentence that is done are dropped, so a longer search for others in the batch does
    not change it.

    Probabilities are a float32 softmax over the whole vocabulary; `pad_id` and
    `start_id` are passed over after it and keep their share. Exact ties go to the
    better hypothesis, then to the lower id; PyTorch leaves their order open.

    Args:
        step: The step function (see the module), R = B * N rows.
        state: Its state before the first token.
        max_lengths: (B,) int32, longest output of each sentence (tokens, end token
            counted), at least 1. The paper's is source length + 50 (section 6.1).
        limit: The largest of `max_lengths` or more (tokens), an integer or a scalar
            tensor: the width L of the result. JAX needs an integer under `jit`.
        special_ids: Ids of padding, start and end.
        beam_size: Unfinished hypotheses kept a sentence, N.
        n_best: Hypotheses returned a sentence, at most `beam_size`.
        alpha: Exponent of `length_penalty`, at least 0.
        length_penalty_form: Form of `length_penalty`, "gnmt" or "power".
        constraints: What every output must obey.
        penalty: Function from the state to (R,), never above 0, which is added to the
            scores, such as `coverage_penalty`; or `None`.
        resize: Function `resize(state, sentences, length)` that returns the state of
            the sentences at the positions (B',) alone, with room for `length` tokens
            or more; or `None`. With it, sentences that are done cost nothing, and
            `state` needs room for `FIRST_ROOM` tokens only: the search asks for a state
            of a new size when a quarter of the sentences is done, and when the room is
            used up, which then doubles. It changes no result. In a TensorFlow graph the
            number of sentences must be unknown when it is traced; the loops of JAX keep
            their shapes and cannot have it.
        ends_within_beam: Whether only the best N of the 2N continuations may end, as
            Hugging Face, CTranslate2 and fairseq have it, so that an end further down
            is given up.

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
    check_search(max_lengths, limit, alpha, length_penalty_form)
    check_beam(beam_size, n_best)
    check_constraints(constraints)
    max_lengths = ops.minimum(ops.cast(max_lengths, "int32"), ops.cast(limit, "int32"))
    rules = Rules(
        step,
        limit,
        special_ids,
        alpha,
        length_penalty_form,
        constraints,
        penalty,
        ends_within_beam,
    )
    beam = _start(state, max_lengths, beam_size, n_best, rules)
    if resize is None:
        return _result(_search(beam, rules, limit), special_ids)
    return _result(_search_resized(beam, rules, resize), special_ids)


# Room for this many tokens suits most sentences of most searches (tokens).
FIRST_ROOM = 16


def _start(state, max_lengths, beam_size, n_best, rules):
    """Returns what the loop carries: position, sentences and state."""
    batch, limit = ops.shape(max_lengths)[0], rules.limit
    pad_id, start_id, _ = rules.special_ids
    # One hypothesis at first: N equal ones would stay equal.
    first = ops.where(ops.arange(beam_size) == 0, 0.0, IMPOSSIBLE)
    prefix = rules.constraints.prefix
    sentences = Sentences(
        max_lengths=max_lengths,
        prefix=() if prefix is None else ops.cast(prefix, "int32"),
        last_ids=ops.full((batch, beam_size), start_id, "int32"),
        parents=ops.zeros((batch, beam_size), "int32"),
        ids=ops.full((batch, beam_size, limit), pad_id, "int32"),
        log_probabilities=ops.zeros((batch, beam_size)) + ops.cast(first, "float32"),
        finished=Finished(
            ids=ops.full((batch, n_best, limit), pad_id, "int32"),
            lengths=ops.zeros((batch, n_best), "int32"),
            log_probabilities=ops.full((batch, n_best), IMPOSSIBLE, "float32"),
            scores=ops.full((batch, n_best), IMPOSSIBLE, "float32"),
        ),
    )
    return ops.zeros((), "int32"), sentences, state


def _search(beam, rules, room, enough=0.0):
    """Adds tokens while there is room and more than a share `enough` is unfinished."""

    def unfinished(position, sentences, state):
        alive = is_alive(sentences)
        more = ops.any(alive)
        if enough:
            share = ops.mean(ops.cast(alive, "float32"))
            more = ops.logical_and(more, share > enough)
        return ops.logical_and(position < room, more)

    def advance(position, sentences, state):
        ids = ops.reshape(sentences.last_ids, (-1,))
        logits, state = rules.step(ids, sentences.parents, state)
        penalties = None if rules.penalty is None else rules.penalty(state)
        candidates = best_candidates(position, sentences, logits, penalties, rules)
        return position + 1, add_token(position, sentences, candidates, rules), state

    return ops.while_loop(unfinished, advance, beam)


def _search_resized(beam, rules, resize):
    """As `_search`; now and then drops sentences that are done and makes more room."""
    _, sentences, _ = beam
    first = ops.minimum(FIRST_ROOM, ops.cast(rules.limit, "int32"))
    places = ops.arange(ops.shape(sentences.max_lengths)[0], dtype="int32")

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
        alive = ops.logical_and(is_alive(sentences), position < rules.limit)
        alive = _places_of(alive)
        sentences = keras.tree.map_structure(
            lambda leaf: ops.take(leaf, alive, axis=0), sentences
        )
        room = ops.where(position < room, room, ops.minimum(2 * room, rules.limit))
        state = resize(state, alive, room)
        return room, ops.take(places, alive), finished, (position, sentences, state)

    loop = (first, places, sentences.finished, beam)
    _, _, finished, _ = ops.while_loop(unfinished, advance, loop)
    return beam[0], sentences._replace(finished=finished), ()


def _places_of(flags):
    """Returns the places of the flags (B,) that are set, in order.

    As `ops.nonzero(flags)[0]`, whose operations LiteRT lacks.
    """
    places = ops.arange(ops.shape(flags)[0], dtype="int32")
    first = ops.sort(ops.where(flags, places, np.iinfo("int32").max))
    return first[: ops.sum(ops.cast(flags, "int32"))]


def _result(beam, special_ids):
    finished = beam[1].finished
    # Where the order of ties is open, an impossible hypothesis can sit in a free place.
    found = ops.expand_dims(finished.log_probabilities > IMPOSSIBLE, -1)
    return DecodingResult(
        ids=ops.where(found, finished.ids, special_ids.pad_id),
        lengths=finished.lengths,
        scores=finished.scores,
        log_probabilities=finished.log_probabilities,
    )
