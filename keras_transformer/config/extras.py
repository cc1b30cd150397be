"""What to install where an optional package is missing."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Returns how to install an extra: no index has this package yet."""
    return f'`pip install ".[{extra}]"` in a clone of keras_transformer'
