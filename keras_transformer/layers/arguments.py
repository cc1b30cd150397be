"""Checks of the arguments that several layers share."""

from __future__ import annotations


def check_size(name, value, optional=False):
    """Raises `ValueError` unless `value` is a positive integer (or an allowed None)."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )


def check_rate(name, value):
    """Raises `ValueError` unless `value` is a number in [0, 1)."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a number in [0, 1). Received: {name}={value!r}"
        )


def check_positions(start, length, max_length):
    """Raises `ValueError` if a table of learned positions is too short for an input.

    If `start` is a tensor, only the length is checked: it comes from a decoding loop,
    for which `start_decoding` has checked the longest output.

    Args:
        start: Position of the first element, an integer or a scalar tensor.
        length: Elements of the input, or `None` if they are known only at run time.
        max_length: Rows of the table.
    """
    first = start if isinstance(start, int) else 0
    if length is not None and first + length > max_length:
        raise ValueError(
            "The input is longer than the learned positions; raise `max_length` or "
            f"use sinusoidal ones. Received: {length} positions, start={first}, "
            f"max_length={max_length}"
        )
