"""Weights from other systems: their trained translators as ours.

A reader a format (`marian`, `hugging_face`, `ctranslate2`) yields a `Description`:
sizes, arrays by our names, pieces by their rows. `vocabularies` makes the tokenizers
of it and the order of the rows, `weights` the model, `translators` the `Translator`.
No reader unpickles anything or runs code from a file, and what a file claims of its
sizes is compared with its own before memory is taken. A model with an option that has
no form here is refused by the option's name.
"""

from keras_transformer.importers.translators import (
    FORMATS,
    check_new,
    format_of,
    import_ctranslate2,
    import_hugging_face,
    import_marian,
    import_model,
    save_run,
)

__all__ = [
    "FORMATS",
    "check_new",
    "format_of",
    "import_ctranslate2",
    "import_hugging_face",
    "import_marian",
    "import_model",
    "save_run",
]
