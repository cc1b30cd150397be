"""The numbered versions of a SavedModel, as TensorFlow Serving has them."""

from __future__ import annotations

import os
from pathlib import Path

from keras_transformer.files import check_absent

# What TensorFlow takes for a part of a pattern in the path of a SavedModel.
_OF_PATTERNS = set("[]*?\\") - {os.sep}
PATTERN_WORDS = "[ ] * ? and \\"


def is_pattern(path: str | Path) -> bool:
    """Whether TensorFlow reads a path as a pattern, and finds no file there."""
    return bool(_OF_PATTERNS & set(os.path.abspath(path)))


def check_no_pattern(path: str | Path):
    """Raises `ValueError` if TensorFlow would read a path as a pattern of paths."""
    if is_pattern(path):
        raise ValueError(
            f"The path of a SavedModel must have none of {PATTERN_WORDS}, in which "
            "TensorFlow sees a pattern: nothing could load what is written there. "
            f"Received: {os.path.abspath(path)}"
        )


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
