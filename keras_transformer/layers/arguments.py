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
