"""The files beside the versions of an export, for TensorFlow Serving.

They configure a server that Docker or Kubernetes starts. Inside a version are its
`warmup_requests`.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

from keras_transformer.export.compose import (
    LITERT_FLAG,
    XLA_FLAG,
    compose_file,
    compose_file_of_gpu,
    compose_file_of_litert,
)
from keras_transformer.export.kubernetes import METRICS, manifest
from keras_transformer.export.sizing import BATCHES_AT_ONCE, MIB, ServerMemory
from keras_transformer.export.warmup_requests import MAX_BATCH_SIZE, batch_sizes
from keras_transformer.files import replacing

COMPOSE = "docker-compose.yml"
COMPOSE_GPU = "docker-compose.gpu.yml"
KUBERNETES = "kubernetes.yml"
# Lines that say how much memory the server has.
_OF_MEMORY = re.compile(rb" memory: |MiB for TensorFlow|batches of \d+ texts")

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
num_batch_threads {{ value: {threads} }}
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

_MONITORING = """\
# What TensorFlow Serving tells Prometheus, on its REST port. Yours to edit: written
# once, by the first export.
prometheus_config {{
  enable: true
  path: "{path}"
}}
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


def write_serving_files(
    path: str | Path, jit_compile: bool = False, memory: ServerMemory | None = None
) -> list[Path]:
    """Writes the configuration of a server beside the versions, where it is missing.

    That is models.config, batching_parameters.txt, monitoring.config,
    docker-compose.yml, what the last needs for a GPU, docker-compose.gpu.yml, and
    kubernetes.yml.

    They stand beside the versions and serve all of them, so an existing file stays as
    it is, with one exception: an export with `jit_compile` replaces files that an
    export without it wrote and nobody changed (but for figures of memory), because it
    needs more of the server. Where a kept file gives the server too little, a warning
    says so.

    Args:
        path: Directory of the version, NAME/VERSION. If VERSION is no whole number, a
            server would not find it, and nothing is written.
        jit_compile: Whether the version's signatures are compiled by XLA.
        memory: What the server needs for the version, or `None` for no limit.

    Returns:
        The files written.

    Example:
        >>> write_serving_files("saved_models/en-de/1")
    """
    path = Path(path)
    if not path.name.isdecimal():
        return []
    written = []
    plain = _serving_files(model_name(path), False, memory)
    for file_name, text in _serving_files(
        model_name(path), jit_compile, memory
    ).items():
        file = path.parent / file_name
        if not file.exists() or (
            text != plain[file_name] and _is_same(file.read_bytes(), plain[file_name])
        ):
            _write(file, text)
            written.append(file)
    for file in (path.parent / COMPOSE, path.parent / KUBERNETES):
        if jit_compile:
            _check_flag(file, XLA_FLAG, f"refuses to run {path}")
        if memory is not None:
            _check_limit(file, memory, path)
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
        COMPOSE: compose_file_of_litert(name),
    }
    missing = [
        path.parent / file for file in texts if not (path.parent / file).exists()
    ]
    for file in missing:
        _write(file, texts[file.name].encode("utf-8"))
    _check_flag(path.parent / COMPOSE, LITERT_FLAG, f"finds no model in {path}")
    return missing


def _serving_files(name, jit_compile, memory) -> dict[str, bytes]:
    """Contents of the files beside the versions, by file name."""
    sizes = batch_sizes(jit_compile)
    allowed = _XLA_SIZES.format(sizes=list(sizes)) if jit_compile else _ANY_SIZE
    texts = {
        "models.config": _MODELS.format(name=name),
        "batching_parameters.txt": _BATCHING.format(
            least=max(sizes),
            most=MAX_BATCH_SIZE,
            threads=BATCHES_AT_ONCE,
            allowed=allowed,
        ),
        "monitoring.config": _MONITORING.format(path=METRICS),
        COMPOSE: compose_file(name, jit_compile, memory),
        COMPOSE_GPU: compose_file_of_gpu(),
        KUBERNETES: manifest(name, jit_compile, memory),
    }
    return {file_name: text.encode("utf-8") for file_name, text in texts.items()}


def _write(file, text):
    with replacing(file) as temporary:
        temporary.write_bytes(text)


def _is_same(text, other):
    """Whether two texts differ in figures of memory at most."""
    lines = (
        [line for line in lines.splitlines() if not _OF_MEMORY.search(line)]
        for lines in (text, other)
    )
    return next(lines) == next(lines)


def _check_flag(file, flag, without):
    """Warns if a file that is kept lacks a flag of the server."""
    if flag.encode() not in file.read_bytes():
        warnings.warn(
            f"{file} is kept as it is. Add {flag} to its command: TensorFlow Serving "
            f"{without} without it.",
            stacklevel=3,
        )


def _check_limit(file, memory, path):
    """Warns if a file that is kept gives the server too little memory."""
    limits = re.findall(rb"^ +memory: (\d+)Mi?$", file.read_bytes(), re.MULTILINE)
    if limits and int(limits[-1]) < memory.most // MIB:
        warnings.warn(
            f"{file} is kept as it is, with `memory: {limits[-1].decode()}M`. With "
            f"{path} the server may need {memory.most // MIB}: raise it.",
            stacklevel=3,
        )
