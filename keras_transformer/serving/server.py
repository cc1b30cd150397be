"""The local server: listens, loads, serves, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from keras_transformer.serving.batching import Workers
from keras_transformer.serving.config import ServingConfig
from keras_transformer.serving.versions import ModelVersions, check_directory
from keras_transformer.terminal import printable

# One for the batches of large requests and one that they leave free. More would only
# share the same cores.
_RUNS_AT_A_TIME = 2

logger = logging.getLogger(__package__)


def serve(directory: str | Path, host: str = "127.0.0.1", port: int = 8501):
    """Serves the SavedModels of a directory over TensorFlow Serving's REST interface.

    It is for trying a model out; in production use TensorFlow Serving itself. It
    returns when the process gets SIGTERM or SIGINT and all running requests are
    answered. Those that take longer than `drain_timeout_s` are answered 500, and the
    process ends with status 1. It does not wait for a version that is being loaded.

    Args:
        directory: saved_models/NAME, with SavedModels in NAME/VERSION.
        host: Address to listen on.
        port: Port to listen on; 0 picks a free one.

    Raises:
        FileNotFoundError: If the directory holds no SavedModel.
        ImportError: If starlette or uvicorn is not installed.
        OSError: If the port is taken.
        ValueError: If no version loads.

    Example:
        >>> serve("saved_models/en-de", port=8501)
    """
    config = ServingConfig(host=host, port=port)
    check_installed("The local server", "serve")
    check_directory(directory)
    log_to_stderr(logger)
    with bind(config.host, config.port) as listener:
        asyncio.run(_serve(Path(directory), config, listener))


def check_installed(what: str, extra: str):
    """Raises `ImportError` unless the web server's packages are installed.

    Args:
        what: What needs them, for the message.
        extra: The extra of this package that has them.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"{what} needs starlette and uvicorn: install "
            f"keras-transformer-seq2seq[{extra}]"
        ) from error


def log_to_stderr(logger: logging.Logger):
    """Makes a logger print to standard error, safely for a terminal."""
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_PrintableFormatter("%(asctime)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


class _PrintableFormatter(logging.Formatter):
    def format(self, record):
        return "\n".join(map(printable, super().format(record).split("\n")))


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that has the address, before the long work of loading.

    Raises:
        OSError: If the address cannot be had, such as a port that is taken.
    """
    from keras_transformer.serving.connections import Listener

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio avoids delays (TCP_NODELAY, 40 ms) only where the protocol is named.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose "
            "another `--port`."
        ) from error
    return listener


def shown_address(listener: socket.socket) -> str:
    """Returns where a socket listens, such as "http://127.0.0.1:8501"."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(directory, config, listener):
    from keras_transformer.serving.app import RestApi
    from keras_transformer.serving.connections import uvicorn_server

    workers = Workers(_RUNS_AT_A_TIME)
    versions = ModelVersions(directory, lambda path: _load(path, workers, config))
    await versions.load_first()
    server = uvicorn_server(RestApi(versions, config), config.drain_timeout_s)
    end_at_signals(server)
    listener.listen()
    url = f"{shown_address(listener)}/v1/models/{versions.name}"
    logger.info("%s is served", url)
    watching = asyncio.create_task(versions.watch())
    await server.serve(sockets=[listener])
    watching.cancel()
    logger.info("the server has ended")
    if workers.running:
        logger.error("%d runs were cut off", workers.running)
    if workers.running or versions.is_loading:
        # Nothing can stop these threads. Python's normal exit would wait for the first
        # kind, and take the interpreter away from the second.
        sys.stderr.flush()
        os._exit(1 if workers.running else 0)


def end_at_signals(server):
    """Makes SIGTERM and SIGINT end the server, but not the process.

    uvicorn's own handlers raise the signal again at the end, which by default kills the
    process.
    """
    if threading.current_thread() is threading.main_thread():
        server.capture_signals = contextlib.nullcontext
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.handle_exit, number, None)


def _load(path, workers, config):
    # Here, so that a wrong directory or port is reported before TensorFlow loads.
    from keras_transformer.serving.served_model import ServedModel

    return ServedModel(path, workers, config)
