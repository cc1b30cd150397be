"""Writing and reading SavedModels that take text and return text."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.export.serving_files import model_name, write_serving_files
from keras_transformer.export.sizing import BatchMemory, server_memory
from keras_transformer.export.warmup_requests import write_warmup_requests
from keras_transformer.files import creating_directory, version_path, versions_in
from keras_transformer.generation.results import Translation


def write_saved_model(
    module: tf.Module,
    signatures: dict,
    path: str | Path,
    jit_compile: bool = False,
    card: str | None = None,
    batch: BatchMemory | None = None,
    data: dict[str, Any] | None = None,
) -> Path:
    """Writes a SavedModel whole or not at all.

    It is written under a temporary name beside `path` and renamed, so that a server
    that watches the directory never sees half of one.

    Args:
        module: What the signatures use (variables, tokenizers), as attributes.
        signatures: Signature names and their `tf.function`s.
        path: Directory to create, NAME/VERSION with a whole number as VERSION; or NAME,
            in which the next version is created.
        jit_compile: Whether XLA compiles a part of the graph.
        card: What README.md beside the graph says of the model, or `None` for no such
            file. A server passes over it; a hub shows it.
        batch: What a batch of the server keeps, of `sizing.batch_memory`, for the
            limits of memory in the server's files; or `None` for no limits.
        data: What assets.extra/training_data.json says, as `RunFacts.training_data`
            returns it, or `None` for no such file. A server passes over it too.

    Returns:
        The directory created, NAME/VERSION.

    Raises:
        FileExistsError: If it exists: versions are never overwritten.
    """
    path = version_path(path, "saved_model.pb")
    # Made once: both of their uses below would make these graphs anew.
    signatures = {
        name: function.get_concrete_function() for name, function in signatures.items()
    }
    # A server reads whole numbers as versions and passes over other names.
    with creating_directory(path) as temporary:
        tf.saved_model.save(module, str(temporary), signatures=signatures)
        write_warmup_requests(temporary, model_name(path), signatures, jit_compile)
        if card is not None:
            (temporary / CARD).write_text(card, encoding="utf-8")
        if data is not None:
            text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
            (temporary / TRAINING_DATA).write_text(text, encoding="utf-8")
    memory = None if batch is None else server_memory(path, batch)
    write_serving_files(path, jit_compile, memory)
    return path


CARD = "README.md"
TRAINING_DATA = "assets.extra/training_data.json"


class ExportedTranslator:
    """A SavedModel that `Translator.export` wrote, called like the live translator.

    Args:
        path: Directory of the SavedModel: NAME/VERSION, or NAME for its latest version.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ImportError: If tensorflow-text is not installed.

    Example:
        >>> translator = ExportedTranslator("saved_models/en-de/1")
        >>> translator(["A man is sleeping."])
        ['Ein Mann schläft.']
    """

    def __init__(self, path: str | Path):
        # Registers the operations on text that the graph has.
        importlib.import_module("keras_transformer.text.tokenizer")
        self.path = latest_version(path)
        self._module = tf.saved_model.load(str(self.path))

    def __call__(self, texts: Sequence[str], batch_size: int = 32) -> list[str]:
        """Translates texts.

        Args:
            texts: Sentences.
            batch_size: Sentences translated at a time.

        Returns:
            One translation for each text, in order.

        Raises:
            TypeError: If `texts` is not a sequence of strings.
            ValueError: If `batch_size` is less than 1.
        """
        rows = self._rows("serving_default", texts, batch_size)
        return [row["translation"].decode("utf-8") for row in rows]

    def translate(
        self, texts: Sequence[str], n_best: int = 1, batch_size: int = 32
    ) -> list[list[Translation]]:
        """Translates texts, with scores and alternatives.

        Args:
            texts: Sentences.
            n_best: Translations of each text, at most the export's `n_best`.
            batch_size: Sentences translated at a time.

        Returns:
            As `Translator.translate`.

        Raises:
            TypeError: If `texts` is not a sequence of strings.
            ValueError: If `n_best` or `batch_size` is out of range.
        """
        if n_best == 1:
            rows = self._rows("serving_default", texts, batch_size)
            return [[Translation.from_row(row)] for row in rows]
        found = []
        for row in self._rows("nbest", texts, batch_size):
            most = len(row["scores"])
            if not 1 <= n_best <= most:
                raise ValueError(
                    f"`n_best` must be from 1 to {most}, the number that was exported. "
                    f"Received: n_best={n_best}"
                )
            found.append(Translation.several_from_row(row)[:n_best])
        return found

    def _rows(self, signature, texts, batch_size):
        """Yields the outputs of a signature for each text."""
        check_texts(texts, batch_size)
        run = self._module.signatures[signature]
        for start in range(0, len(texts), batch_size):
            batch = tf.constant(list(texts[start : start + batch_size]), tf.string)
            outputs = {name: value.numpy() for name, value in run(text=batch).items()}
            for i in range(len(batch)):
                yield {name: values[i] for name, values in outputs.items()}


def check_texts(texts: Sequence[str], batch_size: int):
    """Raises an error unless `texts` are strings and `batch_size` is positive."""
    if isinstance(texts, (str, bytes)) or not all(
        isinstance(text, str) for text in texts
    ):
        raise TypeError(
            "`texts` must be a sequence of strings, such as ['A sentence.']. "
            f"Received: {texts!r:.100}"
        )
    if batch_size < 1:
        raise ValueError(
            f"`batch_size` must be at least 1. Received: batch_size={batch_size}"
        )


def latest_version(path: str | Path) -> Path:
    """Returns the SavedModel at `path`, or its latest version if it has versions.

    Raises:
        FileNotFoundError: If there is no SavedModel.
    """
    path = Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    for version in reversed(versions_in(path).values()):
        if (version / "saved_model.pb").is_file():
            return version
    raise FileNotFoundError(
        f"{path} holds no SavedModel: neither a saved_model.pb nor a directory "
        "with a version number that has one."
    )
