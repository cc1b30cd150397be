"""SavedModels: their numbered versions, as TensorFlow Serving has them, and loading."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from keras_transformer.files import check_absent

# What TensorFlow takes for a part of a pattern in the path of a SavedModel.
_OF_PATTERNS = set("[]*?\\") - {os.sep}
_PATTERN_WORDS = "[ ] * ? and \\"


def _is_pattern(path):
    """Whether TensorFlow reads a path as a pattern, and finds no file there."""
    return bool(_OF_PATTERNS & set(os.path.abspath(path)))


def check_no_pattern(path: str | Path):
    """Raises `ValueError` if TensorFlow would read a path as a pattern of paths."""
    if _is_pattern(path):
        raise ValueError(
            f"The path of a SavedModel must have none of {_PATTERN_WORDS}, in which "
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


def load_saved_model(path: Path) -> Any:
    """Returns the module of a SavedModel; a damaged one is a `ValueError`."""
    import tensorflow as tf

    # Loading needs the text operations that this import registers.
    import tensorflow_text  # noqa: F401

    try:
        return tf.saved_model.load(str(path))
    except (IndexError, OSError, ValueError, tf.errors.OpError) as error:
        if isinstance(error, FileNotFoundError) and _is_pattern(path):
            raise FileNotFoundError(
                f"{path} has one of {_PATTERN_WORDS}, in which TensorFlow sees a "
                "pattern: move the SavedModel, or give a link to it."
            ) from error
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} cannot be loaded: it is damaged or of another kind. Copy or "
            f"export it again. Received: {reason:.300}"
        ) from error
