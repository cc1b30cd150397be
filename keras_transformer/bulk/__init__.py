"""Translates files of any size in constant memory, and continues after a crash."""

from keras_transformer.bulk.partial_output import PartialOutput
from keras_transformer.bulk.translate import (
    WINDOW,
    BulkSummary,
    model_fingerprint,
    read_texts,
    save_translations,
    translate_file,
    translate_lines,
    translate_window,
    windows_of,
)

__all__ = [
    "WINDOW",
    "BulkSummary",
    "PartialOutput",
    "model_fingerprint",
    "read_texts",
    "save_translations",
    "translate_file",
    "translate_lines",
    "translate_window",
    "windows_of",
]
