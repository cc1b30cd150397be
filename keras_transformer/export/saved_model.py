"""SavedModels that take text and return text: how they are written and called."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config.options import check_choice
from keras_transformer.export.model_card import model_card, training_data
from keras_transformer.export.serving_files import (
    model_name,
    write_serving_files,
    write_warmup_requests,
)
from keras_transformer.files import (
    creating_directory,
    version_path,
    versions_in,
    write_json,
)
from keras_transformer.generation.pipeline import INPUTS, Pipeline, as_arrays
from keras_transformer.lite.translator import TextTranslator

CARD = "README.md"
TRAINING_DATA = "assets.extra/training_data.json"
DTYPES = ("float32", "bfloat16")


def export_saved_model(
    translator: Any,
    path: str | Path,
    dtype: str = "float32",
    run: str | Path | None = None,
    languages: Sequence[str] | None = None,
) -> Path:
    """Writes a SavedModel that translates strings, for TensorFlow Serving.

    Tokenizers and search are inside; nothing of this package is needed to load it. The
    first axis of every input and output is the batch, B:

    | signature       | inputs            | outputs                                |
    |-----------------|-------------------|----------------------------------------|
    | serving_default | text              | translation, score                     |
    | nbest           | text              | translations, scores [B, n_best]       |
    | score           | source, target    | log_probability, tokens [B, T],        |
    |                 |                   | token_log_probabilities [B, T] (nats)  |
    | align           | text              | translation, source_tokens [B, S],     |
    |                 |                   | target_tokens [B, T],                  |
    |                 |                   | attention [B, T, S]                    |
    | sample          | text, temperature | translation, score                     |
    |                 | (float32), seed   |                                        |
    |                 | (int64)           |                                        |
    | complete        | text, prefix      | translation, score                     |

    A model without a `DecoderLayer` has no `align`. Every signature also gives
    `truncated` [B]: whether a text was longer than the
    search allows and was cut. Beside the graph stand TensorFlow Serving's warm-up
    requests, the model card (README.md) and what is known of the data
    (assets.extra/training_data.json); beside the versions the server's configuration,
    and what starts it with Docker and Kubernetes, where it is missing.

    A version is written under another name and renamed: a server that watches the
    directory never sees half of one.

    Args:
        translator: A `Translator`; a request cannot change its search.
        path: Directory of a version to create, such as "saved_models/en-de/1"; or of
            the model, "saved_models/en-de", where the next version is created.
        dtype: "float32", or "bfloat16" for half the memory, and more speed on
            processors that compute with it.
        run: Directory of the training run that the translator was loaded from, whose
            data, training and scores the card tells, or `None`.
        languages: Codes of source and target language, for the card, or `None`.

    Returns:
        The directory of the version.

    Raises:
        FileExistsError: If it exists: versions are never overwritten.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range, or a tokenizer has no form in a
            graph.
    """
    check_backend("A SavedModel")
    check_choice("dtype", dtype, DTYPES)
    path = version_path(path, "saved_model.pb")
    tokenizers, config = translator.tokenizers, translator.config
    card = model_card(translator, path, run, languages, dtype)
    known = {} if run is None else training_data(run)
    model = translator.model.with_dtype(dtype)
    # A copy of the weights in the layout that a decoding step multiplies by.
    decoding_weights = keras.tree.map_structure(
        lambda weight: tf.Variable(weight, trainable=False), model.decoding_weights()
    )
    pipeline = Pipeline(model, tokenizers, config, decoding_weights)
    module = tf.Module(name="translator")
    module.weights = [weight.value for weight in model.weights]
    module.decoding_weights = keras.tree.flatten(decoding_weights)
    module.tables = [*tokenizers.source.tables, *tokenizers.target.tables]
    # Made once: warm-up and saving would make these graphs anew.
    signatures = {
        name: signature(
            functools.partial(pipeline.run, name), **inputs
        ).get_concrete_function()
        for name, inputs in pipeline.inputs.items()
    }
    with creating_directory(path) as temporary:
        tf.saved_model.save(module, str(temporary), signatures=signatures)
        write_warmup_requests(temporary, model_name(path), signatures)
        (temporary / CARD).write_text(card, encoding="utf-8")
        if known:
            write_json(temporary / TRAINING_DATA, known)
    write_serving_files(path)
    return path


def check_backend(what: str):
    """Raises `RuntimeError` unless Keras runs on TensorFlow, which `what` needs."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"{what} is written with the TensorFlow backend. Set "
            "KERAS_BACKEND=tensorflow; every backend reads model.keras files. "
            f"Received: backend {keras.backend.backend()!r}"
        )


def signature(function: Callable, **specs: tf.TensorSpec):
    """Returns the `tf.function` of a function whose inputs have names and specs."""
    inputs = [tf.TensorSpec.from_spec(spec, name) for name, spec in specs.items()]
    return tf.function(function, input_signature=inputs, autograph=False)


class ExportedTranslator(TextTranslator):
    """A SavedModel that `Translator.export` wrote, called like the live translator.

    It has the methods of `TextTranslator`.

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
        nbest = self._module.signatures["nbest"].structured_outputs
        self.most = nbest["scores"].shape[1]

    def _run(self, name, *columns, n_best=1, per_head=False):
        if name not in self._module.signatures:
            raise ValueError(f"{self.path} has no signature {name!r}.")
        if per_head:
            raise ValueError(
                "`per_head` must be False for a SavedModel, which gives the heads' "
                "mean. Received: per_head=True"
            )
        inputs = {
            key: tf.constant(column, spec.dtype)
            for column, (key, spec) in zip(columns, INPUTS[name].items(), strict=True)
        }
        return as_arrays(self._module.signatures[name](**inputs))


def latest_version(path: str | Path) -> Path:
    """Returns the SavedModel at `path`, or its latest version if it has versions.

    Raises:
        FileNotFoundError: If there is no SavedModel.
    """
    path = Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    if versions := versions_in(path, "saved_model.pb"):
        return versions[max(versions)]
    raise FileNotFoundError(
        f"{path} holds no SavedModel: neither a saved_model.pb nor a directory "
        "with a version number that has one."
    )
