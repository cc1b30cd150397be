"""Optional packages, and what to install where one is missing."""

from __future__ import annotations

import importlib
from typing import Any


def how_to_install(extra: str) -> str:
    """Returns how to install an extra: no index has this package yet."""
    return f'`pip install ".[{extra}]"` in a clone of keras_transformer'


def required(module: str, need: str, extra: str) -> Any:
    """Imports a module; an `ImportError` tells the `need` and the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{need}: {how_to_install(extra)}.") from error
