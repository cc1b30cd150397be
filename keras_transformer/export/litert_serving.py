"""A translator as a LiteRT file for TensorFlow Serving: ids in, ids out.

Stock TensorFlow Serving runs the model.tflite of a version if it is started with
`--prefer_tflite_model`, an experimental flag. This was written after reading its
sources, tflite_session.cc and tflite_interpreter_pool.cc at commit e8be1a742c39, and it
was never run in a server. What the sources ask for:

- The signatures of a file are not read. The server makes one, `serving_default`, of the
  inputs and outputs of the first graph, and names them after their tensors, cut at the
  first ":". The converter calls all outputs alike up to there, so that one would hide
  the other: tensors are renamed here.
- Inputs get their new shapes one after the other, and the graph is laid out after each.
  With one input no shapes can disagree on the way: there is no `lengths`.
- Only built-in operations of LiteRT are there, none of TensorFlow's.

Needs TensorFlow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.export.litert import (
    check_export,
    convert,
    describe,
    digest,
    save_tokenizers,
    signature,
    write_description,
)
from keras_transformer.export.serving_files import write_litert_serving_files
from keras_transformer.files import creating_directory, version_path
from keras_transformer.generation.generator import Generator
from keras_transformer.kernels.keras_private import litert_tensor_names
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text.tokenizer_pair import TokenizerPair

FORMAT = "keras_transformer.litert_serving"
FORMAT_VERSION = 1
SIGNATURE = "serving_default"


def export_litert_serving(
    model: Seq2Seq,
    tokenizers: TokenizerPair,
    config: DecodingConfig,
    path: str | Path,
    quantize: str = "none",
    languages: Sequence[str] | None = None,
    scores: dict | None = None,
) -> Path:
    """Writes a version of a model that TensorFlow Serving serves with LiteRT.

    It holds model.tflite, and for clients the SentencePiece models and translator.json;
    examples/litert_rest_client.py is one. Beside the versions are the server's
    configuration and a docker-compose.yml. B sentences, S and T tokens:

    | signature       | inputs               | outputs                                 |
    |-----------------|----------------------|-----------------------------------------|
    | serving_default | source [B, S], int32 | ids [B, T], int32; scores [B], float32  |

    A row of `source` ends with the end id, then padding.

    Args:
        model: A `Transformer`, or another `Seq2Seq`.
        tokenizers: A `TokenizerPair` with its vocabulary sizes.
        config: How to search; a client cannot change it.
        path: Directory to create, NAME/VERSION, such as "litert_models/en-de/1"; or
            NAME, in which the next version is created.
        quantize: As for `export_litert`.
        languages: Codes of source and target language for the clients, or `None`.
        scores: Scores of the training run for the clients, or `None`.

    Returns:
        The directory created, NAME/VERSION.

    Raises:
        FileExistsError: If it exists.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If an argument is out of range, or LiteRT lacks an operation.
    """
    path = version_path(path, "model.tflite")
    check_export(path, tokenizers, quantize, languages)
    model = model.with_dtype("float32")
    with creating_directory(path) as temporary:
        content = convert(model, {SIGNATURE: _translate(model, config)}, quantize)
        (temporary / "model.tflite").write_bytes(name_tensors(content))
        names = save_tokenizers(tokenizers, temporary)
        files = ("model.tflite", *sorted(set(names.values())))
        description = describe(model, config, names, quantize) | {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "n_best": 1,
            "languages": None if languages is None else list(languages),
            "scores": scores,
            "files": {name: digest(temporary / name) for name in files},
        }
        write_description(temporary, description)
    write_litert_serving_files(path)
    return path


def _translate(model, config):
    """Returns the `tf.function` of the table of `export_litert_serving`."""
    generator = Generator(model, config)
    pad_id = model.config.pad_id

    def translate(source):
        lengths = tf.reduce_sum(tf.cast(source != pad_id, tf.int32), axis=1)
        result = generator.search(source, lengths)
        return {"ids": result.ids[:, 0], "scores": result.scores[:, 0]}

    return signature(translate, ("source",), tf.TensorSpec([None, None], tf.int32))


def name_tensors(content: bytes) -> bytes:
    """Names the tensors of inputs and outputs of a LiteRT file as its signature does.

    Args:
        content: A file with one signature.

    Returns:
        The file, of the same size: constants stay where they are, and so aligned.

    Raises:
        ValueError: If a name is longer than the tensor's, in whose place it goes.
    """
    for name, old in litert_tensor_names(content).items():
        new = name.encode("ascii")
        if len(new) > len(old):
            raise ValueError(
                "The signature's names must not be longer than the tensors'. Received: "
                f"{name!r} for {old.decode()!r}"
            )
        # In the file a string is its length in four bytes, its bytes and a zero.
        content = content.replace(
            struct.pack("<I", len(old)) + old + b"\0",
            struct.pack("<I", len(new)) + new.ljust(len(old) + 1, b"\0"),
        )
    return content
