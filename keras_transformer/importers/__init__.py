"""Weights from other systems: their trained translators as ours.

`marian` and `hugging_face` read a folder: sizes, arrays, the piece of each row, and the
other system's name of each weight. `vocabulary` makes the tokenizers and puts the rows
in our order; `build` makes the `Translator`. An option or a tensor that has no form
here is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keras_transformer.importers.hugging_face import import_hugging_face
from keras_transformer.importers.marian import import_marian
from keras_transformer.translator import Translator

__all__ = [
    "FORMATS",
    "format_of",
    "import_hugging_face",
    "import_marian",
    "import_model",
]

FORMATS: dict[str, Callable[[str | Path], Translator]] = {
    "marian": import_marian,
    "hugging_face": import_hugging_face,
}


def import_model(path: str | Path) -> Translator:
    """Returns a translator of another system, which its files tell.

    Args:
        path: As `import_marian` or `import_hugging_face` takes it.

    Returns:
        A `Translator`.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If a library is not installed: extra `import`.
        ValueError: If it has none of the `FORMATS`, or as that format's function says.

    Example:
        >>> import_model("opus-mt-en-de").save("runs/opus-en-de")
    """
    return FORMATS[format_of(path)](path)


def format_of(path: str | Path) -> str:
    """Returns the name of the format, a key of `FORMATS`, of a folder or a file.

    Raises:
        FileNotFoundError: If there is nothing.
        ValueError: If it is none of them.
    """
    path = Path(path)
    files = [path] if path.is_file() else list(path.iterdir())
    ends = {file.suffix for file in files}
    if ".safetensors" in ends or "pytorch_model.bin" in {file.name for file in files}:
        return "hugging_face"
    if ends & {".npz", ".bin"}:
        return "marian"
    raise ValueError(
        f"{path} must be a folder of Marian (.npz or .bin) or of Hugging Face "
        "(model.safetensors). Received: neither"
    )
