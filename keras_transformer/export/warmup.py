"""Warm-up requests: what TensorFlow Serving runs while it loads a version.

So the first client does not wait for TensorFlow to build its plans.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_transformer.files import replacing

_SENTENCES = (
    "Good morning.",
    "The train to the coast leaves in ten minutes from the other platform.",
    "When the rain stopped at last, the children ran out of the house, and their "
    "grandmother, who had been waiting for this moment since noon, opened every "
    "window and sat down with a cup of tea.",
)
# Each sentence alone, then eight together: one plan serves every size of a batch.
# The server's max_batch_size, in templates/batching_parameters.txt, is no smaller.
BATCHES = (*([sentence] for sentence in _SENTENCES), [*_SENTENCES * 2, *_SENTENCES[:2]])


def write_warmup_requests(directory: Path, name: str, signatures: dict) -> Path:
    """Writes requests for signatures, concrete functions of inputs of shape [B].

    A server does not load a version if a request fails: each fits its signature.
    """
    file = directory / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir(exist_ok=True)
    with replacing(file) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for signature, function in signatures.items():
            specs = tf.nest.flatten(function.structured_input_signature)
            for spec in specs:
                if spec.shape.rank != 1:
                    raise ValueError(
                        "An input of a signature must have shape [B], so that "
                        "TensorFlow Serving can join requests to batches. Received: "
                        f"input {spec.name!r} of {signature!r} with shape {spec.shape}"
                    )
            for texts in BATCHES:
                inputs = {spec.name: _values(spec.dtype, texts) for spec in specs}
                writer.write(_prediction_log(name, signature, inputs))
    return file


def _values(dtype, texts):
    if dtype == tf.string:
        return np.array([text.encode("utf-8") for text in texts], object)
    # Of a temperature and a seed.
    return np.ones(len(texts), dtype.as_numpy_dtype)


def _prediction_log(name, signature, inputs):
    """A serialized tensorflow.serving.PredictionLog of one request.

    Field numbers are those of prediction_log.proto, predict.proto and model.proto in
    tensorflow_serving/apis, whose package nothing else here needs.
    """
    model_spec = _field(1, name.encode("utf-8")) + _field(3, signature.encode("utf-8"))
    request = _field(1, model_spec)
    for key, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        request += _field(2, _field(1, key.encode("utf-8")) + _field(2, tensor))
    return _field(6, _field(1, request))  # predict_log { request { ... } }


def _field(number, content):
    """A field of a protocol buffer: string, bytes or message, number up to 15."""
    length, size = len(content), bytearray()
    while length > 127:  # A varint: seven bits a byte, the lowest ones first.
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + content
