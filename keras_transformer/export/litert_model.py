"""A model with an output of its own as one LiteRT file: tagger, classifier, and so on.

A language model's file also continues texts. A translator's is that of `litert`. Needs
TensorFlow.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.export.litert import (
    check_conversion,
    convert,
    found_by,
    signature,
)
from keras_transformer.files import check_not_directory, replacing
from keras_transformer.generation.generator import LanguageSampler
from keras_transformer.layers.embedding import PositionalEmbedding
from keras_transformer.models.heads import EncoderHead
from keras_transformer.models.language_model import LanguageModel


class SamplingOptions(TypedDict, total=False):
    """What `export_litert_model` hands on to `LanguageSampler`."""

    top_k: int | None
    top_p: float | None
    min_length: int
    no_repeat_ngram_size: int


def export_litert_model(
    model: keras.Model,
    path: str | Path,
    quantize: str = "none",
    **sampling: Unpack[SamplingOptions],
) -> Path:
    """Writes a model as one file for LiteRT, weights and all.

    Its signature `predict` is a call of the model. The file of a `LanguageModel` has a
    signature `generate`, too, which draws as `LanguageSampler` does and ends when every
    text has; the two share their weights. Sizes are free in every call: B rows, S
    tokens or nodes, P tokens of a prompt, L of the longest text (prompt and end token
    counted).

    | model                            | signature | inputs and outputs            |
    |----------------------------------|-----------|-------------------------------|
    | `Tagger`, `MaskedLanguageModel`, | predict   | ids [B, S] or [B, S, F] to    |
    | `LanguageModel`                  |           | logits [B, S, tags or tokens] |
    | `TextClassifier`                 | predict   | ids [B, S] or [B, S, F] to    |
    |                                  |           | logits [B, classes]           |
    | a functional model of one output | predict   | its inputs, by their names,   |
    |                                  |           | to logits                     |
    | `LanguageModel`                  | generate  | prompts [B, P], lengths [B],  |
    |                                  |           | uniforms [B, L], temperature  |
    |                                  |           | [B] to ids [B, 1, L], scores  |
    |                                  |           | [B, 1]                        |

    Ids and lengths are int32, inputs of a functional model what its `keras.Input` says,
    all else float32. `lengths` count the tokens of each prompt; what stands after them
    is ignored, and so is what does not fit into L. Scores are log-probabilities, the
    prompt's tokens counted.

    Args:
        model: One of the table's models.
        path: File to write, such as "lite/tagger.tflite"; an old one is replaced.
        quantize: As for `export_litert`.
        **sampling: For a `LanguageModel`, the options of `LanguageSampler`: `top_k`,
            `top_p`, `min_length` and `no_repeat_ngram_size`.

    Returns:
        `path`.

    Raises:
        IsADirectoryError: If `path` is a directory.
        RuntimeError: If the Keras backend is not TensorFlow.
        TypeError: If `model` is of another kind, or an option is not its own.
        ValueError: If an argument is out of range, the model computes in half
            precision, or LiteRT lacks an operation.

    Example:
        >>> export_litert_model(tagger, "tagger.tflite", "int8")
    """
    path = Path(path)
    check_conversion(quantize)
    check_not_directory(path)
    names, structure = _inputs(model)
    _check_dtype(model)
    signatures = {"predict": _predict(model, names, structure)}
    if isinstance(model, LanguageModel):
        signatures["generate"] = _generate(LanguageSampler(model, **sampling))
    elif sampling:
        raise TypeError(
            "Options of sampling are for a `LanguageModel`. Received: "
            f"{type(model).__name__} and {', '.join(sampling)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(convert(model, signatures, quantize))
    return path


def _inputs(model):
    """Returns the names and the structure of what a call of the model takes."""
    embedding = model.encoder.embedding if isinstance(model, EncoderHead) else None
    if isinstance(model, LanguageModel) or isinstance(embedding, PositionalEmbedding):
        return ("ids",), *model.input_signature()
    if len(getattr(model, "outputs", None) or ()) == 1:  # A functional model.
        return tuple(x.name for x in model.inputs), model.input
    raise TypeError(
        "`model` must be a LanguageModel, MaskedLanguageModel, Tagger, TextClassifier "
        "or a functional model of one output; `Translator.export_litert` writes a "
        f"translator. Received: {type(model).__name__}"
    )


def _check_dtype(model):
    if model.compute_dtype != "float32":
        raise ValueError(
            f"A {type(model).__name__} must compute in float32 for LiteRT: make one "
            "with dtype='float32', give it these weights with `set_weights`, and use "
            f"`quantize` for a smaller file. Received: dtype={model.dtype_policy.name}"
        )


def _predict(model, names, structure):
    """Returns a call of the model as a `tf.function` of named inputs."""
    specs = [
        tf.TensorSpec(spec.shape, spec.dtype) for spec in keras.tree.flatten(structure)
    ]

    def logits(*inputs):
        inputs = keras.tree.pack_sequence_as(structure, inputs)
        return {"logits": model(inputs, training=False)}

    return signature(logits, names, *specs)


def _generate(sampler):
    """Returns sampling as a `tf.function` of named inputs."""
    pad_id = sampler.model.config.pad_id

    def draw(prompts, lengths, uniforms, temperature):
        places = ops.arange(ops.shape(prompts)[1], dtype="int32")
        is_prompt = places < ops.expand_dims(lengths, 1)
        prompts = ops.where(is_prompt, prompts, pad_id)
        return sampler.draw(prompts, uniforms, temperature)

    return signature(
        found_by(draw),
        ("prompts", "lengths", "uniforms", "temperature"),
        tf.TensorSpec([None, None], tf.int32),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None, None], tf.float32),
        tf.TensorSpec([None], tf.float32),
    )
