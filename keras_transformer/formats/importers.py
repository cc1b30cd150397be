"""Import of trained translators from Marian and Hugging Face.

`marian` and `hugging_face` read a folder; `vocabulary` makes the tokenizers and orders
the rows of the matrices; `imported_model` makes the `Translator`. An option or a tensor
that is not supported is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keras_transformer.formats.hugging_face import import_hugging_face
from keras_transformer.formats.marian import import_marian
from keras_transformer.search.translator import Translator

IMPORTERS: dict[str, Callable[[str | Path], Translator]] = {
    "marian": import_marian,
    "hugging_face": import_hugging_face,
}


def import_model(path: str | Path) -> Translator:
    """Imports a translator of another system; its files determine the format.

    Args:
        path: A path that `import_marian` or `import_hugging_face` takes.

    Returns:
        A `Translator`.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If a library of the extra `import` is not installed.
        ValueError: If the files have neither format, one is damaged or a pointer of
            Git LFS, or an option of the model is not supported.

    Example:
        >>> import_model("opus-mt-en-de").save("runs/opus-en-de")
    """
    return IMPORTERS[format_of(path)](path)


def format_of(path: str | Path) -> str:
    """Returns the format of a folder or file, a key of `IMPORTERS`.

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If it has none of the formats.
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
        "(model.safetensors or pytorch_model.bin)."
    )
