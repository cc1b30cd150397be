"""Files written whole or not at all, directories locked, versions numbered."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields a temporary file that becomes `path` if the block raises no error.

    Nobody sees half a file, and an error, which names `path`, leaves what was there.
    """
    path = Path(path)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    with naming(path, temporary):
        temporary.touch()  # Where nothing can be written, the block does not begin.
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any):
    """Writes a value as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def creating_directory(path: str | Path) -> Iterator[Path]:
    """Yields a temporary directory that becomes `path` if the block raises no error."""
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
    """Names `path` in the errors of a block that writes it, or writes `temporary`."""
    try:
        yield
    except OSError as error:
        # Python's error of a write to a full disk does not name the file; HDF5's gives
        # a memory address instead of the system's message.
        if error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def check_not_directory(path: str | Path):
    """Raises `IsADirectoryError` early where a file is to be written."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write.")


def check_absent(path: str | Path):
    """Raises `FileExistsError` where an export is to be written and something is."""
    if Path(path).exists():
        raise FileExistsError(
            f"{path} exists, and is never overwritten: choose another directory "
            "or remove it."
        )


def digest(path: str | Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_directory(path: str | Path):
    """Flushes a directory to disk, so that its file names survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, path: str | Path) -> bool:
    """Locks an opened file or directory until the process ends in whatever way.

    Returns False if another process holds it, or moved it since it was opened.
    """
    import fcntl  # Windows has none, and no training of text.

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def versions_in(directory: str | Path, content: str = "") -> dict[int, Path]:
    """Returns the entries of a directory whose names are whole numbers, in order.

    TensorFlow Serving takes such directories for the versions of a model. `content`,
    where it is given, is a file that they must have.
    """
    paths = [path for path in Path(directory).glob("*") if (path / content).exists()]
    numbered = [p for p in paths if p.name.isascii() and p.name.isdecimal()]
    return dict(sorted((int(path.name), path) for path in numbered))


def version_path(path: str | Path, content: str) -> Path:
    """Returns NAME/VERSION as it is, and for NAME the path of its next version.

    The first is 1. `content` is a file of every version: NAME must not have it itself.
    """
    path = Path(path)
    if path.name.isascii() and path.name.isdecimal():
        check_absent(path)
        return path
    if (path / content).exists():
        raise FileExistsError(
            f"{path} holds an export itself, and so no versions of one: remove "
            f"{path / content}, or choose another directory, such as {path.parent}."
        )
    return path / str(max(versions_in(path), default=0) + 1)
