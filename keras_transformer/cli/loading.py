"""What verbs load: modules that bring TensorFlow, pairs of sentences, models."""

from __future__ import annotations

import importlib
import os
import sys

from keras_transformer.cli.flags import given


def load_module(name: str):
    """Imports a module of the package, such as "training".

    Help and bad usage are answered without TensorFlow, so a verb imports what it needs
    when it is called. What TensorFlow's native code prints to standard error meanwhile
    is hidden.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        return importlib.import_module(f"keras_transformer.{name}")
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def load_pairs(files):
    """Returns the `ParallelText` of a flag such as `--train`."""
    if len(files) > 2:
        raise ValueError(
            "Pairs come in two aligned files or in one file of tab-separated lines. "
            f"Received: {len(files)} files"
        )
    return load_module("text").open_pairs(*files)


def is_run(directory) -> bool:
    """Whether it is the directory of a training run, and not a SavedModel."""
    return (directory / "model.keras").exists()


def load_translator(options):
    """Returns the translator of a run directory or of a SavedModel."""
    if not options.model.is_dir():
        raise FileNotFoundError(f"{options.model} is not a directory.")
    if is_run(options.model):
        return load_run(options)
    check_no_decoding_options(options)
    return load_module("export").ExportedTranslator(options.model)


def load_run(options):
    """Returns the translator of a run directory, with the decoding options given."""
    translator_class = load_module("translator").Translator
    translator = translator_class.load(options.model)
    config = translator.config.replace(**given(options, "decoding"))
    return translator_class(translator.model, translator.tokenizers, config)


def check_no_decoding_options(options):
    """Raises `ValueError` if the command line gave decoding options."""
    if changes := given(options, "decoding"):
        raise ValueError(
            "A SavedModel decodes as it was exported; give decoding options to "
            f"`export`. Received: {', '.join(sorted(changes))}"
        )
