"""Reads model.keras files, which may be damaged."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.files import check_archive, is_damage
from keras_transformer.models.transformer import Transformer


def load_model(path: str | Path) -> keras.Model:
    """Returns the model of a file, not compiled; damage raises `ValueError`.

    The options of a `Transformer` are checked before it is built; what goes wrong then
    is no damage, and is raised as Keras or the machine says it.
    """
    path = Path(path)
    kind, claimed = _claimed(path)
    if kind is Transformer:
        _options(path, claimed)
    return keras.saving.load_model(path, compile=False)


def read_config(path: str | Path) -> TransformerConfig:
    """Returns the options of the `Transformer` in a file, without building it."""
    path = Path(path)
    kind, claimed = _claimed(path)
    if kind is not Transformer:
        raise ValueError(
            f"{path} must hold a `Transformer`. Received: {claimed['class_name']}"
        )
    return _options(path, claimed)


def _claimed(path):
    """Returns the class and the configuration in config.json of a whole archive."""
    try:
        # Keras seeks in the weights, and from Python 3.12 on that ends their check.
        check_archive(path)
        with zipfile.ZipFile(path) as archive:
            claimed = json.loads(archive.read("config.json"))
        if not isinstance(claimed, dict):
            raise ValueError("config.json must hold an object")
        return keras.saving.get_registered_object(claimed["registered_name"]), claimed
    except Exception as error:
        if not is_damage(error):
            raise  # The machine failed: the file may be whole.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is damaged or not a Keras model: {reason}") from error


def _options(path, claimed):
    try:
        return TransformerConfig.from_dict(claimed["config"]["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: `config` is bad: {error}") from error
