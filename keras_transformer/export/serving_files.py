"""What TensorFlow Serving reads of an export besides the graph.

Beside the versions stand its configuration and what starts it with Docker or
Kubernetes, filled from templates/. In each version stand warm-up requests: the server
runs them while it loads the version, so no client waits for TensorFlow's plans.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from string import Template
from typing import Any

import tensorflow as tf

from keras_transformer.files import replacing

TEMPLATES = Path(__file__).with_name("templates")
NAMES = (
    "models.config", "batching_parameters.txt", "monitoring.config",
    "docker-compose.yml", "docker-compose.gpu.yml", "kubernetes.yml",
)  # fmt: skip
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


def model_name(path: str | Path) -> str:
    """Returns the name under which TensorFlow Serving serves NAME/VERSION."""
    name = Path(os.path.abspath(path)).parent.name
    # A URL and a configuration file would have to escape other characters.
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) or "model"


def filled(template: str, **values: Any) -> str:
    """Returns the text of a file of templates/ with its `$names` replaced.

    A line with a name that has no value, or `None`, is left out.
    """
    text = ""
    lines = (TEMPLATES / template).read_text("utf-8").splitlines(keepends=True)
    for line in lines:
        if None not in map(values.get, Template(line).get_identifiers()):
            text += Template(line).substitute(values)
    return text


def write_serving_files(version: Path):
    """Writes the files of `NAMES`, which serve all versions, where they are missing."""
    name = model_name(version)
    # A host's name, which alone a Service of Kubernetes may have: at most 63 small
    # letters, digits and "-", the first a letter.
    word = re.sub("[^a-z0-9]+", "-", f"translator-{name}".lower())[:63].strip("-")
    for template in NAMES:
        file = version.parent / template
        if not file.exists():
            with replacing(file) as temporary:
                text = filled(template, name=name, object=word)
                temporary.write_text(text, encoding="utf-8", newline="\n")


def write_warmup_requests(directory: Path, name: str, signatures: dict):
    """Writes requests for signatures, concrete functions of inputs of shape [B]."""
    file = directory / "assets.extra" / "tf_serving_warmup_requests"
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, function in signatures.items():
            specs = tf.nest.flatten(function.structured_input_signature)
            for texts in BATCHES:
                inputs = {}
                for spec in specs:
                    # Else temperatures, and seeds.
                    values = texts if spec.dtype == tf.string else [1] * len(texts)
                    inputs[spec.name] = tf.make_tensor_proto(values, spec.dtype)
                writer.write(_prediction_log(name, signature, inputs))


def _prediction_log(name, signature, inputs):
    """A serialized tensorflow.serving.PredictionLog of one request."""
    # Field numbers are from tensorflow_serving/apis: prediction_log.proto,
    # predict.proto and model.proto. Nothing else here needs that package.
    model_spec = _field(1, name.encode("utf-8")) + _field(3, signature.encode("utf-8"))
    request = _field(1, model_spec)
    for key, tensor in inputs.items():
        content = tensor.SerializeToString()
        request += _field(2, _field(1, key.encode("utf-8")) + _field(2, content))
    return _field(6, _field(1, request))  # predict_log { request { ... } }


def _field(number, content):
    """A field of a protocol buffer: string, bytes or message, number up to 15."""
    length, size = len(content), bytearray()
    while length > 127:  # A varint: seven bits a byte, the lowest ones first.
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + content
