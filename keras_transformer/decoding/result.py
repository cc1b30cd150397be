"""What every search needs and returns: special ids, hypotheses, their scores."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

from keras import ops

from keras_transformer.types import Tensor, TensorLike

# Log-probability of what cannot be, and of a place that no hypothesis has taken.
IMPOSSIBLE = -math.inf


class SpecialIds(NamedTuple):
    """Ids that steer a search; `pad_id` and `start_id` are never produced."""

    pad_id: int = 0
    start_id: int = 1
    end_id: int = 2


class DecodingResult(NamedTuple):
    """The `n_best` hypotheses of each sentence, the best first.

    A place that no hypothesis fills (every continuation was impossible, or the logits
    were NaN) holds only `pad_id`, length 0 and scores of minus infinity.
    """

    ids: Any  # (B, n_best, L) int32, `end_id` included where produced, then `pad_id`
    lengths: Any  # (B, n_best) int32, tokens, the end token counted
    scores: Any  # (B, n_best) float32, log_probabilities / length_penalty(lengths)
    log_probabilities: Any  # (B, n_best) float32, nats


LengthPenaltyForm: TypeAlias = Literal["gnmt", "power"]


def length_penalty(
    length: TensorLike | int, alpha: float, form: LengthPenaltyForm = "gnmt"
) -> Tensor:
    """Returns the divisor that makes log-probabilities of different lengths comparable.

    The form "gnmt", ((5 + length) / (5 + 1))^alpha, is that of Wu et al., 2016,
    equation 14, https://arxiv.org/abs/1609.08144, the penalty of "Attention Is All You
    Need" (section 6.1, alpha = 0.6). "power", length^alpha, is that of Marian,
    CTranslate2, Hugging Face and fairseq. An alpha cannot be carried over.

    Args:
        length: Tokens of the hypothesis, end token counted; a number or any tensor.
        alpha: 0 gives 1 (no normalisation); larger values favour longer outputs. Above
            1 the divisor outgrows the log-probabilities, and the best score of some
            texts is that of an output that repeats itself to the longest length.
        form: "gnmt" or "power".

    Returns:
        A float32 tensor of the shape of `length`.

    Example:
        >>> float(length_penalty(7, 1.0))
        2.0
    """
    length = ops.cast(length, "float32")
    return (length if form == "power" else (5.0 + length) / 6.0) ** alpha


def check_lengths(max_lengths, limit, alpha, length_penalty_form):
    """Raises `ValueError` unless lengths and their penalty make sense."""
    shape = tuple(ops.convert_to_tensor(max_lengths).shape)
    if len(shape) != 1:
        raise ValueError(
            "`max_lengths` must have one length a sentence, shape (B,). "
            f"Received: shape {shape}"
        )
    if isinstance(limit, int) and limit < 1:
        raise ValueError(f"`limit` must be at least 1. Received: limit={limit}")
    if not 0 <= alpha < math.inf:
        raise ValueError(
            f"`alpha` must be finite and at least 0. Received: alpha={alpha}"
        )
    if length_penalty_form not in ("gnmt", "power"):
        raise ValueError(
            "`length_penalty_form` must be 'gnmt' or 'power'. Received: "
            f"length_penalty_form={length_penalty_form!r}"
        )
