"""Warm-up requests: what TensorFlow Serving runs while it loads a version.

So the first client does not wait for TensorFlow to build its plans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_transformer.files import replacing

# Sentences in a batch of the server. On a CPU larger ones add latency and no speed.
MAX_BATCH_SIZE = 32
# XLA compiles each batch size separately, so the server pads to one of these.
XLA_BATCH_SIZES = (1, 2, 4, 8, 16, MAX_BATCH_SIZE)
# Without XLA one plan serves every size: one sentence and a few are enough.
WARMUP_BATCH_SIZES = (1, 8)

_SENTENCES = (
    "Good morning.",
    "The train to the coast leaves in ten minutes from the other platform.",
    "When the rain stopped at last, the children ran out of the house, and their "
    "grandmother, who had been waiting for this moment since noon, opened every "
    "window and sat down with a cup of tea.",
)


def write_warmup_requests(
    directory: str | Path, name: str, signatures: dict, jit_compile: bool = False
) -> Path:
    """Writes the requests that TensorFlow Serving runs while it loads a version.

    A server does not load a version if one of its requests fails, so each fits its
    signature: sentences for strings, ones for numbers (temperature 1, seed 1).

    Args:
        directory: Directory of the SavedModel, before a server sees it.
        name: The model's name, of `model_name`.
        signatures: Signature names and their concrete functions; inputs of shape [B].
        jit_compile: Whether XLA compiles the signatures, once for each batch size.

    Returns:
        The file, assets.extra/tf_serving_warmup_requests.

    Raises:
        ValueError: If an input has another shape than [B].

    Example:
        >>> write_warmup_requests("saved_models/en-de/1", "en-de", signatures)
    """
    file = Path(directory) / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir(exist_ok=True)
    batches = list(_warmup_batches(jit_compile))
    with replacing(file) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for signature, function in signatures.items():
            specs = _input_specs(signature, function)
            for texts in batches:
                inputs = {spec.name: _values(spec, texts) for spec in specs}
                writer.write(_prediction_log(name, signature, inputs))
    return file


def batch_sizes(jit_compile: bool) -> tuple[int, ...]:
    """Returns the sizes of the batches in the requests, the largest last.

    Args:
        jit_compile: Whether XLA compiles the signatures.
    """
    return XLA_BATCH_SIZES if jit_compile else WARMUP_BATCH_SIZES


def _warmup_batches(jit_compile: bool) -> Iterator[list[str]]:
    """Sentences of the requests: each sentence alone, then several together."""
    for size in batch_sizes(jit_compile):
        if size == 1:
            yield from ([sentence] for sentence in _SENTENCES)
        else:
            yield list(itertools.islice(itertools.cycle(_SENTENCES), size))


def _input_specs(signature: str, function) -> list[tf.TensorSpec]:
    """The inputs that a signature's function takes."""
    specs = tf.nest.flatten(function.structured_input_signature)
    for spec in specs:
        if spec.shape.rank != 1:
            raise ValueError(
                "An input of a signature must have shape [B], so that TensorFlow "
                "Serving can join requests to batches. Received: input "
                f"{spec.name!r} of {signature!r} with shape {spec.shape}"
            )
    return specs


def _values(spec: tf.TensorSpec, texts: list[str]) -> np.ndarray:
    """Values [B] of one input for B sentences."""
    if spec.dtype == tf.string:
        return np.array([text.encode("utf-8") for text in texts], object)
    return np.ones(len(texts), spec.dtype.as_numpy_dtype)


def _prediction_log(name: str, signature: str, inputs: dict[str, np.ndarray]) -> bytes:
    """A serialized tensorflow.serving.PredictionLog of one request.

    Its Python classes are in tensorflow-serving-api, which nothing else needs. Field
    numbers are those of prediction_log.proto, predict.proto and model.proto in
    tensorflow_serving/apis.
    """
    model_spec = _field(1, name.encode("utf-8")) + _field(3, signature.encode("utf-8"))
    request = _field(1, model_spec)
    for key, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        request += _field(2, _field(1, key.encode("utf-8")) + _field(2, tensor))
    return _field(6, _field(1, request))  # predict_log { request { ... } }


def _field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer: string, bytes or message, number up to 15."""
    length, size = len(content), bytearray()
    while length > 127:  # A varint: seven bits a byte, the lowest ones first.
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + content
