"""Translation of files of any size, in constant memory, resumed after a crash."""

from keras_transformer.apps.bulk.distill import distill
from keras_transformer.apps.bulk.ray_translator import RayTranslator
from keras_transformer.apps.bulk.translate_texts import (
    WINDOW,
    BulkSummary,
    model_fingerprint,
    read_texts,
    translate_file,
    translate_lines,
)
from keras_transformer.apps.bulk.write_pairs import write_pairs

__all__ = [
    "WINDOW",
    "BulkSummary",
    "RayTranslator",
    "distill",
    "model_fingerprint",
    "read_texts",
    "translate_file",
    "translate_lines",
    "write_pairs",
]
