"""LiteRT files from ids to ids, with the search inside. Needs TensorFlow.

`LiteTranslator` runs them without Keras and TensorFlow; phones and browsers run the
same files.
"""

from __future__ import annotations

import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.config.options import check_choice
from keras_transformer.files import (
    check_absent,
    creating_directory,
    digest,
    write_json,
)
from keras_transformer.formats import lite_translator
from keras_transformer.formats.model_card import check_languages
from keras_transformer.formats.saved_model import check_backend
from keras_transformer.formats.versions import check_no_pattern
from keras_transformer.models.own_model import OwnModel
from keras_transformer.models.transformer import Seq2Seq
from keras_transformer.nn.kernels.execution import tracing_for_converters
from keras_transformer.nn.kernels.keras_private import (
    converter_error,
    integer_products_in_floats,
    without_large_constants,
)
from keras_transformer.search import translation
from keras_transformer.search.compiled import as_graph
from keras_transformer.search.generator import Generator
from keras_transformer.search.shortlist import Shortlist
from keras_transformer.text import doubts, sentences, spans
from keras_transformer.text.sentences import sentence_rules
from keras_transformer.text.spans import span_rules

QUANTIZATIONS = ("none", "float16", "int8")
# Source lengths double from here, so that padding at most doubles a source (tokens).
_SHORTEST = 16
# The converter names an operation that LiteRT lacks in one of two ways.
_LACKS = r"error: loc\(callsite\(fused\[\"(\w+):|'tf\.(\w+)' op"


def export_litert(
    translator: Any,
    path: str | Path,
    quantize: str = "none",
    languages: Sequence[str] | None = None,
    fixed_lengths: bool = False,
) -> Path:
    """Writes a directory for `keras_transformer.formats.LiteTranslator`.

    It has model.tflite, the SentencePiece models, translator.json for clients, and
    translate.py, which with the files beside it translates without this package. The
    signatures of model.tflite share their weights. B sentences, S and T tokens and P
    tokens of a prefix are free in every call:

    | signature | inputs                       | outputs                            |
    |-----------|------------------------------|------------------------------------|
    | translate | source [B, S], lengths [B]   | ids [B, 1, T], scores [B, 1]       |
    | nbest     | source, lengths              | ids [B, N, T], scores [B, N]       |
    | complete  | source, lengths,             | ids [B, 1, T], scores [B, 1]       |
    |           | prefix [B, P],               |                                    |
    |           | prefix_lengths [B]           |                                    |
    | sample    | source, lengths,             | ids [B, 1, T], scores [B, 1]       |
    |           | uniforms [B, longest output],|                                    |
    |           | temperature [B]              |                                    |
    | score     | source, target [B, T]        | token_log_probabilities [B, T]     |
    | attention | source, target               | attention [B, H, T, S]             |

    Ids and lengths are int32, everything else float32. A source ends with the end id,
    and padding follows.

    Args:
        translator: A `Translator` with SentencePiece models. A client cannot change its
            search.
        path: Directory to create, such as "lite/en-de".
        quantize: "none"; "float16", weights of half the size; or "int8", weights of a
            quarter, with a scale for each row, and faster products of integers.
        languages: Codes of source and target language, for clients.
        fixed_lengths: Whether the file has, in place of those signatures, the ones of
            `fixed_signatures`, for runtimes that fix every shape, such as LiteRT's
            `CompiledModel` on telephones.

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range, or LiteRT lacks an operation.
    """

    def write(directory, model, signatures):
        content = convert(model, signatures, quantize)
        (directory / "model.tflite").write_bytes(content)

    arguments = path, quantize, languages, fixed_lengths
    return write_directory("keras_transformer.litert.1", write, translator, *arguments)


def write_directory(
    format: str,
    write: Callable,
    translator: Any,
    path: str | Path,
    quantize: str,
    languages: Sequence[str] | None,
    fixed_lengths: bool = False,
) -> Path:
    """Writes a directory for `LiteTranslator`, with what `write` writes into it."""
    path = Path(path)
    check_arguments(translator, path, quantize, languages)
    model = translator.model.with_dtype("float32")
    config = translator.config
    lengths = source_lengths(config.max_source_length) if fixed_lengths else None
    make = fixed_signatures if fixed_lengths else free_signatures
    signatures = make(model, config, translator.shortlist)
    with creating_directory(path) as temporary:
        write(temporary, model, signatures)
        shutil.copyfile(lite_translator.__file__, temporary / "translate.py")
        for module in (translation, sentences, spans, doubts):
            shutil.copy(module.__file__, temporary)
        description = {
            "format": format,
            **describe(translator, temporary, quantize, languages),
            "lengths": lengths,
            "files": digests(temporary),
        }
        write_json(temporary / lite_translator.DESCRIPTION, description)
    return path


def free_signatures(
    model: Seq2Seq, config: DecodingConfig, shortlist: Shortlist | None
) -> dict:
    """Returns the `tf.function` of each signature in the table of `export_litert`."""
    generator = Generator(model, config, shortlist=shortlist)
    best = found_by(generator.search)
    several = found_by(generator.search, n_best=config.num_best)
    matrix = tf.TensorSpec([None, None], tf.int32)
    lengths = tf.TensorSpec([None], tf.int32)
    source = {"source": matrix, "lengths": lengths}
    pair = {"source": matrix, "target": matrix}
    uniforms = tf.TensorSpec([None, config.longest_output], tf.float32)
    temperature = tf.TensorSpec([None], tf.float32)
    return {
        "translate": as_graph(best, source),
        "nbest": as_graph(several, source),
        "complete": as_graph(
            best, source | {"prefix": matrix, "prefix_lengths": lengths}
        ),
        "sample": as_graph(
            found_by(generator.sample),
            source | {"uniforms": uniforms, "temperature": temperature},
        ),
        "score": as_graph(
            lambda *ids: {"token_log_probabilities": generator.score(*ids)}, pair
        ),
        "attention": as_graph(
            lambda *ids: {"attention": generator.attention(*ids)}, pair
        ),
    }


def fixed_signatures(
    model: Seq2Seq, config: DecodingConfig, shortlist: Shortlist | None
) -> dict:
    """Returns the `tf.function` of a signature for each of some source lengths L.

    A client takes the shortest that a sentence fits in and pads. N translations, T
    tokens:

    | signature   | inputs                      | outputs                           |
    |-------------|-----------------------------|-----------------------------------|
    | translate_L | source [1, L], lengths [1]  | ids [1, N, T], scores [1, N]      |
    """
    if shortlist is not None:
        raise ValueError("Fixed shapes allow no shortlist.")
    generator = Generator(model, config, fixed_shapes=True)
    search = found_by(generator.search, n_best=config.num_best)
    return {
        f"translate_{length}": as_graph(
            search,
            {
                "source": tf.TensorSpec([1, length], tf.int32),
                "lengths": tf.TensorSpec([1], tf.int32),
            },
        )
        for length in source_lengths(config.max_source_length)
    }


def source_lengths(longest: int) -> list[int]:
    """Returns the sources' lengths of the signatures, such as [16, 32, 64, 100]."""
    doubled = (_SHORTEST * 2**i for i in itertools.count())
    return [*itertools.takewhile(lambda length: length < longest, doubled), longest]


def check_arguments(
    translator: Any, path: Path, quantize: str, languages: Sequence[str] | None
):
    """Checks the arguments of the exports for LiteRT, browsers and ONNX."""
    check_backend("This export")
    check_choice("quantize", quantize, QUANTIZATIONS)
    check_languages(languages)
    translator.tokenizers.check_sentencepiece("This export")
    if isinstance(translator.generator.searchable, OwnModel):
        raise ValueError(
            "This export needs a `Transformer`, which decodes step by step; a "
            f"SavedModel takes any model. Received: {translator.model.name!r}"
        )
    check_absent(path)


def found_by(search: Callable, **options: Any) -> Callable:
    """Returns a function of the ids and scores that a search finds."""

    def found(*inputs):
        result = search(*inputs, **options)
        return {"ids": result.ids, "scores": result.scores}

    return found


def convert(model: keras.Model, signatures: dict, quantize: str = "none") -> bytes:
    """Returns the content of a LiteRT file with a model's signatures."""
    check_no_pattern(tempfile.gettempdir())  # The converter reads a SavedModel there.
    # Keras' `model.export(path, format="litert")` writes one signature only.
    module = tf.Module(name="translator")
    # Weights that the module does not hold would be silently left out.
    module.weights = [weight.value for weight in model.variables]
    with tracing_for_converters(), tempfile.TemporaryDirectory() as folder:
        with integer_products_in_floats():
            tf.saved_model.save(module, folder, signatures=signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=list(signatures)
        )
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        without_large_constants(converter)
        if quantize != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            return converter.convert()
        except converter_error() as error:
            named = re.findall(_LACKS, str(error))
            names = sorted({name for pair in named for name in pair if name})
            what = ", ".join(names) or str(error).splitlines()[0]
            raise ValueError(
                f"A {type(model).__name__} with these options cannot become a LiteRT "
                "file (see `docs/devices.md`). Received: operations that LiteRT lacks, "
                f"{what:.200}"
            ) from error


def describe(
    translator: Any, directory: Path, quantize: str, languages: Sequence[str] | None
) -> dict[str, Any]:
    """Writes the SentencePiece models; returns the facts that a client needs."""
    sizes = translator.model.config
    config = translator.config
    special = ("pad_id", "start_id", "end_id", "unknown_id")
    return {
        "special_ids": {name: getattr(sizes, name) for name in special},
        "tokenizers": translator.tokenizers.save_files(directory),
        "max_source_length": config.max_source_length,
        "longest_output": config.longest_output,
        "n_best": config.num_best,
        "sentence_rules": sentence_rules(translator.tokenizers.abbreviations),
        "carries_spans": translator.tokenizers.carry_spans,
        "span_rules": span_rules(translator.tokenizers.carry_spans),
        "search": config.to_dict(),
        "quantize": quantize,
        "languages": None if languages is None else list(languages),
    }


def digests(directory: Path) -> dict[str, str]:
    """Returns the SHA-256 of each large file in a directory, by relative path."""
    kinds = (".tflite", ".onnx", ".bin", ".model", ".wasm")
    paths = sorted(path for path in directory.rglob("*") if path.suffix in kinds)
    return {path.relative_to(directory).as_posix(): digest(path) for path in paths}
