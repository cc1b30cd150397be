"""Files written whole or not at all, directories locked, versions numbered."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
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
        OSError: If the block cannot write the file; the error names `path`.

    Example:
        >>> with replacing("config.json") as temporary:
        ...     temporary.write_text("{}")
    """
    path = Path(path)
    check_not_directory(path)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    with naming(path, temporary):
        # Never write through a link that somebody put there.
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def creating_directory(path: str | Path) -> Iterator[Path]:
    """Yields a temporary directory that becomes `path` if the block raises no error.

    Args:
        path: Directory to create, where there is none; its parents are made.

    Yields:
        An empty directory beside it.

    Example:
        >>> with creating_directory("lite/en-de") as temporary:
        ...     (temporary / "translator.json").write_text("{}")
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}-{uuid.uuid4().hex[:8]}.partial"
    temporary.mkdir()
    try:
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def naming(path: str | Path, temporary: str | Path | None = None) -> Iterator[None]:
    """Adds the file's name to the errors of a block that writes it.

    Python's error of a failed write, on a full disk for example, does not name the
    file; HDF5's gives a memory address instead of the system's message.

    Args:
        path: The name to put in the error.
        temporary: Path that the block writes instead, if any.

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


def check_absent(path: str | Path):
    """Checks that an export can be written at `path`.

    Args:
        path: Directory to create.

    Raises:
        FileExistsError: If it exists.
    """
    if Path(path).exists():
        raise FileExistsError(
            f"{path} exists. An export is never overwritten: choose another directory "
            "or remove it."
        )


def sync_directory(path: str | Path):
    """Flushes a directory to disk, so that its file names survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, path: str | Path) -> bool:
    """Locks a directory against other processes while its descriptor is open.

    The lock ends with the process, however the process ends.

    Args:
        descriptor: The directory, opened for reading.
        path: Its path.

    Returns:
        True if the lock is ours; False if another process holds it, or has removed the
        directory since it was opened.

    Example:
        >>> descriptor = os.open("runs/en-de", os.O_RDONLY)
        >>> if not take_lock(descriptor, "runs/en-de"):
        ...     raise BlockingIOError("Another process is training in runs/en-de.")
    """
    import fcntl  # Windows has none, and no training of text.

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def versions_in(directory: str | Path) -> dict[int, Path]:
    """Returns the entries of a directory whose names are whole numbers, in order.

    TensorFlow Serving treats such directories as the versions of a model.

    Example:
        >>> list(versions_in("saved_models/en-de"))
        [1, 2, 10]
    """
    paths = Path(directory).glob("*")
    numbered = [p for p in paths if p.name.isascii() and p.name.isdecimal()]
    return dict(sorted((int(path.name), path) for path in numbered))


def next_version(directory: str | Path) -> int:
    """Returns one more than the highest of `versions_in`, or 1 if there is none."""
    return max(versions_in(directory), default=0) + 1


def version_path(path: str | Path, content: str) -> Path:
    """Returns the directory of an export that a server finds by its version.

    Args:
        path: Directory of a version, NAME/VERSION with a whole number; or of a model,
            NAME, which gets its next version.
        content: File that every version has.

    Returns:
        NAME/VERSION.

    Raises:
        FileExistsError: If the version exists, or NAME has `content` itself.

    Example:
        >>> version_path("saved_models/en-de", "saved_model.pb")
        PosixPath('saved_models/en-de/1')
    """
    path = Path(path)
    if path.name.isascii() and path.name.isdecimal():
        if path.exists():
            raise FileExistsError(
                f"{path} exists. An exported version is never overwritten: choose "
                "another version or remove it."
            )
        return path
    if (path / content).exists():
        raise FileExistsError(
            f"{path} holds an export itself, and so no versions of one: remove "
            f"{path / content}, or choose another directory, such as {path.parent}."
        )
    return path / str(next_version(path))
