"""A translator as one LiteRT file: ids in, ids out, the search inside.

`keras_transformer.lite` translates with it, on devices that have neither Keras nor
TensorFlow; phones and browsers do with the same file. Needs TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.files import check_absent, creating_directory
from keras_transformer.generation.generator import Generator
from keras_transformer.kernels.execution import tracing_for_litert
from keras_transformer.kernels.keras_private import (
    converter_error,
    integer_products_in_floats,
    without_large_constants,
)
from keras_transformer.lite import translator as lite
from keras_transformer.lite.translator import DESCRIPTION, FORMAT, FORMAT_VERSION
from keras_transformer.models.seq2seq import Seq2Seq

if TYPE_CHECKING:  # A LiteRT file of a model without texts needs no tensorflow-text.
    from keras_transformer.text.tokenizer_pair import TokenizerPair

QUANTIZATIONS = ("none", "float16", "int8")


def export_litert(
    model: Seq2Seq,
    tokenizers: TokenizerPair,
    config: DecodingConfig,
    path: str | Path,
    quantize: str = "none",
    languages: Sequence[str] | None = None,
    scores: dict | None = None,
) -> Path:
    """Writes a directory that `keras_transformer.lite.LiteTranslator` translates with.

    It holds model.tflite, the SentencePiece models, translate.py, which translates on a
    machine without this package, and translator.json, which tells a client what it
    needs to know. The signatures of model.tflite share their weights; B sentences, S
    and T tokens, P tokens of a prefix, all of them free in every call:

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

    Ids are int32, a source ends with the end id, then padding; all else is float32.

    Args:
        model: A `Transformer`, or another `Seq2Seq`.
        tokenizers: SentencePiece models, a `TokenizerPair` with its vocabulary sizes.
        config: How to search; a client cannot change it.
        path: Directory to create, such as "lite/en-de".
        quantize: "none"; "float16", weights of half the size; or "int8", weights of a
            quarter, each row with a scale of its own, and products of integers, which
            are faster.
        languages: Codes of source and target language for the clients, or `None`.
        scores: Scores of the training run for the clients, or `None`.

    Returns:
        `path`.

    Raises:
        FileExistsError: If `path` exists.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range, or LiteRT lacks an operation.
    """
    path = Path(path)
    check_export(path, tokenizers, quantize, languages)
    model = model.with_dtype("float32")
    with creating_directory(path) as temporary:
        content = convert(model, signatures_of(model, config), quantize)
        (temporary / "model.tflite").write_bytes(content)
        names = save_tokenizers(tokenizers, temporary)
        files = ("model.tflite", *sorted(set(names.values())))
        description = describe(model, config, names, quantize) | {
            "languages": None if languages is None else list(languages),
            "scores": scores,
            "files": {name: digest(temporary / name) for name in files},
        }
        shutil.copyfile(lite.__file__, temporary / "translate.py")
        write_description(temporary, description)
    return path


def check_export(
    path: Path,
    tokenizers: TokenizerPair,
    quantize: str,
    languages: Sequence[str] | None,
):
    """Checks what every export of LiteRT files needs.

    Args:
        path: As for `export_litert`.
        tokenizers: As for `export_litert`.
        quantize: As for `export_litert`.
        languages: As for `export_litert`.

    Raises:
        FileExistsError: If `path` exists.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range.
    """
    check_conversion(quantize)
    tokenizers.check_sentencepiece("An export for LiteRT")
    check_absent(path)
    if languages is not None and len(languages) != 2:
        raise ValueError(
            "`languages` must be those of source and target. Received: "
            f"languages={languages!r}"
        )


def check_conversion(quantize: str):
    """Checks what every conversion needs.

    Args:
        quantize: As for `export_litert`.

    Raises:
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If `quantize` is unknown.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "A LiteRT file is written with the TensorFlow backend. Set "
            "KERAS_BACKEND=tensorflow; model.keras files fit every backend. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    if quantize not in QUANTIZATIONS:
        raise ValueError(
            f"`quantize` must be one of {', '.join(QUANTIZATIONS)}. Received: "
            f"quantize={quantize!r}"
        )


def signatures_of(model: Seq2Seq, config: DecodingConfig) -> dict:
    """Returns the functions from ids to ids of a translator.

    Args:
        model: A `Transformer`, or another `Seq2Seq`.
        config: How to search.

    Returns:
        The `tf.function` of each signature in the table of `export_litert`.
    """
    generator = Generator(model, config)
    n_best = config.n_best or config.beam_size
    matrix, vector = tf.TensorSpec([None, None], tf.int32), _vector(tf.int32)
    source, pair = (matrix, vector), (matrix, matrix)
    uniforms = tf.TensorSpec([None, config.longest_output], tf.float32)
    return {
        "translate": signature(found_by(generator.search), SOURCE, *source),
        "nbest": signature(
            found_by(functools.partial(generator.search, n_best=n_best)),
            SOURCE, *source,
        ),
        "complete": signature(
            found_by(generator.search),
            (*SOURCE, "prefix", "prefix_lengths"), *source, *source,
        ),
        "sample": signature(
            found_by(generator.sample),
            (*SOURCE, "uniforms", "temperature"),
            *source, uniforms, _vector(tf.float32),
        ),
        "score": signature(
            lambda *ids: {"token_log_probabilities": generator.score(*ids)},
            ("source", "target"), *pair,
        ),
        "attention": signature(
            lambda *ids: {"attention": generator.attention(*ids)},
            ("source", "target"), *pair,
        ),
    }  # fmt: skip


SOURCE = ("source", "lengths")


def _vector(dtype):
    return tf.TensorSpec([None], dtype)


def found_by(search: Callable) -> Callable:
    """Returns a function with the ids and scores that a search finds."""

    def found(*inputs):
        result = search(*inputs)
        return {"ids": result.ids, "scores": result.scores}

    return found


def signature(function: Callable, names: Sequence[str], *specs: tf.TensorSpec):
    """Returns the `tf.function` of a function whose inputs have names and specs."""
    inputs = [
        tf.TensorSpec(spec.shape, spec.dtype, name=name)
        for name, spec in zip(names, specs, strict=True)
    ]
    return tf.function(function, input_signature=inputs, autograph=False)


def convert(model, signatures: dict, quantize: str = "none") -> bytes:
    """Returns the content of a LiteRT file with some signatures.

    Args:
        model: The model whose weights they use.
        signatures: Their names and `tf.function`s.
        quantize: As for `export_litert`.

    Raises:
        ValueError: If LiteRT lacks an operation of the model or of the search.
    """
    module = tf.Module(name="translator")
    # A weight that the module does not hold would be left out without a word.
    module.weights = [weight.value for weight in model.variables]
    with tracing_for_litert(), tempfile.TemporaryDirectory() as folder:
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
            raise ValueError(_explain(model, str(error))) from error


def _explain(model, message):
    """Returns the converter's error in one line: whose operation, and which."""
    found = re.findall(r"error: loc\(callsite\(fused\[\"(\w+):|'tf\.(\w+)' op", message)
    operations = sorted({name for names in found for name in names if name})
    return (
        f"A {type(model).__name__} with these options cannot become a LiteRT "
        "file; `docs/litert.md` says what can. Received: operations that LiteRT lacks, "
        f"{', '.join(operations) or message.splitlines()[0]:.200}"
    )


def save_tokenizers(tokenizers: TokenizerPair, directory: Path) -> dict[str, str]:
    """Writes the SentencePiece models; returns the file of each side."""
    sides = {"source": tokenizers.source, "target": tokenizers.target}
    is_joint = tokenizers.source is tokenizers.target
    names = {side: f"{'joint' if is_joint else side}.model" for side in sides}
    for side, tokenizer in sides.items():
        tokenizer.save(directory / names[side])
    return names


def describe(model: Seq2Seq, config: DecodingConfig, names: dict, quantize: str):
    """Returns what translator.json says, without the files' digests."""
    sizes = model.config
    special = ("pad_id", "start_id", "end_id", "unknown_id")
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "special_ids": {name: getattr(sizes, name) for name in special},
        "tokenizers": names,
        "max_source_length": config.max_source_length,
        "longest_output": config.longest_output,
        "n_best": config.n_best or config.beam_size,
        "search": dataclasses.asdict(config),
        "quantize": quantize,
    }


def write_description(directory: Path, description: dict):
    """Writes translator.json."""
    text = json.dumps(description, indent=2, ensure_ascii=False)
    (directory / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
