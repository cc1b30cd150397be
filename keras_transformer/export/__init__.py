"""SavedModels. Needs TensorFlow."""

from keras_transformer.export.saved_model import (
    ExportedTranslator,
    latest_version,
    write_saved_model,
)

__all__ = ["ExportedTranslator", "latest_version", "write_saved_model"]
