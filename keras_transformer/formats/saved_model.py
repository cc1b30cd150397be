"""SavedModels from text to text, the files of a server beside them, and their use."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config.options import check_choice
from keras_transformer.files import creating_directory, replacing, write_json
from keras_transformer.formats.model_card import filled, model_card, model_name
from keras_transformer.formats.versions import (
    check_no_pattern,
    latest_version,
    load_saved_model,
    version_path,
)
from keras_transformer.search.compiled import as_graph
from keras_transformer.search.generator import Generator
from keras_transformer.search.run_directory import example_sources, training_data
from keras_transformer.search.string_search import StringSearch
from keras_transformer.search.strings import SIGNATURES, as_arrays, signatures_of
from keras_transformer.search.translation import TextTranslator
from keras_transformer.text.in_graph import with_limit

# Files for TensorFlow Serving, Docker and Kubernetes beside the versions.
NAMES = (
    "models.config",
    "batching_parameters.txt",
    "monitoring.config",
    "docker-compose.yml",
    "docker-compose.gpu.yml",
    "kubernetes.yml",
)
_SENTENCES = (
    "Good morning.",
    "The train to the coast leaves in ten minutes from the other platform.",
    "When the rain stopped at last, the children ran out of the house, and their "
    "grandmother, who had been waiting for this moment since noon, opened every "
    "window and sat down with a cup of tea.",
)
# A server runs these requests while it loads a version, so that no client waits for
# TensorFlow's plans. Each sentence by itself, then eight together: a plan serves every
# size of a batch. max_batch_size in templates/batching_parameters.txt is no smaller.
_EIGHT = [_SENTENCES[i % 3] for i in range(8)]
BATCHES = [*([sentence] for sentence in _SENTENCES), _EIGHT]


def export_saved_model(
    translator: Any,
    path: str | Path,
    dtype: str = "float32",
    run: str | Path | None = None,
    languages: Sequence[str] | None = None,
    no_examples: bool = False,
) -> Path:
    """Writes a SavedModel that translates strings, for TensorFlow Serving.

    It contains the tokenizers and the search; loading it does not need this package.
    The first axis of every input and output is the batch, B:

    | signature       | inputs            | outputs                                |
    |-----------------|-------------------|----------------------------------------|
    | serving_default | text              | translation, score; of its sentences   |
    |                 |                   | sources, translations, scores,         |
    |                 |                   | sentence_doubts [B, K]                 |
    | nbest           | text              | translations, scores [B, n_best]       |
    | score           | source, target    | log_probability, tokens [B, T],        |
    |                 |                   | token_log_probabilities [B, T] (nats)  |
    | align           | text              | translation, score,                    |
    |                 |                   | source_tokens [B, S],                  |
    |                 |                   | target_tokens [B, T],                  |
    |                 |                   | attention [B, T, S]                    |
    | sample          | text, temperature | translation, score                     |
    |                 | [B] (float32),    |                                        |
    |                 | seed [B] (int64)  |                                        |
    | complete        | text, prefix      | translation, score                     |

    A model without a `DecoderLayer` has no `align`. Every signature also returns
    `truncated` [B]: whether a text was cut at the longest source. All translations have
    `doubts` [B] ([B, n_best] of `nbest`): words with a space between. A translator that
    has learned `doubt_steps` also returns `doubt`, of that shape: the share of wrong
    translations at the score. With a vocabulary that has pieces for spans, they have
    `lost` [B, ...]: the URLs, tags and the like that they lack, padded with "".

    The version also has warm-up requests, a model card (README.md), and in assets.extra
    training_data.json and page.json, for the page of `serve`. Beside the versions the
    first export writes the configuration of TensorFlow Serving and files for Docker and
    Kubernetes. A server that watches the directory never sees half a version.

    Args:
        translator: A `Translator`. A request cannot change its search.
        path: Directory to create: a version, such as "saved_models/en-de/1", or
            "saved_models/en-de" for the next version.
        dtype: "float32"; or "bfloat16" for half the memory, and more speed on
            processors that support it.
        run: Directory of the translator's training run, for model card and page.
        languages: Codes of source and target language, for model card and page.
        no_examples: Whether card and page go without the sentences of the run's
            validation or test data that they show otherwise.

    Returns:
        The directory of the version.

    Raises:
        FileExistsError: If the version exists; none is ever overwritten.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range, or TensorFlow would read `path` as a
            pattern.
    """
    check_backend("A SavedModel")
    check_choice("dtype", dtype, ("float32", "bfloat16"))
    check_no_pattern(path)
    path = version_path(path, "saved_model.pb")
    tokenizers = translator.tokenizers
    card = model_card(translator, path, run, languages, dtype, no_examples)
    known = {} if run is None else training_data(run)
    model = translator.generator.searchable.with_dtype(dtype)
    # Copies of weights in the layout of a decoding step.
    decoding_weights = keras.tree.map_structure(
        lambda weight: tf.Variable(weight, trainable=False), model.decoding_weights()
    )
    generator = Generator(
        model,
        config=translator.config,
        weights=decoding_weights,
        shortlist=translator.shortlist,
    )
    search = StringSearch(generator, tokenizers)
    module = tf.Module(name="translator")
    module.weights = [weight.value for weight in model.weights]
    module.decoding_weights = keras.tree.flatten(decoding_weights)
    module.tables = [*tokenizers.source.tables, *tokenizers.target.tables]
    signatures = {}
    for name, each in signatures_of(model).items():
        function = as_graph(functools.partial(each.call, search), each.inputs)
        # Traced once, for both warm-up and saving.
        signatures[name] = function.get_concrete_function()
    with creating_directory(path) as temporary:
        tf.saved_model.save(module, str(temporary), signatures=signatures)
        write_warmup_requests(temporary, model_name(path), signatures)
        (temporary / "README.md").write_text(card, encoding="utf-8")
        if known:
            write_json(temporary / "assets.extra/training_data.json", known)
        examples = [] if run is None or no_examples else example_sources(run)
        facts = {"languages": languages and list(languages), "examples": examples}
        write_json(temporary / "assets.extra/page.json", facts)
    write_serving_files(path)
    return path


def check_backend(what: str):
    """Raises `RuntimeError` unless the backend is TensorFlow, which `what` needs."""
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"{what} needs the TensorFlow backend: set KERAS_BACKEND=tensorflow. It "
            "reads the model.keras files of every backend. Received: backend "
            f"{keras.backend.backend()!r}"
        )


def write_serving_files(version: Path):
    """Writes the files of `NAMES` beside a version, where they are missing."""
    name = model_name(version)
    # Kubernetes' names of a Service: at most 63 small letters, digits and "-", the
    # first a letter.
    word = re.sub("[^a-z0-9]+", "-", f"translator-{name}".lower())[:63].strip("-")
    for template in NAMES:
        file = version.parent / template
        if not file.exists():
            with replacing(file) as temporary:
                text = filled(template, name=name, object=word)
                temporary.write_text(text, encoding="utf-8", newline="\n")


def write_warmup_requests(directory: Path, name: str, signatures: dict):
    """Writes warm-up requests for concrete functions of inputs of shape [B]."""
    file = directory / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, function in signatures.items():
            specs = tf.nest.flatten(function.structured_input_signature)
            for texts in BATCHES:
                inputs = {}
                for spec in specs:
                    # Other inputs are temperatures and seeds.
                    values = texts if spec.dtype == tf.string else [1] * len(texts)
                    inputs[spec.name] = tf.make_tensor_proto(values, spec.dtype)
                writer.write(_prediction_log(name, signature, inputs))


def _prediction_log(name, signature, inputs):
    """Returns a serialized tensorflow.serving.PredictionLog of one request."""
    # Field numbers of prediction_log.proto, predict.proto and model.proto in
    # tensorflow_serving/apis, a package that nothing else here needs.
    model_spec = _field(1, name.encode("utf-8")) + _field(3, signature.encode("utf-8"))
    request = _field(1, model_spec)
    for key, tensor in inputs.items():
        content = tensor.SerializeToString()
        request += _field(2, _field(1, key.encode("utf-8")) + _field(2, content))
    return _field(6, _field(1, request))  # predict_log { request { ... } }


def _field(number, content):
    """Returns a protocol-buffer field: string, bytes or message, number up to 15."""
    length = len(content)
    size = bytearray()
    while length > 127:  # A varint: seven bits a byte, the lowest ones first.
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + content


class ExportedTranslator(TextTranslator):
    """A SavedModel of `Translator.export` with the methods of a `TextTranslator`.

    Args:
        path: NAME/VERSION, or NAME for the latest version.

    Attributes:
        doubt_above: `doubt` above which a translation has the doubt "score"; `None` is
            that of the export.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ImportError: If tensorflow-text is not installed.
        ValueError: If it is damaged or no export of a translator.

    Example:
        >>> translator = load("saved_models/en-de/1")
        >>> translator(["A man is sleeping."])
        ['Ein Mann schläft.']
    """

    doubt_above: float | None = None

    def __init__(self, path: str | Path):
        self.path = latest_version(path)
        self._module = load_saved_model(self.path)
        if "nbest" not in self._module.signatures:
            raise ValueError(
                f"{self.path} must be an export of a `Translator`. Received: the "
                f"signatures {', '.join(sorted(self._module.signatures)) or 'none'}"
            )
        nbest = self._module.signatures["nbest"].structured_outputs
        self.most = nbest["scores"].shape[1]
        self.carries_spans = "lost" in nbest

    def run(
        self, name: str, *columns: Any, n_best: int = 1, per_head: bool = False
    ) -> dict[str, Any]:
        """As `TextTranslator.run`."""
        if name not in self._module.signatures:
            raise ValueError(f"{self.path} has no signature {name!r}.")
        if per_head:
            raise ValueError(
                "`per_head` must be False for a SavedModel, which only returns the "
                "mean over heads. Received: per_head=True"
            )
        inputs = SIGNATURES[name].tensors(columns)
        outputs = self._module.signatures[name](**inputs)
        return as_arrays(with_limit(outputs, self.doubt_above))
