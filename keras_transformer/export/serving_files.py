"""Files for TensorFlow Serving besides the graph: configuration and warm-up requests.

The configuration, and files for Docker and Kubernetes, come from templates/. The server
runs a version's warm-up requests while it loads it, so that no client waits for
TensorFlow's plans.
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
# Each sentence by itself, then eight together: a plan serves every size of a batch.
# max_batch_size in templates/batching_parameters.txt is no smaller.
BATCHES = (*([sentence] for sentence in _SENTENCES), [*_SENTENCES * 2, *_SENTENCES[:2]])


def model_name(path: str | Path) -> str:
    """Returns the name under which TensorFlow Serving serves NAME/VERSION."""
    name = Path(os.path.abspath(path)).parent.name
    # URLs and configuration files would have to escape other characters.
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) or "model"


def filled(template: str, **values: Any) -> str:
    """Returns a template with its `$names` replaced.

    A line with a name whose value is missing or `None` is dropped.
    """
    text = ""
    lines = (TEMPLATES / template).read_text("utf-8").splitlines(keepends=True)
    for line in lines:
        if None not in map(values.get, Template(line).get_identifiers()):
            text += Template(line).substitute(values)
    return text


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
    length, size = len(content), bytearray()
    while length > 127:  # A varint: seven bits a byte, the lowest ones first.
        size.append(length & 127 | 128)
        length >>= 7
    size.append(length)
    return bytes([number << 3 | 2]) + bytes(size) + content
