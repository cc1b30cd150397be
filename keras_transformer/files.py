"""Files that are written whole or not at all, locks, and versions."""

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

    An error leaves the old file and names `path`.
    """
    path = Path(path)
    temporary = path.with_name(f".partial-{os.getpid()}-{path.name}")
    with naming(path, temporary):
        temporary.touch()  # fails before the block begins
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any):
    """Writes a value as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        # A lone surrogate, as a file's name may have, becomes its escape in JSON.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


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
    """Names `path` in errors of a block that writes it or `temporary`."""
    try:
        yield
    except OSError as error:
        # A full disk's error has no file name; HDF5's has a memory address as message.
        if error.errno and error.filename in (None, str(temporary)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise


def check_file_to_write(path: str | Path):
    """Raises `OSError` early where a file is to be written, and no file can be."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory, not a file to write.")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{path} cannot be written: {above} is a file.")


def check_absent(path: str | Path):
    """Raises `FileExistsError` if the target of an export exists."""
    if Path(path).exists():
        raise FileExistsError(
            f"{path} exists, and is never overwritten: choose another directory "
            "or remove it."
        )


def check_new_directory(directory: Path):
    """Raises `FileExistsError` unless a directory is empty or does not exist."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise FileExistsError(
            f"{directory} holds something already; a run needs a new or empty "
            "directory, or that of a run to resume. Choose another."
        )


def digest(path: str | Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_directory(path: str | Path):
    """Flushes the file names of a directory to disk, against power cuts."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(descriptor: int, path: str | Path) -> bool:
    """Locks an open file or directory until the process ends.

    Returns False if another process has locked it or moved it.
    """
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def trained_directory(path: str | Path) -> Path:
    """Returns the directory of a trained translator, or raises `FileNotFoundError`.

    The error of an unfinished run has the command that finishes it.
    """
    path = Path(path)
    for name in ("model.keras", "tokenizer", "decoding.json"):
        if (path / name).exists():
            continue
        if name == "model.keras" and (path / "data.json").exists():
            data = json.loads((path / "data.json").read_text(encoding="utf-8"))
            how = data.get("command", "call `train` again with the same arguments")
            now = ""
            if any(path.glob("checkpoints/step-*")):
                now = "`keras-transformer average` makes a model of its checkpoints. "
            raise FileNotFoundError(
                f"{path} is an unfinished run. {now}To finish it: {how}"
            )
        raise FileNotFoundError(
            f"{path} holds no trained translator: {name} is missing."
        )
    return path


def latest_version(path: str | Path) -> Path:
    """Returns the SavedModel at `path`, or the latest of its versions.

    Raises:
        FileNotFoundError: If there is none.
    """
    path = Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    if versions := versions_in(path, "saved_model.pb"):
        return versions[max(versions)]
    raise FileNotFoundError(
        f"{path} holds no SavedModel: neither it nor a numbered directory in it has a "
        "saved_model.pb."
    )


def versions_in(directory: str | Path, content: str = "") -> dict[int, Path]:
    """Returns the numbered entries of a directory, in order.

    TensorFlow Serving takes them for versions of a model. Entries without the file
    `content` are left out.
    """
    paths = [path for path in Path(directory).glob("*") if (path / content).exists()]
    numbered = [p for p in paths if p.name.isascii() and p.name.isdecimal()]
    return dict(sorted((int(path.name), path) for path in numbered))


def version_path(path: str | Path, content: str) -> Path:
    """Returns NAME/VERSION unchanged, and for NAME the path of its next version.

    `content` is a file of every version, which NAME itself must not have.
    """
    path = Path(path)
    if path.name.isascii() and path.name.isdecimal():
        check_absent(path)
        return path
    if (path / content).exists():
        raise FileExistsError(
            f"{path} is itself an export and cannot have versions: remove "
            f"{path / content}, or choose another directory, such as {path.parent}."
        )
    return path / str(max(versions_in(path), default=0) + 1)
