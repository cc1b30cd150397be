"""Files that are written whole or not at all, and locks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yields a temporary file that becomes `path` if the block raises no error.

    It is on the disk before it gets its name. An error leaves the old file and names
    `path`. A killed process leaves .partial-... beside it.
    """
    path = Path(path)
    temporary = _temporary(path)
    with naming(path, temporary):
        try:
            yield temporary
            flush(temporary)
            os.replace(temporary, path)
            flush(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def creating_directory(path: str | Path) -> Iterator[Path]:
    """Yields a temporary directory that becomes `path` if the block raises no error.

    Its files are flushed to the disk first. A killed process leaves .partial-... beside
    it.
    """
    path = Path(path)
    temporary = _temporary(path)
    with _naming_full_disk(path):
        with naming(path, temporary):
            temporary.mkdir(parents=True)
        try:
            yield temporary
            for written in temporary.rglob("*"):
                flush(written)
            flush(temporary)
            temporary.rename(path)
            flush(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path):
    """Returns a path beside `path` that no other writer uses."""
    return path.with_name(f".partial-{uuid.uuid4().hex[:8]}-{path.name}")


def flush(path: str | Path):
    """Flushes a file, or the names in a directory, to the disk, against power cuts."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot flush a directory.
        if error.errno not in (errno.EBADF, errno.EINVAL) or Path(path).is_file():
            raise
    finally:
        os.close(descriptor)


def strict_json(value: Any, default: Callable | None = None, **layout: Any) -> str:
    """Returns a value as JSON, with the options of `json.dumps`.

    NaN and infinities, for which JSON has no word, become null: a reader then sees that
    there was a figure, and that it cannot be computed with.
    """
    text = json.dumps(value, default=default)
    value = json.loads(text, parse_constant=lambda name: None)
    return json.dumps(value, allow_nan=False, **layout)


def write_json(path: str | Path, value: Any):
    """Writes a value as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        text = strict_json(value, indent=2, ensure_ascii=False) + "\n"
        # A lone surrogate, as a file's name may have, becomes its escape in JSON.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def read_json(path: str | Path, kind: type = dict) -> Any:
    """Returns the `dict` or `list` in a JSON file; a damaged file is named."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(value, kind):
        expected = {dict: "an object", list: "a list"}[kind]
        raise ValueError(f"{path} is damaged: it must hold {expected}")
    return value


def is_damage(error: Exception) -> bool:
    """Whether an error of reading is that of a damaged file, not of the machine."""
    if isinstance(error, OSError):
        # The machine's have a number, HDF5's none. That of NumPy, which seeks to before
        # the beginning of a cut file, is EINVAL.
        return error.errno in (None, errno.EINVAL)
    kinds = ValueError, LookupError, EOFError, RecursionError
    return isinstance(error, (*kinds, zipfile.BadZipFile, zlib.error))


def check_archive(path: str | Path):
    """Raises an error that `is_damage` knows unless a ZIP archive is whole."""
    with zipfile.ZipFile(path) as archive:
        try:
            damaged = archive.testzip()
        except RuntimeError as error:  # Of a flag for encryption, or a method.
            raise ValueError(str(error)) from error
    if damaged:
        raise ValueError(f"bad checksum of {damaged}")


@contextlib.contextmanager
def naming(path: str | Path, temporary: str | Path | None = None) -> Iterator[None]:
    """Names `path` in errors of a block that writes it or `temporary`."""
    try:
        yield
    except OSError as error:
        # A full disk's error has no file name; HDF5's has a memory address as message.
        if error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


@contextlib.contextmanager
def _naming_full_disk(path):
    """Says what is full, whatever a library raises of it."""
    try:
        yield
    except Exception as error:
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if (reason := os.strerror(number)) in str(error):
                cure = f"make room there, or in {tempfile.gettempdir()} (TMPDIR)"
                raise OSError(number, f"{reason}: {cure}", str(path)) from error
        raise


def check_file_to_write(path: str | Path):
    """Raises `OSError` early where a file is to be written, and no file can be."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {above} is a file.")


def check_another_file(path: str | Path, inputs: Iterable[str | Path]):
    """Raises `ValueError` if a file to write is one of those that are read."""
    for given in inputs:
        if Path(path).exists() and Path(given).exists() and Path(given).samefile(path):
            raise ValueError(f"The output must be another file than the input {given}")


def check_absent(path: str | Path):
    """Raises `FileExistsError` if the target of an export exists."""
    if Path(path).exists():
        raise FileExistsError(
            f"{path} exists, and is never overwritten: choose another directory "
            "or remove it."
        )


def digest(path: str | Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def take_lock(descriptor: int, path: str | Path) -> bool:
    """Locks an open file or directory until it is closed, or its process ends.

    Returns False if another process has locked or moved it.
    """
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
