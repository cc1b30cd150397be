"""The Docker Compose files that start TensorFlow Serving for an export."""

from __future__ import annotations

from keras_transformer.export.sizing import MIB, ServerMemory

IMAGE = "tensorflow/serving:2.20.0"
XLA_FLAG = "--xla_cpu_compilation_enabled"
LITERT_FLAG = "--prefer_tflite_model=true"

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
      - --monitoring_config_file=/models/{name}/monitoring.config
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

_LIMITS = """\
    deploy:
      resources:
        limits:
          # A server that takes more is ended and started anew. An estimate:
          # {estimate}.
          # Shorter texts, fewer num_batch_threads or a smaller max_batch_size take
          # less.
          memory: {most}M
          # The whole machine without the next line; more cores than there are is an
          # error.
          # cpus: "4"
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


def compose_file(name: str, jit_compile: bool, memory: ServerMemory | None) -> str:
    """Returns docker-compose.yml of a model.

    Args:
        name: The model's name, of `model_name`.
        jit_compile: Whether XLA compiles the signatures.
        memory: What the server needs, or `None` for no limit.
    """
    flag = _FLAG if jit_compile else ""
    text = _COMPOSE.format(name=name, image=IMAGE, flag=flag)
    text += _CONTAINER.format(name=name, grpc=8500, rest=8501)
    if memory is None:
        return text
    estimate = memory.in_words("          # ")
    return text + _LIMITS.format(most=memory.most // MIB, estimate=estimate)


def compose_file_of_litert(name: str) -> str:
    """Returns docker-compose.yml of a LiteRT file.

    Args:
        name: The model's name, of `model_name`.
    """
    text = _LITERT_COMPOSE.format(name=name, image=IMAGE, flag=LITERT_FLAG)
    return text + _CONTAINER.format(name=name, grpc=8502, rest=8503)


def compose_file_of_gpu() -> str:
    """Returns docker-compose.gpu.yml."""
    return _GPU.format(image=IMAGE)
