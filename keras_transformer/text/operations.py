"""The door to tensorflow-text: its operations, or an error that says what is missing.

Layers, models and `fit` on arrays do without it, and so does Windows, for which there
are no wheels.
"""

try:
    import tensorflow_text
except ImportError as error:
    raise ImportError(
        "Texts need tensorflow-text, which cannot be imported: pip install "
        "'tensorflow-text>=2.20,!=2.21.0,<2.22'. There is none for Windows, except in "
        "its Subsystem for Linux (WSL). Layers, models and `fit` on arrays do without."
    ) from error

__all__ = ["tensorflow_text"]
