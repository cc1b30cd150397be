"""Files written whole or not at all, directories locked, versions numbered."""

from __future__ import annotations

import contextlib
import fcntl
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
        # A link that somebody put there must not be written through.
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: str | Path, temporary: str | Path | None = None) -> Iterator[None]:
    """Adds the file's name to the errors of a block that writes it.

    The error of a failed write, on a full disk say, does not name the file, and that of
    HDF5 has an address in memory instead of the system's message.

    Args:
        path: The name to put in the error.
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


def sync_directory(path: str | Path):
    """Makes names given and taken in a directory outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, path: str | Path) -> bool:
    """Locks a directory against other processes, as long as its descriptor is open.

    The lock ends with the process, however that ends.

    Args:
        descriptor: The directory, opened for reading.
        path: Its path.

    Returns:
        Whether it is locked now: not if another process holds the lock, or has removed
        the directory since it was opened.

    Example:
        >>> descriptor = os.open("runs/en-de", os.O_RDONLY)
        >>> if not take_lock(descriptor, "runs/en-de"):
        ...     raise BlockingIOError("Another process is training in runs/en-de.")
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def versions_in(directory: str | Path) -> dict[int, Path]:
    """Returns the entries of a directory whose names are whole numbers, in order.

    TensorFlow Serving takes such directories for the versions of a model.

    Example:
        >>> list(versions_in("saved_models/en-de"))
        [1, 2, 10]
    """
    paths = Path(directory).glob("*")
    numbered = [p for p in paths if p.name.isascii() and p.name.isdecimal()]
    return dict(sorted((int(path.name), path) for path in numbered))


def next_version(directory: str | Path) -> int:
    """Returns the number after the highest of `versions_in`; 1 if there is none."""
    return max(versions_in(directory), default=0) + 1
