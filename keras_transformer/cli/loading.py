"""What verbs load: modules that bring TensorFlow, pairs of sentences, models."""

from __future__ import annotations

import importlib
import os

from keras_transformer.cli.flags import given
from keras_transformer.terminal import native_messages_hidden


def load_module(name: str):
    """Imports a module of the package, such as "training".

    Help and bad usage are answered without TensorFlow, so a verb imports what it needs
    when it is called. What TensorFlow's native code prints to standard error meanwhile
    is hidden.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with native_messages_hidden():
        return importlib.import_module(f"keras_transformer.{name}")


def load_pairs(files, columns=None):
    """Returns the `ParallelText` of a flag such as `--train`, and of `--columns`."""
    if len(files) > 2:
        raise ValueError(
            "Pairs come in two aligned files or in one file of tab-separated lines. "
            f"Received: {len(files)} files"
        )
    if columns is None:
        return load_module("text").open_pairs(*files)
    if len(files) > 1:
        raise ValueError(
            f"`--columns` goes with one file that has both. Received: {' '.join(files)}"
        )
    source_key, target_key = columns
    return load_module("text").open_pairs(
        *files, source_key=source_key, target_key=target_key
    )


def is_run(directory) -> bool:
    """Whether it is the directory of a training run, and not a SavedModel."""
    return (directory / "model.keras").exists()


def is_litert(directory) -> bool:
    """Whether it is an export for LiteRT."""
    return (directory / "translator.json").exists()


def load_translator(options):
    """Returns the translator of a run directory, a SavedModel or a LiteRT export."""
    if not options.model.is_dir():
        raise FileNotFoundError(
            f"{options.model} is not a directory: `--model` takes the directory of a "
            "training run, a SavedModel or a LiteRT export."
        )
    if is_run(options.model):
        return load_run(options)
    check_no_decoding_options(options)
    if is_litert(options.model):
        translator_class = load_module("lite").LiteTranslator
        with native_messages_hidden():
            return translator_class(options.model)
    return load_module("export").ExportedTranslator(options.model)


def load_run(options):
    """Returns the translator of a run directory, with the decoding options given."""
    translator_class = load_module("translator").Translator
    return _with_options(translator_class.load(options.model), options)


def load_runs(options):
    """Returns the translator of a run directory, or of several as an ensemble."""
    translator_class = load_module("translator").Translator
    if len(options.model) == 1:
        return _with_options(translator_class.load(*options.model), options)
    return _with_options(translator_class.ensemble(options.model), options)


def _with_options(translator, options):
    config = translator.config.replace(**given(options, "decoding"))
    return type(translator)(translator.model, translator.tokenizers, config)


def check_no_decoding_options(options):
    """Raises `ValueError` if the command line gave decoding options."""
    if changes := given(options, "decoding"):
        raise ValueError(
            "An export decodes as it was written; give decoding options to "
            f"`export`. Received: {', '.join(sorted(changes))}"
        )
