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
        OSError: If the block cannot write it, with the name of `path`.

    Example:
        >>> with replacing("config.json") as temporary:
        ...     temporary.write_text("{}")
    """
    path = Path(path)
    check_not_directory(path)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    with naming(path, temporary):
        # A link that somebody put there would be written through: the file is our own.
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: str | Path, temporary: str | Path | None = None) -> Iterator[None]:
    """Gives the block's errors the name of the file that it writes.

    A write that fails, on a full disk say, does not know its file's name, and HDF5
    gives an address in memory in place of the system's words.

    Args:
        path: The file's name for whoever reads the error.
        temporary: Its name until it is whole.

    Raises:
        OSError: If the block cannot write the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def check_not_directory(path: str | Path):
    """Checks early that a file can be written at `path`.

    Args:
        path: File to write.

    Raises:
        IsADirectoryError: If it is a directory.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write.")
