"""Sampling over a step function; no model is known here.

A token is drawn by inverting the distribution function: probabilities are summed in the
order of the ids (with top-k or top-p, the most probable first), and the first token at
which the sum exceeds a number in [0, 1) is taken. The caller gives the numbers, so an
output depends on its sentence, its temperature and its numbers alone: not on the batch
around it, and not on a backend's generator.

Letters: B sentences, L longest output, V vocabulary, C tokens to draw among.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding.arguments import check_logits, check_search
from keras_transformer.decoding.best_tokens import best_logits
from keras_transformer.decoding.constraints import (
    Constraints,
    check_constraints,
    constrain,
    force,
    forced_tokens,
)
from keras_transformer.decoding.result import (
    IMPOSSIBLE,
    DecodingResult,
    LengthPenaltyForm,
    SpecialIds,
    length_penalty,
)
from keras_transformer.decoding.rows import select, write
from keras_transformer.types import Nest, TensorLike

# Far from overflow on one side and from any real difference of logits on the other.
_COLDEST, _HOTTEST = 1e-30, 1e30
# So far below 1 that its product with a sum, rounded to float32, is below the sum.
_ALMOST_ONE = 1.0 - 2.0**-23


def sample(
    step: Callable[..., Any],
    state: Nest,
    *,
    uniforms: TensorLike,
    temperature: float | TensorLike,
    max_lengths: TensorLike | Sequence[int],
    limit: int,
    special_ids: SpecialIds,
    top_k: int | None = None,
    top_p: float | None = None,
    alpha: float = 0.6,
    length_penalty_form: LengthPenaltyForm = "gnmt",
    constraints: Constraints = Constraints(),  # noqa: B008, it is a tuple
) -> DecodingResult:
    """Draws one output of each sentence.

    A token is drawn with the probability softmax(logits / temperature) among the
    tokens that the constraints allow, then among the `top_k` most probable of them,
    then among the fewest most probable whose probability reaches `top_p` (Holtzman et
    al., 2020, https://arxiv.org/abs/1904.09751). Padding and start are never drawn.
    Temperature 0 is greedy search; a very large one makes all tokens equally likely.

    `top_k` costs a search for the k largest logits, and drawing without a filter costs
    less. `top_p` alone sorts the whole vocabulary: set `top_k` to a few hundred, too.

    Args:
        step: The step function, as in `beam_search`, with one row a sentence.
        state: The state before the first token, as in `beam_search`.
        uniforms: Float tensor (B, L or more), numbers in [0, 1): column t draws token
            t. Independent uniform numbers make the outputs independent samples.
        temperature: Float tensor (B,). Not above 0, or NaN, is greedy.
        max_lengths: (B,) int32, longest output of each sentence (tokens, end token
            counted), at least 1.
        limit: The largest of `max_lengths` or more (tokens), an integer or a scalar
            tensor: the width L of the result. JAX needs an integer under `jit`.
        special_ids: Ids of padding, start and end.
        top_k: Most probable tokens to draw among, or `None` for all.
        top_p: Probability to draw among, in (0, 1], or `None` for all.
        alpha: Exponent of `length_penalty`, which enters the scores alone.
        length_penalty_form: Its form, "gnmt" or "power".
        constraints: What every output must obey.

    Returns:
        A `DecodingResult` with one output a sentence. Its log-probabilities are the
        model's: temperature, filters and constraints choose tokens, no more.

    Raises:
        ValueError: If an argument or the shape of the logits is out of range.

    Example:
        >>> result = sample(
        ...     step, state, uniforms=np.random.default_rng(1).random((3, 50)),
        ...     temperature=[0.8, 0.8, 0.0], max_lengths=[50, 40, 50], limit=50,
        ...     special_ids=SpecialIds(), top_k=100, top_p=0.9,
        ... )
        >>> result.ids.shape  # (3, 1, 50)
    """
    max_lengths = ops.convert_to_tensor(max_lengths, "int32")
    uniforms = ops.convert_to_tensor(uniforms, "float32")
    temperature = ops.convert_to_tensor(temperature, "float32")
    check_search(max_lengths, limit, alpha, length_penalty_form)
    check_constraints(constraints)
    _check_arguments(uniforms, limit, top_k, top_p)
    max_lengths = ops.minimum(max_lengths, ops.cast(limit, "int32"))
    rules = _Rules(
        uniforms, temperature, max_lengths, special_ids, top_k, top_p, constraints
    )

    def unfinished(position, outputs, state):
        return ops.logical_and(position < limit, ops.any(outputs.is_unfinished))

    def advance(position, outputs, state):
        ids, parents = outputs.last_ids, ops.zeros_like(outputs.last_ids)
        logits, state = step(ops.reshape(ids, (-1,)), parents, state)
        tokens, added = _next_tokens(position, outputs, logits, rules)
        return position + 1, _append(position, outputs, tokens, added, rules), state

    start = (ops.zeros((), "int32"), _start(limit, rules), state)
    _, outputs, _ = ops.while_loop(unfinished, advance, start)
    return _result(outputs, alpha, length_penalty_form, special_ids.pad_id)


class _Rules(NamedTuple):
    """What stays the same while the outputs grow."""

    uniforms: Any  # (B, L) float32
    temperature: Any  # (B,) float32
    max_lengths: Any  # (B,) int32
    special_ids: SpecialIds
    top_k: int | None
    top_p: float | None
    constraints: Constraints


class _Outputs(NamedTuple):
    """What is carried from step to step."""

    last_ids: Any  # (B, 1) int32
    ids: Any  # (B, 1, L) int32
    lengths: Any  # (B, 1) int32, 0 where unfinished
    log_probabilities: Any  # (B, 1) float32
    is_unfinished: Any  # (B, 1) bool


def _start(limit, rules):
    batch = ops.shape(rules.max_lengths)[0]
    pad_id, start_id, _ = rules.special_ids
    return _Outputs(
        last_ids=ops.full((batch, 1), start_id, "int32"),
        ids=ops.full((batch, 1, limit), pad_id, "int32"),
        lengths=ops.zeros((batch, 1), "int32"),
        log_probabilities=ops.zeros((batch, 1), "float32"),
        is_unfinished=ops.ones((batch, 1), "bool"),
    )


def _next_tokens(position, outputs, logits, rules):
    """Returns the next token of each sentence and its log-probability, both (B, 1)."""
    check_logits(logits)
    special_ids, constraints = rules.special_ids, rules.constraints
    logits = ops.cast(logits, "float32")
    normaliser = ops.logsumexp(logits, axis=-1, keepdims=True)
    allowed = constrain(logits, outputs.ids, position, special_ids, constraints)
    tokens = _draw_tokens(allowed, ops.take(rules.uniforms, position, axis=1), rules)
    tokens = ops.expand_dims(tokens, 1)
    added = ops.take_along_axis(allowed, tokens, axis=1) - normaliser
    # With a NaN among the logits, or no possible token, a sentence gets no output.
    added = ops.where(ops.isfinite(normaliser), added, IMPOSSIBLE)
    if constraints.prefix is None:
        return tokens, added
    forced = forced_tokens(constraints.prefix, position, special_ids.pad_id)
    return force(tokens, added, logits, normaliser, forced)


def _draw_tokens(logits, uniforms, rules):
    """Draws one token (B,) a sentence from logits (B, V), -inf where banned."""
    is_warm = rules.temperature > 0.0  # False of NaN
    temperature = ops.where(is_warm, rules.temperature, _COLDEST)
    temperature = ops.clip(temperature, _COLDEST, _HOTTEST)
    # Greedy: at the coldest, 0 draws the first of the most probable tokens.
    uniforms = ops.where(is_warm, ops.clip(uniforms, 0.0, _ALMOST_ONE), 0.0)
    ids = None
    if rules.top_k is not None or rules.top_p is not None:
        width = logits.shape[-1]
        logits, ids = best_logits(logits, min(rules.top_k or width, width))  # (B, C)
    best = ops.max(logits, axis=-1, keepdims=True)
    weights = ops.exp((logits - best) / ops.expand_dims(temperature, 1))
    if ids is None:
        return _draw_of_many(weights, uniforms)
    if rules.top_p is not None:
        weights = _keep_most_probable(weights, rules.top_p)
    places, _ = _draw(weights, uniforms)
    tokens = ops.take_along_axis(ids, ops.expand_dims(places, 1), axis=1)
    return ops.cast(ops.squeeze(tokens, 1), "int32")


def _keep_most_probable(weights, top_p):
    """Zeroes the sorted weights (B, C) that come after the share `top_p` is reached."""
    summed = ops.cumsum(weights, axis=-1)
    return ops.where(summed - weights < top_p * summed[:, -1:], weights, 0.0)


def _draw_of_many(weights, uniforms):
    """Draws as `_draw` does, faster and more exactly: a block first, then a place.

    Summing a vocabulary one by one is slow, and in float32 its small weights are lost
    in the sum of the others.
    """
    size = weights.shape[-1]
    width = math.isqrt(size - 1) + 1
    count = -(-size // width)
    weights = ops.pad(weights, ((0, 0), (0, count * width - size)))
    blocks = ops.reshape(weights, (-1, count, width))
    block, uniforms = _draw(ops.sum(blocks, axis=-1), uniforms)
    drawn = select(blocks, ops.expand_dims(block, 1))  # (B, 1, width)
    place, _ = _draw(ops.squeeze(drawn, 1), uniforms)
    return block * width + place


def _draw(weights, uniforms):
    """Draws a place of each row with a probability in proportion to its weight.

    Args:
        weights: Float tensor (B, C), at least 0.
        uniforms: Float tensor (B,), at least 0 and at most `_ALMOST_ONE`.

    Returns:
        Places (B,) int32, and how far through its place each number lies, (B,) float32
        from 0 to `_ALMOST_ONE`: uniform again and independent of the place.
    """
    summed = ops.cumsum(weights, axis=-1)
    target = ops.expand_dims(uniforms, 1) * summed[:, -1:]
    # A place of weight 0 is never drawn, though sums made in parallel may rise or fall
    # there by a rounding error. Where no sum is above, the first possible place is.
    possible = weights > 0.0
    above = ops.logical_and(possible, summed > target)
    rank = ops.cast(possible, "int32") + ops.cast(above, "int32")
    # Not by an argmax: TensorFlow has none of int32 for a GPU, and Keras' of floats
    # needs operations that LiteRT lacks.
    is_best = ops.equal(rank, ops.max(rank, axis=-1, keepdims=True))
    places = ops.arange(weights.shape[-1], dtype="int32")
    places = ops.where(is_best, places, weights.shape[-1])
    places = ops.min(places, axis=-1, keepdims=True)
    end = ops.take_along_axis(summed, places, axis=1)
    before = ops.take_along_axis(summed, ops.maximum(places - 1, 0), axis=1)
    before = ops.where(places > 0, before, 0.0)
    rest = (target - before) / ops.where(end > before, end - before, 1.0)
    rest = ops.clip(rest, 0.0, _ALMOST_ONE)
    return ops.squeeze(places, 1), ops.squeeze(rest, 1)


def _append(position, outputs, tokens, added, rules):
    """Returns the outputs with one more token where they are unfinished."""
    pad_id, _, end_id = rules.special_ids
    is_unfinished, length = outputs.is_unfinished, position + 1
    cut = ops.expand_dims(length >= rules.max_lengths, 1)
    ends = ops.logical_or(ops.logical_or(tokens == end_id, cut), added == IMPOSSIBLE)
    ends_now = ops.logical_and(is_unfinished, ends)
    total = outputs.log_probabilities + ops.where(is_unfinished, added, 0.0)
    return _Outputs(
        last_ids=tokens,
        ids=write(outputs.ids, ops.where(is_unfinished, tokens, pad_id), position),
        lengths=ops.where(ends_now, length, outputs.lengths),
        log_probabilities=total,
        is_unfinished=ops.logical_and(is_unfinished, ops.logical_not(ends)),
    )


def _result(outputs, alpha, length_penalty_form, pad_id):
    total = outputs.log_probabilities
    found = total > IMPOSSIBLE
    lengths = ops.where(found, outputs.lengths, 0)
    # Where there is no output, anything but 0.
    divisor = length_penalty(ops.maximum(lengths, 1), alpha, length_penalty_form)
    return DecodingResult(
        ids=ops.where(ops.expand_dims(found, -1), outputs.ids, pad_id),
        lengths=lengths,
        scores=total / divisor,
        log_probabilities=total,
    )


def _check_arguments(uniforms, limit, top_k, top_p):
    shape = tuple(ops.shape(uniforms))
    narrow = len(shape) == 2 and isinstance(limit, int) and isinstance(shape[1], int)
    if len(shape) != 2 or (narrow and shape[1] < limit):
        raise ValueError(
            "`uniforms` must have one number a sentence and token, shape (B, L) with L "
            f"at least `limit`. Received: shape {shape}, limit={limit}"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"`top_k` must be at least 1. Received: top_k={top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(
            f"`top_p` must be above 0 and at most 1. Received: top_p={top_p}"
        )
