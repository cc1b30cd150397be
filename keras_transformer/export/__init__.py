"""Writes and reads SavedModels, writes LiteRT files. Needs TensorFlow."""

from keras_transformer.export.litert_model import export_litert_model
from keras_transformer.export.saved_model import (
    ExportedTranslator,
    latest_version,
    write_saved_model,
)

__all__ = [
    "ExportedTranslator",
    "export_litert_model",
    "latest_version",
    "write_saved_model",
]
