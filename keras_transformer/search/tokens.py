"""Results, length penalty, logits and constraints of every search.

A token that constraints ban keeps its share of the softmax, so a score is the model's
own, with or without constraints. Sampling constrains the whole vocabulary, beam search
only the best tokens.

Letters: B sentences, N beam size, R = B * N rows, C tokens of a row, L longest output,
P longest prefix, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.arguments import check_ids, known_values
from keras_transformer.nn.kernels.caches import pick
from keras_transformer.nn.kernels.crossentropy import class_ids
from keras_transformer.types import Tensor, TensorLike

# Log-probability of an impossible token, and of an empty place.
IMPOSSIBLE = -math.inf


class SpecialIds(NamedTuple):
    """Ids of padding, start and end; the first two are never produced."""

    pad_id: int = 0
    start_id: int = 1
    end_id: int = 2


class DecodingResult(NamedTuple):
    """The `n_best` hypotheses of each sentence, the best first.

    An empty place holds only `pad_id`, length 0 and scores of minus infinity.
    """

    ids: Any  #: (B, n_best, L) int32, with `end_id` if produced, then `pad_id`
    lengths: Any  #: (B, n_best) int32, tokens, the end token counted
    scores: Any  #: (B, n_best) float32, log_probabilities / length_penalty(lengths)
    log_probabilities: Any  #: (B, n_best) float32, nats


LengthPenaltyForm: TypeAlias = Literal["gnmt", "power"]


def length_penalty(
    length: TensorLike | int, alpha: float, form: LengthPenaltyForm = "gnmt"
) -> Tensor:
    """Returns the divisor of log-probabilities in a score.

    "gnmt", ((5 + length) / (5 + 1))^alpha, is equation 14 of Wu et al., 2016,
    https://arxiv.org/abs/1609.08144, as in section 6.1 of "Attention Is All You Need"
    (alpha = 0.6). "power", length^alpha, is that of Marian, CTranslate2, Hugging Face
    and fairseq. Each form needs its own alpha.

    Args:
        length: Number of tokens, end token counted; a number or any tensor.
        alpha: 0 is no penalty; larger values favour longer outputs. Above 1 the best
            output may repeat itself to the longest length.
        form: "gnmt" or "power".

    Returns:
        A float32 tensor of the shape of `length`.

    Raises:
        ValueError: If a number is negative.

    Example:
        >>> float(length_penalty(7, 1.0))
        2.0
    """
    check_number("alpha", alpha, minimum=0)
    if not isinstance(length, (tuple, list)):
        check_number("length", length, or_tensor=True, minimum=0)
    length = ops.cast(length, "float32")
    return (length if form == "power" else (5.0 + length) / 6.0) ** alpha


def checked_penalty(alpha, form):
    """Returns `length_penalty` as a function of a length, or raises `ValueError`."""
    check_number("length_penalty", alpha, minimum=0)
    if form not in ("gnmt", "power"):
        raise ValueError(
            "`length_penalty_form` must be 'gnmt' or 'power'. Received: "
            f"length_penalty_form={form!r}"
        )
    return functools.partial(length_penalty, alpha=alpha, form=form)


def checked_lengths(max_lengths, limit):
    """Returns the longest outputs (B,), at most `limit`, or raises `ValueError`."""
    max_lengths = one_per_sentence("max_lengths", max_lengths, "int32")
    check_number("limit", limit, int, or_tensor=True, minimum=1)
    return ops.minimum(max_lengths, ops.cast(limit, "int32"))


def as_rows(name, ids):
    """Returns ids (B, T), a list as an array; refuses rows of different lengths."""
    if not isinstance(ids, (list, tuple)):
        return ids
    try:
        return np.asarray(ids)
    except ValueError as error:
        raise ValueError(
            f"`{name}` must have rows of one length: pad each at its end. Received: "
            f"{name}={ids!r:.80}"
        ) from error


def check_texts(name, ids, special_ids, size=None):
    """Raises `ValueError` unless ids (B, T) are rows of tokens, then padding.

    The last token may be the end. In a graph, where no value is known, all is allowed.
    """
    values = known_values(ids)
    if values is None or values.ndim != 2:
        return
    pad_id, start_id, end_id = special_ids
    check_ids(name, values, size, pad_id)
    is_token = values != pad_id
    ends = ~is_token | (values == end_id)
    is_wrong = is_token & (values == start_id) & (start_id != end_id)
    is_wrong[:, 1:] |= is_token[:, 1:] & ends[:, :-1]
    if is_wrong.any():
        row, position = np.argwhere(is_wrong)[0]
        raise ValueError(
            f"`{name}` must be tokens without the start id, and nothing but padding "
            f"after padding or the end id. Received: {name}[{row}, {position}]="
            f"{values[row, position]}"
        )


def one_per_sentence(name, values, dtype):
    """Returns values as a tensor (B,); raises `ValueError` unless they are numbers."""
    rule = f"`{name}` must have one number a sentence, shape (B,)"
    try:
        tensor = ops.convert_to_tensor(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{rule}. Received: {name}={values!r:.80}") from error
    given = keras.backend.standardize_dtype(tensor.dtype)
    if len(tensor.shape) != 1 or given in ("bool", "string"):
        shape = tuple(tensor.shape)
        raise ValueError(f"{rule}. Received: shape {shape} of dtype {given}")
    return ops.cast(tensor, dtype)


def write(ids, last_ids, position):
    """Returns `ids` (..., L) with `last_ids` (...) in column `position`."""
    columns = ops.arange(ops.shape(ids)[-1], dtype="int32")
    return ops.where(columns == position, ops.expand_dims(last_ids, -1), ids)


def ban(logits, tokens, banned):
    """Returns logits (R, V) with `tokens` (R, C) impossible where `banned` (R, C)."""
    tokens = ops.cast(tokens, "int32")
    rows = ops.expand_dims(ops.arange(ops.shape(tokens)[0], dtype="int32"), 1)
    places = ops.stack([ops.zeros_like(tokens) + rows, tokens], axis=-1)  # (R, C, 2)
    # Adding, unlike replacing, needs no order of repeated tokens.
    added = ops.cast(ops.where(banned, IMPOSSIBLE, 0.0), logits.dtype)
    return ops.scatter_update(
        logits, ops.reshape(places, (-1, 2)), ops.reshape(added, (-1,)), "add"
    )


def check_logits(logits):
    """Raises `ValueError` unless logits are (R, V)."""
    if len(logits.shape) != 2:
        raise ValueError(
            "`step` must return logits of shape (rows, vocabulary). Received: shape "
            f"{tuple(logits.shape)}"
        )


def best_tokens(logits, count, banned=None):
    """Returns the best tokens (R, C), their log-probabilities, and normalisers."""
    # Of equally probable ones the lower id comes first (except on PyTorch).
    check_logits(logits)
    logits = ops.cast(logits, "float32")
    size = logits.shape[1]
    allowed = logits if banned is None else ban(logits, *banned)
    best, ids = best_logits(allowed, count if size is None else min(count, size))
    # No slice of `best`: XLA would sort the whole vocabulary, 60 times slower.
    highest = ops.max(best if banned is None else logits, axis=-1, keepdims=True)
    exponentials = ops.exp(logits - highest)
    # NaN if a logit is NaN or no token is possible.
    normaliser = highest + ops.log(ops.sum(exponentials, axis=-1, keepdims=True))
    added = ops.where(ops.isfinite(normaliser), best - normaliser, IMPOSSIBLE)
    return ids, added, normaliser  # (R, C), (R, C) log-probabilities, (R, 1)


def best_logits(logits, count):
    """As `ops.top_k` of logits (R, V), faster for large vocabularies."""
    size = logits.shape[1] or 0  # of a graph that does not know it
    widths = [width for width in range(32, 513) if size % width == 0]
    width = min(widths, key=lambda width: abs(width - 128), default=size)
    # For a small vocabulary one search is faster than one over blocks.
    if size < 2048 or size // width < max(count, 2):
        best, ids = ops.top_k(logits, count)
        return best, ops.cast(ids, "int32")
    # The C best tokens are in the C blocks with the highest maxima; searching these
    # takes a tenth of the time.
    blocks = ops.reshape(logits, (-1, size // width, width))
    chosen = ops.top_k(ops.max(blocks, axis=-1), count)[1]
    # Sorted, so that of equal tokens the lower id stays first.
    chosen = ops.sort(ops.cast(chosen, "int32"), axis=-1)
    nearby = ops.reshape(pick(blocks, chosen), (-1, count * width))
    best, places = ops.top_k(nearby, count)
    places = ops.cast(places, "int32")
    return best, pick(chosen, places // width) * width + places % width


def token_log_probabilities(logits, target_out, pad_id=0):
    """Returns the log-probabilities (..., T) of given tokens, 0 for padding.

    NaN for an id that is no token.
    """
    logits = ops.cast(logits, "float32")  # (..., T, V)
    is_padding = ops.equal(target_out, pad_id)
    target_out, is_token = class_ids(target_out, ops.shape(logits)[-1])
    of_target = ops.take_along_axis(logits, target_out[..., None], axis=-1)[..., 0]
    log_probabilities = of_target - ops.logsumexp(logits, axis=-1)
    log_probabilities = ops.where(is_token, log_probabilities, math.nan)
    # No product: a log-probability of padding may be infinite.
    return ops.where(is_padding, 0.0, log_probabilities)


def score_in_parts(project, states, target_out, pad_id=0, positions=8):
    """As `token_log_probabilities(project(states), ...)`, a few positions at a time."""
    # All logits of 32 outputs of 100 tokens and 32,000 classes are 400 MB.
    batch, length, width = ops.shape(states)
    count = (length + positions - 1) // positions
    spare = (0, count * positions - length)
    parts = (batch, count, positions)
    states = ops.reshape(ops.pad(states, ((0, 0), spare, (0, 0))), (*parts, width))
    target_out = ops.cast(target_out, "int32")
    targets = ops.pad(target_out, ((0, 0), spare), constant_values=pad_id)
    targets = ops.reshape(targets, parts)
    numbers = ops.reshape(ops.arange(count, dtype="int32"), (1, -1, 1))

    def score(i, scores):
        logits = project(ops.take(states, i, axis=1))
        part = token_log_probabilities(logits, ops.take(targets, i, axis=1), pad_id)
        return i + 1, ops.where(numbers == i, ops.expand_dims(part, 1), scores)

    start = (ops.zeros((), "int32"), ops.zeros(parts, "float32"))
    _, scores = ops.while_loop(lambda i, _: i < count, score, start)
    return ops.reshape(scores, (batch, count * positions))[:, :length]


class Constraints(NamedTuple):
    """Constraints on an output; the defaults allow every output.

    A prefix takes precedence over the others, the longest output over
    `min_output_length`.
    """

    min_output_length: int = 1  # tokens, the end token counted
    no_repeat_ngram_size: int = 0  # no n-gram of this size is repeated; 0 allows all
    prefix: Any = None  # (B, P) integers, first tokens, padded with `pad_id`
    never: int | None = None  # an id that is never output


def check_constraints(constraints, special_ids=SpecialIds()):  # noqa: B008, a tuple
    """Raises `ValueError` if a number or the prefix is out of range."""
    for name, minimum in (("min_output_length", 1), ("no_repeat_ngram_size", 0)):
        check_number(name, getattr(constraints, name), int, minimum=minimum)
    check_number("never", constraints.never, int, optional=True, minimum=0)
    if constraints.prefix is None:
        return
    prefix = as_rows("prefix", constraints.prefix)
    shape = tuple(ops.convert_to_tensor(prefix).shape)
    if len(shape) != 2:
        raise ValueError(
            "`prefix` must have one row a sentence, shape (B, P). "
            f"Received: shape {shape}"
        )
    check_texts("prefix", prefix, special_ids)


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
    is_start = ops.equal(tokens, start_id)
    allowed = is_end | (ops.not_equal(tokens, pad_id) & ~is_start)
    if constraints.never is not None:
        allowed &= ops.not_equal(tokens, constraints.never)
    if constraints.min_output_length > 1:
        too_short = position + 1 < constraints.min_output_length
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
    forced, is_token = class_ids(forced, ops.shape(logits)[-1])
    # Their log-probability: logits (R, V) less their log-sum-exp (R, 1).
    of_forced = ops.cast(pick(logits, forced), "float32") - normaliser
    is_first = ops.arange(tokens.shape[1]) == 0
    is_possible = ops.logical_and(is_token, ops.isfinite(of_forced))
    is_kept = ops.logical_and(is_first, is_possible)
    of_forced = ops.where(is_kept, of_forced, IMPOSSIBLE)
    tokens = ops.where(is_forced, forced, tokens)
    return tokens, ops.where(is_forced, of_forced, log_probabilities)
