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

# Two: while one batch runs, another signature need not wait for it. More would make
# smaller batches that share the same cores.
_RUNS_AT_A_TIME = 2
_KEEP_ALIVE_SECONDS = 75

logger = logging.getLogger(__package__)


def serve(directory: str | Path, config: ServingConfig | None = None):
    """Serves the SavedModels of a directory over TensorFlow Serving's REST interface.

    It is for trying a model out; in production use TensorFlow Serving itself. It
    returns when the process gets SIGTERM or SIGINT and all running requests are
    answered. Those that take longer than `drain_timeout_s` are answered 500, and the
    process ends with status 1.

    Args:
        directory: saved_models/NAME, with SavedModels in NAME/VERSION.
        config: Address and limits; default `ServingConfig()`.

    Raises:
        FileNotFoundError: If the directory holds no SavedModel.
        ImportError: If starlette or uvicorn is not installed.
        OSError: If the port is taken.
        ValueError: If no version loads.

    Example:
        >>> serve("saved_models/en-de", ServingConfig(port=8501))
    """
    config = ServingConfig() if config is None else config
    _check_installed()
    check_directory(directory)
    _log_to_stderr()
    with bind(config.host, config.port) as listener:
        asyncio.run(_serve(Path(directory), config, listener))


def _check_installed():
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "The local server needs starlette and uvicorn: install "
            "keras-transformer-seq2seq[serve]"
        ) from error


def _log_to_stderr():
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
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends answers without a delay (TCP_NODELAY, 40 ms) only where the protocol
    # is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


async def _serve(directory, config, listener):
    from keras_transformer.serving.app import create_app

    workers = Workers(_RUNS_AT_A_TIME)
    versions = ModelVersions(directory, lambda path: _load(path, workers, config))
    await versions.load_first()
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logger.info("http://%s:%d/v1/models/%s is served", shown, port, versions.name)
    with _signals_end_quietly():
        server = uvicorn_server(create_app(versions, config), config)
        await server.serve(sockets=[listener])
    logger.info("the server has ended")
    if workers.running:
        # Nothing can stop these threads, and Python's own end would wait for them.
        logger.error("%d runs were cut off", workers.running)
        sys.stderr.flush()
        os._exit(1)


def uvicorn_server(app, config: ServingConfig):
    """Returns the `uvicorn.Server` of an application."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=config.drain_timeout_s,
        )
    )


def _load(path, workers, config):
    # Here, so that a mistyped directory or port is told before TensorFlow is imported.
    from keras_transformer.serving.served_model import ServedModel

    return ServedModel(path, workers, config)


@contextlib.contextmanager
def _signals_end_quietly():
    """Makes the process live on after the signals that end the server.

    uvicorn ends at SIGTERM and SIGINT, and then raises the signal again for the
    handler that was there before, by default one that ends the process with a status
    other than 0.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
