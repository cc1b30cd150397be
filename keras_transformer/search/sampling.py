"""Sampling over a step function.

A token is the first at which the cumulative probability, in the order of the ids (with
top-k or top-p, of the probabilities), exceeds a number in [0, 1) from the caller. So an
output does not depend on its batch or on a backend's generator.

Letters: B sentences, L longest output, V vocabulary, C tokens to draw from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.caches import pick
from keras_transformer.search.tokens import (
    IMPOSSIBLE,
    Constraints,
    DecodingResult,
    LengthPenaltyForm,
    SpecialIds,
    best_logits,
    check_constraints,
    check_logits,
    checked_lengths,
    checked_penalty,
    constrain,
    force,
    forced_tokens,
    one_per_sentence,
    write,
)
from keras_transformer.types import Nest, TensorLike

# Far from overflow, and far beyond any difference of logits.
_COLDEST = 1e-30
_HOTTEST = 1e30
# Its product with a sum, rounded to float32, is below the sum.
_ALMOST_ONE = 1.0 - 2.0**-23


def sample_tokens(
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
    length_penalty: float = 0.6,
    length_penalty_form: LengthPenaltyForm = "gnmt",
    constraints: Constraints = Constraints(),  # noqa: B008, it is a tuple
) -> DecodingResult:
    """Samples one output per sentence.

    A token is drawn with the probability softmax(logits / temperature) from the tokens
    that the constraints allow, then from the `top_k` most probable of them, then from
    the fewest most probable whose probability reaches `top_p` (Holtzman et al., 2020,
    https://arxiv.org/abs/1904.09751). `top_p` without `top_k` sorts the vocabulary.

    Args:
        step: The step function, as in `beam_search`, with one row per sentence.
        state: See `beam_search`.
        uniforms: Float tensor (B, L or more), independent uniform numbers in [0, 1);
            column t draws token t.
        temperature: Float tensor (B,), from 0 (greedy) to infinity (uniform); what is
            below 0 or NaN is taken for 0.
        max_lengths: See `beam_search`.
        limit: See `beam_search`.
        special_ids: Ids of padding, start and end.
        top_k: Number of most probable tokens to draw from; default all.
        top_p: Probability to draw from, in (0, 1]; default all.
        length_penalty: Exponent, alpha, of the function `length_penalty`, used in the
            scores only.
        length_penalty_form: "gnmt" or "power"; see `length_penalty`.
        constraints: Constraints on every output.

    Returns:
        A `DecodingResult` with one output per sentence and the model's
        log-probabilities, without temperature or filters.

    Raises:
        ValueError: If an argument or the shape of the logits is out of range.

    Example:
        >>> def step(ids, parents, state):  # after token n comes n + 1 or n + 2
        ...     return 9 * ops.one_hot(ids + 1, 9) + 8 * ops.one_hot(ids + 2, 9), state
        >>> result = sample_tokens(
        ...     step, (), uniforms=[[0.1, 0.9, 0.1, 0.9], [0.7] * 4],
        ...     temperature=[1.0, 0.0], max_lengths=[4, 4], limit=4,
        ...     special_ids=SpecialIds(pad_id=0, start_id=1, end_id=5), top_k=100,
        ... )
        >>> ops.convert_to_numpy(result.ids).tolist()
        [[[2, 4, 5, 0]], [[2, 3, 4, 5]]]
    """
    check_constraints(constraints, special_ids)
    max_lengths = checked_lengths(max_lengths, limit)
    divisor = checked_penalty(length_penalty, length_penalty_form)
    uniforms = ops.convert_to_tensor(uniforms, "float32")
    temperature = one_per_sentence("temperature", temperature, "float32")
    shape = tuple(ops.shape(uniforms))
    narrow = len(shape) == 2 and isinstance(limit, int) and isinstance(shape[1], int)
    if len(shape) != 2 or (narrow and shape[1] < limit):
        raise ValueError(
            "`uniforms` must have one number a sentence and token, shape (B, L) with L "
            f"at least `limit`. Received: shape {shape}, limit={limit}"
        )
    check_number("top_k", top_k, int, optional=True, minimum=1)
    check_number("top_p", top_p, optional=True, above=0, maximum=1)
    batch = ops.shape(max_lengths)[0]
    pad_id = special_ids.pad_id

    def unfinished(position, sentences, state):
        return ops.logical_and(position < limit, ops.any(sentences.is_unfinished))

    def advance(position, sentences, state):
        is_unfinished = sentences.is_unfinished
        parents = ops.zeros_like(sentences.last_ids)
        logits, state = step(ops.reshape(sentences.last_ids, (-1,)), parents, state)
        check_logits(logits)
        logits = ops.cast(logits, "float32")
        normaliser = ops.logsumexp(logits, axis=-1, keepdims=True)
        allowed = constrain(logits, sentences.ids, position, special_ids, constraints)
        numbers = ops.take(uniforms, position, axis=1)
        tokens = _draw_tokens(allowed, numbers, temperature, top_k, top_p)
        tokens = ops.expand_dims(tokens, 1)  # (B, 1), and their log-probabilities
        added = ops.take_along_axis(allowed, tokens, axis=1) - normaliser
        # NaN, or no possible token: the sentence gets no output.
        added = ops.where(ops.isfinite(normaliser), added, IMPOSSIBLE)
        if constraints.prefix is not None:
            forced = forced_tokens(constraints.prefix, position, pad_id)
            tokens, added = force(tokens, added, logits, normaliser, forced)
        written = ops.where(is_unfinished, tokens, pad_id)
        length = position + 1
        cut = ops.expand_dims(length >= max_lengths, 1)
        ends = (tokens == special_ids.end_id) | cut | (added == IMPOSSIBLE)
        ends_now = ops.logical_and(is_unfinished, ends)
        sentences = _Sentences(
            last_ids=tokens,
            ids=write(sentences.ids, written, position),
            lengths=ops.where(ends_now, length, sentences.lengths),
            total=sentences.total + ops.where(is_unfinished, added, 0.0),
            is_unfinished=ops.logical_and(is_unfinished, ops.logical_not(ends)),
        )
        return length, sentences, state

    sentences = _Sentences(
        last_ids=ops.full((batch, 1), special_ids.start_id, "int32"),
        ids=ops.full((batch, 1, limit), pad_id, "int32"),
        lengths=ops.zeros((batch, 1), "int32"),
        total=ops.zeros((batch, 1), "float32"),
        is_unfinished=ops.ones((batch, 1), "bool"),
    )
    loop = (ops.zeros((), "int32"), sentences, state)
    sentences = ops.while_loop(unfinished, advance, loop)[1]
    total = sentences.total
    found = total > IMPOSSIBLE
    ids = ops.where(ops.expand_dims(found, -1), sentences.ids, pad_id)
    lengths = ops.where(found, sentences.lengths, 0)
    # The divisor is not 0 without an output.
    scores = total / divisor(ops.maximum(lengths, 1))
    return DecodingResult(ids, lengths, scores, total)


class _Sentences(NamedTuple):
    """The state of the sampling, one row per sentence."""

    last_ids: Any  # (B, 1) int32
    ids: Any  # (B, 1, L) int32
    lengths: Any  # (B, 1) int32, 0 where unfinished
    total: Any  # (B, 1) float32, log-probabilities
    is_unfinished: Any  # (B, 1) bool


def _draw_tokens(logits, uniforms, temperature, top_k, top_p):
    """Draws one token (B,) a sentence from logits (B, V), -inf where banned."""
    is_warm = temperature > 0.0  # False for NaN
    temperature = ops.where(is_warm, temperature, _COLDEST)
    temperature = ops.clip(temperature, _COLDEST, _HOTTEST)
    # At the coldest, 0 draws the first of the most probable tokens.
    uniforms = ops.where(is_warm, ops.clip(uniforms, 0.0, _ALMOST_ONE), 0.0)
    ids = None
    if top_k is not None or top_p is not None:
        width = logits.shape[-1]
        logits, ids = best_logits(logits, min(top_k or width, width))  # (B, C)
    best = ops.max(logits, axis=-1, keepdims=True)
    weights = ops.exp((logits - best) / ops.expand_dims(temperature, 1))
    if ids is None:
        return _draw_of_many(weights, uniforms)
    if top_p is not None:
        # Keep sorted weights up to the one that reaches the share.
        summed = ops.cumsum(weights, axis=-1)
        weights = ops.where(summed - weights < top_p * summed[:, -1:], weights, 0.0)
    places, _ = _draw(weights, uniforms)
    tokens = ops.take_along_axis(ids, ops.expand_dims(places, 1), axis=1)
    return ops.cast(ops.squeeze(tokens, 1), "int32")


def _draw_of_many(weights, uniforms):
    """As `_draw`, faster and more exact for many weights: by blocks, then places."""
    size = weights.shape[-1]
    width = math.isqrt(size - 1) + 1
    count = -(-size // width)
    weights = ops.pad(weights, ((0, 0), (0, count * width - size)))
    blocks = ops.reshape(weights, (-1, count, width))
    block, uniforms = _draw(ops.sum(blocks, axis=-1), uniforms)
    drawn = pick(blocks, ops.expand_dims(block, 1))  # (B, 1, width)
    place, _ = _draw(ops.squeeze(drawn, 1), uniforms)
    return block * width + place


def _draw(weights, uniforms):
    """Returns places (B,) drawn by weight, and where in its place each number lies."""
    # weights (B, C), at least 0; uniforms (B,), from 0 to `_ALMOST_ONE`
    summed = ops.cumsum(weights, axis=-1)
    target = ops.expand_dims(uniforms, 1) * summed[:, -1:]
    # Rounding must not draw a place of weight 0: parallel sums may rise or fall there.
    # Without a sum above, the first possible place is drawn.
    possible = weights > 0.0
    above = ops.logical_and(possible, summed > target)
    rank = ops.cast(possible, "int32") + ops.cast(above, "int32")
    # No argmax: TensorFlow has none of int32 on a GPU, LiteRT none of Keras' floats.
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
