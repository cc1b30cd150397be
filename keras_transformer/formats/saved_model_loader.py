"""Loads a SavedModel as TensorFlow does, with clear errors."""

from pathlib import Path

import tensorflow as tf

# Loading a SavedModel needs the text operations that this import registers.
import tensorflow_text  # noqa: F401

from keras_transformer.formats.versions import PATTERN_WORDS, is_pattern


def load_saved_model(path: Path):
    """Returns the module of a SavedModel; a damaged one is a `ValueError`."""
    try:
        return tf.saved_model.load(str(path))
    except (IndexError, OSError, ValueError, tf.errors.OpError) as error:
        if isinstance(error, FileNotFoundError) and is_pattern(path):
            raise FileNotFoundError(
                f"{path} has one of {PATTERN_WORDS}, in which TensorFlow sees a "
                "pattern: move the SavedModel, or give a link to it."
            ) from error
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} cannot be loaded: it is damaged or of another kind. Copy or "
            f"export it again. Received: {reason:.300}"
        ) from error
