"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path that becomes `path` if the block raises no error.

    Nobody ever sees half a file, and an error leaves what was there before.

    Args:
        path: File to write; its directory must exist.

    Yields:
        A path in the same directory with the same suffixes.

    Raises:
        IsADirectoryError: If `path` is a directory.

    Example:
        >>> with replacing("config.json") as temporary:
        ...     temporary.write_text("{}")
    """
    path = Path(path)
    check_not_directory(path)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_not_directory(path: str | Path):
    """Checks early that a file can be written at `path`.

    Args:
        path: File to write.

    Raises:
        IsADirectoryError: If it is a directory.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write.")
