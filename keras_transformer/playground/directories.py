"""What a playground is given, looked at before anything slow is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keras_transformer.files import versions_in


def check_models(paths: Sequence[str | Path]):
    """Raises an error unless paths are one or two models; loads nothing.

    Args:
        paths: Training runs, or SavedModels: NAME, or NAME/VERSION.

    Raises:
        FileNotFoundError: If one is not there.
        ValueError: If one holds no model, or there are more than two.
    """
    if not 1 <= len(paths) <= 2:
        raise ValueError(
            "A playground must have one model or two, side by side. Received: "
            f"{len(paths)}"
        )
    for path in map(Path, paths):
        if not path.is_dir():
            raise FileNotFoundError(
                f"{path} is not a directory: the playground takes the directory of a "
                "training run, or a SavedModel."
            )
        if not is_run(path) and not _is_saved_model(path):
            raise ValueError(
                f"{path} must be the directory of a training run, with model.keras, "
                "or a SavedModel, with saved_model.pb in it or in a version such as 1. "
                f"Received: {_kind_of(path)}"
            )


def is_run(path: str | Path) -> bool:
    """Whether a directory is that of a training run, and not a SavedModel."""
    return (Path(path) / "model.keras").exists()


def _is_saved_model(path):
    places = [path, *versions_in(path).values()]
    return any((place / "saved_model.pb").is_file() for place in places)


def _kind_of(path):
    if (path / "translator.json").is_file():
        return "an export for LiteRT or for browsers"
    return "neither"
