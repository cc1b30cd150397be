"""The files of an export that TensorFlow Serving reads besides the SavedModel.

Inside a version, warm-up requests: the server runs them while it loads the version, so
that the first client does not wait for TensorFlow to build its plans. Beside the
versions, a configuration of the server that `docker compose up` starts.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
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
IMAGE = "tensorflow/serving:2.20.0"
COMPOSE = "docker-compose.yml"
COMPOSE_GPU = "docker-compose.gpu.yml"
XLA_FLAG = "--xla_cpu_compilation_enabled"
LITERT_FLAG = "--prefer_tflite_model=true"

_SENTENCES = (
    "Good morning.",
    "The train to the coast leaves in ten minutes from the other platform.",
    "When the rain stopped at last, the children ran out of the house, and their "
    "grandmother, who had been waiting for this moment since noon, opened every "
    "window and sat down with a cup of tea.",
)

_MODELS = """\
# Which models TensorFlow Serving serves. Yours to edit: written once, by the first
# export. The newest version is served; a new one is picked up while the server runs.
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
  }}
}}
"""

_BATCHING = """\
# How TensorFlow Serving joins the requests of many clients to batches. Yours to edit:
# written once, by the first export.

# Most sentences in a batch, and in a request: a larger request is refused (HTTP 400).
# Keep it at {least} or more: that many are in a warm-up request, and a version whose
# warm-up requests are refused is not loaded.
max_batch_size {{ value: {most} }}
# Longest wait for other requests, in microseconds. A translation takes far longer.
batch_timeout_micros {{ value: 2000 }}
# Full batches that may wait, for each signature; what comes then is refused (HTTP 503).
max_enqueued_batches {{ value: 64 }}
# Batches translated at the same time. Start with the number of cores.
num_batch_threads {{ value: 4 }}
# Each input is one value a sentence, so requests never differ in shape.
pad_variable_length_inputs: false
{allowed}"""

_ANY_SIZE = """\
# No allowed_batch_sizes: this graph takes a batch of any size, and a row that pads one
# costs as much as a sentence. TensorFlow Serving pads by repeating the first row of a
# request (batching_session.cc); one without rows would then end the server.
"""

_XLA_SIZES = """\
# XLA compiles each batch size apart, so there must be few; the last one equals
# max_batch_size. TensorFlow Serving pads to them by repeating the first row of a
# request (batching_session.cc). A request without rows then ends the server: let no
# client send one.
allowed_batch_sizes: {sizes}
"""

_COMPOSE = """\
# TensorFlow Serving for this model; in this directory: docker compose up
# REST at http://127.0.0.1:8501/v1/models/{name}, gRPC at 127.0.0.1:8500; neither can be
# reached from other machines. Yours to edit: written once, by the first export.
services:
  serving:
    image: {image}
    command:
      - --model_config_file=/models/{name}/models.config
      - --enable_batching
      - --batching_parameters_file=/models/{name}/batching_parameters.txt
{flag}"""

_LITERT_COMPOSE = """\
# TensorFlow Serving for this LiteRT model; in this directory: docker compose up
# REST at http://127.0.0.1:8503/v1/models/{name}, gRPC at 127.0.0.1:8502; neither can be
# reached from other machines. Yours to edit: written once, by the first export.
services:
  serving-litert:
    image: {image}
    command:
      - --model_config_file=/models/{name}/models.config
      # Run a version's model.tflite. TensorFlow Serving calls the flag experimental.
      - {flag}
      # No --enable_batching: requests with sources of different lengths do not join.
      # Each processor gets an interpreter with one thread and its own copy of packed
      # weights; --num_tflite_pools=N sets how many.
"""

# What follows in either.
_CONTAINER = """\
    # The image starts the server by a shell, which as the container's first process
    # ignores what `docker compose stop` sends, until it is killed ten seconds later.
    init: true
    ports:
      - "127.0.0.1:{grpc}:8500"
      - "127.0.0.1:{rest}:8501"
    volumes:
      - type: bind
        source: .
        target: /models/{name}
        read_only: true
    # The image has no curl: bash asks whether a version is loaded.
    healthcheck:
      test:
        - CMD
        - bash
        - -c
        - >-
          exec 3<>/dev/tcp/127.0.0.1/8501 &&
          printf 'GET /v1/models/{name} HTTP/1.0\\r\\n\\r\\n' >&3 &&
          grep -q '"AVAILABLE"' <&3
      interval: 10s
      timeout: 5s
      start_period: 120s
    restart: unless-stopped
"""

_GPU = """\
# What docker-compose.yml lacks to compute on an NVIDIA GPU. In this directory:
# docker compose -f docker-compose.yml -f docker-compose.gpu.yml up
# The host needs NVIDIA's driver and its Container Toolkit. A version that was exported
# with `jit_compile` does not run there: the image has no compiler of XLA for CUDA
# (https://github.com/tensorflow/serving/issues/2214).
services:
  serving:
    image: {image}-gpu
    environment:
      # Otherwise TensorFlow takes the whole memory of the GPU when it starts.
      TF_FORCE_GPU_ALLOW_GROWTH: "true"
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 1
              capabilities: [gpu]
"""

_FLAG = f"""\
      # A version was exported with `jit_compile`: without this flag TensorFlow Serving
      # refuses to run it. TensorFlow calls the flag experimental.
      - {XLA_FLAG}
"""


def model_name(path: str | Path) -> str:
    """Returns the name under which TensorFlow Serving serves a version.

    It is the name of the directory that holds the versions, with "-" for what a URL or
    a configuration file would have to escape.

    Args:
        path: Directory of the version, NAME/VERSION.

    Returns:
        The name: letters, digits, ".", "_" and "-".

    Example:
        >>> model_name("saved_models/en-de/1")
        'en-de'
    """
    name = Path(os.path.abspath(path)).parent.name
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) or "model"


def write_warmup_requests(
    directory: str | Path, name: str, signatures: dict, jit_compile: bool = False
) -> Path:
    """Writes the requests that TensorFlow Serving runs while it loads a version.

    A server does not load a version if one of its requests fails, so each fits its
    signature: sentences for strings, ones for numbers (temperature 1, seed 1).

    Args:
        directory: Directory of the SavedModel, before a server sees it.
        name: The model's name, of `model_name`.
        signatures: Signature names and their `tf.function`s; inputs of shape [B].
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


def write_serving_files(path: str | Path, jit_compile: bool = False) -> list[Path]:
    """Writes the configuration of a server beside the versions, where it is missing.

    That is models.config, batching_parameters.txt, docker-compose.yml and what the
    last needs for a GPU, docker-compose.gpu.yml.

    They stand beside the versions and serve all of them, so an existing file stays as
    it is, with one exception: an export with `jit_compile` replaces files that an
    export without it wrote and nobody changed, because it needs more of the server.

    Args:
        path: Directory of the version, NAME/VERSION. If VERSION is no whole number, a
            server would not find it, and nothing is written.
        jit_compile: Whether the version's signatures are compiled by XLA.

    Returns:
        The files written.

    Example:
        >>> write_serving_files("saved_models/en-de/1")
    """
    path = Path(path)
    if not path.name.isdecimal():
        return []
    written = []
    plain = _serving_files(model_name(path), jit_compile=False)
    for file_name, text in _serving_files(model_name(path), jit_compile).items():
        file = path.parent / file_name
        if not file.exists() or file.read_bytes() == plain[file_name] != text:
            with replacing(file) as temporary:
                temporary.write_bytes(text)
            written.append(file)
    compose = path.parent / COMPOSE
    if jit_compile and XLA_FLAG.encode() not in compose.read_bytes():
        warnings.warn(
            f"{compose} is kept as it is. Add {XLA_FLAG} to its command: TensorFlow "
            f"Serving refuses to run {path} without it.",
            stacklevel=2,
        )
    return written


def write_litert_serving_files(path: str | Path) -> list[Path]:
    """Writes models.config and docker-compose.yml for a LiteRT file, where missing.

    The service has a name and ports of its own, so that it runs beside that of a
    SavedModel.

    Args:
        path: Directory of the version, NAME/VERSION. If VERSION is no whole number, a
            server would not find it, and nothing is written.

    Returns:
        The files written.

    Example:
        >>> write_litert_serving_files("litert_models/en-de/1")
    """
    path = Path(path)
    if not path.name.isdecimal():
        return []
    name = model_name(path)
    texts = {
        "models.config": _MODELS.format(name=name),
        COMPOSE: _LITERT_COMPOSE.format(name=name, image=IMAGE, flag=LITERT_FLAG)
        + _CONTAINER.format(name=name, grpc=8502, rest=8503),
    }
    missing = [
        path.parent / file for file in texts if not (path.parent / file).exists()
    ]
    for file in missing:
        with replacing(file) as temporary:
            temporary.write_bytes(texts[file.name].encode("utf-8"))
    compose = path.parent / COMPOSE
    if LITERT_FLAG.encode() not in compose.read_bytes():
        warnings.warn(
            f"{compose} is kept as it is. Add {LITERT_FLAG} to its command: TensorFlow "
            f"Serving finds no model in {path} without it.",
            stacklevel=2,
        )
    return missing


def _serving_files(name: str, jit_compile: bool) -> dict[str, bytes]:
    """Contents of the files beside the versions, by file name."""
    sizes = XLA_BATCH_SIZES if jit_compile else WARMUP_BATCH_SIZES
    allowed = _XLA_SIZES.format(sizes=list(sizes)) if jit_compile else _ANY_SIZE
    flag = _FLAG if jit_compile else ""
    texts = {
        "models.config": _MODELS.format(name=name),
        "batching_parameters.txt": _BATCHING.format(
            least=max(sizes), most=MAX_BATCH_SIZE, allowed=allowed
        ),
        COMPOSE: _COMPOSE.format(name=name, image=IMAGE, flag=flag)
        + _CONTAINER.format(name=name, grpc=8500, rest=8501),
        COMPOSE_GPU: _GPU.format(image=IMAGE),
    }
    return {file_name: text.encode("utf-8") for file_name, text in texts.items()}


def _warmup_batches(jit_compile: bool) -> Iterator[list[str]]:
    """Sentences of the requests: each sentence alone, then several together."""
    for size in XLA_BATCH_SIZES if jit_compile else WARMUP_BATCH_SIZES:
        if size == 1:
            yield from ([sentence] for sentence in _SENTENCES)
        else:
            yield list(itertools.islice(itertools.cycle(_SENTENCES), size))


def _input_specs(signature: str, function) -> list[tf.TensorSpec]:
    """The inputs that a signature's function takes."""
    concrete = function.get_concrete_function()
    specs = tf.nest.flatten(concrete.structured_input_signature)
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
