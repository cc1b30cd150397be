"""One way to open whatever translates, by what stands in its directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.formats.lite_translator import DESCRIPTION, LiteTranslator
from keras_transformer.formats.versions import latest_version
from keras_transformer.search.run_directory import is_run

if TYPE_CHECKING:
    from keras_transformer.formats.saved_model import ExportedTranslator
    from keras_transformer.search.translator import Translator


def load(path: str | Path) -> Translator | ExportedTranslator | LiteTranslator:
    """Opens a translator: a run, or an export that this package can run.

    | path                                              | result               |
    |---------------------------------------------------|----------------------|
    | a run; what `average`, `import` or `save` wrote   | `Translator`         |
    | a SavedModel: NAME/VERSION, or NAME for the latest | `ExportedTranslator` |
    | a LiteRT or ONNX directory                        | `LiteTranslator`     |

    Each decodes as it was saved or exported; `Translator.load` takes other options.

    Args:
        path: A directory.

    Returns:
        A translator, with the methods of `TextTranslator`.

    Raises:
        FileNotFoundError: If nothing there translates, or a run is unfinished.
        ImportError: If a package is missing that the kind needs.
        ValueError: If a file is damaged.

    Example:
        >>> translator = load("runs/en-de")
        >>> translator(["Two men are talking."])
        ['Zwei Männer unterhalten sich.']
    """
    path = Path(path)
    # Each kind needs packages that the others do without.
    if is_run(path):
        from keras_transformer.search.translator import Translator

        return Translator.load(path)
    if (path / DESCRIPTION).is_file():
        return LiteTranslator(path)
    try:
        version = latest_version(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path} must be a training run, a SavedModel, or a LiteRT or ONNX "
            f"directory. Received: {_content_of(path)}"
        ) from error
    from keras_transformer.formats.saved_model import ExportedTranslator

    return ExportedTranslator(version)


def _content_of(path):
    """Says what is there, for an error."""
    if not path.is_dir():
        return "a file" if path.exists() else "nothing is there"
    names = sorted(entry.name for entry in path.iterdir())
    return f"a directory with {', '.join(names[:5]) or 'nothing in it'}"
