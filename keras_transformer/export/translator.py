"""The SavedModel of a translator: strings in, strings out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.export.saved_model import write_saved_model
from keras_transformer.export.sizing import batch_memory
from keras_transformer.generation.pipeline import INPUTS, Pipeline
from keras_transformer.models.seq2seq import Seq2Seq
from keras_transformer.text.tokenizer_pair import TokenizerPair

DTYPES = ("float32", "bfloat16")


def export_translator(
    model: Seq2Seq,
    tokenizers: TokenizerPair,
    config: DecodingConfig,
    path: str | Path,
    dtype: str = "float32",
    jit_compile: bool = False,
    card: str | None = None,
    data: dict[str, Any] | None = None,
) -> Path:
    """Writes a SavedModel that translates strings, for TensorFlow Serving.

    The first axis of every input and output is the batch, B:

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

    Every signature also gives `truncated` [B]: whether a text was longer than `config`
    allows and was cut. Requests for TensorFlow Serving's warm-up are written beside the
    graph, and its configuration files beside the versions, as `export.serving_files`
    says.

    Args:
        model: A `Transformer`, or another `Seq2Seq`.
        tokenizers: A `TokenizerPair` with its vocabulary sizes.
        config: How to search; a request cannot change it.
        path: Directory of a version to create, such as "saved_models/en-de/1"; or of
            the model, "saved_models/en-de", in which the next version is created.
        dtype: "float32", or "bfloat16" for half the memory and, on processors that
            compute with it, more speed.
        jit_compile: Whether XLA compiles the search. That makes it faster, and the
            first request of every new shape slower by many seconds. TensorFlow Serving
            refuses such a model unless it is started with
            `--xla_cpu_compilation_enabled`.
        card: What README.md of the version says, or `None` for no such file.
        data: What assets.extra/training_data.json of the version says, or `None` for
            no such file.

    Returns:
        The directory of the version.

    Raises:
        FileExistsError: If it exists.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If `dtype` is any other.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "A SavedModel is written with the TensorFlow backend. Set "
            "KERAS_BACKEND=tensorflow; every backend reads model.keras files. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    if dtype not in DTYPES:
        raise ValueError(
            f"`dtype` must be one of {', '.join(DTYPES)}. Received: dtype={dtype!r}"
        )
    model = model.with_dtype(dtype)
    # A copy of the weights, laid out as a decoding step multiplies by them.
    decoding_weights = keras.tree.map_structure(
        lambda weight: tf.Variable(weight, trainable=False), model.decoding_weights()
    )
    pipeline = Pipeline(model, tokenizers, config, decoding_weights, jit_compile)
    module = tf.Module(name="translator")
    module.weights = [weight.value for weight in model.weights]
    module.decoding_weights = keras.tree.flatten(decoding_weights)
    module.tables = [*tokenizers.source.tables, *tokenizers.target.tables]
    signatures = {
        name: _signature(pipeline, name, inputs) for name, inputs in INPUTS.items()
    }
    batch = batch_memory(model, config, dtype)
    return write_saved_model(module, signatures, path, jit_compile, card, batch, data)


def _signature(pipeline, name, inputs):
    specs = [
        tf.TensorSpec(spec.shape, spec.dtype, name=key) for key, spec in inputs.items()
    ]
    return tf.function(
        lambda *given: pipeline.run(name, *given),
        input_signature=specs,
        autograph=False,
    )
