"""Loads the models of a playground. Needs TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keras_transformer.playground.directories import is_run
from keras_transformer.playground.exported_model import ExportedModel
from keras_transformer.playground.live_model import LiveModel
from keras_transformer.playground.played_model import PlayedModel


def load_models(paths: Sequence[str | Path]) -> list[PlayedModel]:
    """Returns the models of paths, each having translated once, so that it is quick.

    Args:
        paths: What `check_models` has let through.

    Raises:
        FileNotFoundError: If a part of one is missing.
        ValueError: If one is no translator, or is damaged.
    """
    return [LiveModel(path) if is_run(path) else ExportedModel(path) for path in paths]
