"""Checks of what searches and sampling are given."""

from __future__ import annotations

import math

from keras import ops


def check_search(max_lengths, limit, alpha, length_penalty_form):
    """Raises `ValueError` unless lengths and penalty make sense.

    Raises:
        ValueError: If `max_lengths` is no vector, `limit` is below 1, `alpha` is
            negative or not finite, or there is no such form of the length penalty.
    """
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


def check_temperature(temperature):
    """Raises `ValueError` unless the temperature of a whole batch makes sense.

    Raises:
        ValueError: If it is negative, infinite or no number.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(
            "`temperature` must be finite and at least 0. Received: "
            f"temperature={temperature}"
        )


def check_logits(logits):
    """Raises `ValueError` unless a step's logits are (R, V) with V known.

    Raises:
        ValueError: If they have another rank or the vocabulary is not known.
    """
    if len(logits.shape) != 2 or logits.shape[-1] is None:
        raise ValueError(
            "`step` must return logits of shape (rows, vocabulary), the vocabulary "
            f"known. Received: shape {tuple(logits.shape)}"
        )


def check_beam(beam_size, n_best):
    """Raises `ValueError` unless a beam can return that many hypotheses.

    Raises:
        ValueError: If `beam_size` is below 1 or `n_best` is not from 1 to it.
    """
    if beam_size < 1:
        raise ValueError(
            f"`beam_size` must be at least 1. Received: beam_size={beam_size}"
        )
    if not 1 <= n_best <= beam_size:
        raise ValueError(
            "`n_best` must be from 1 to `beam_size`. "
            f"Received: n_best={n_best}, beam_size={beam_size}"
        )
