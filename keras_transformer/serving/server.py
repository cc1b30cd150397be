"""The process of the local server; the playground's uses its parts.

This module imports neither TensorFlow nor the web server before they are needed, so
that the command line's help, a wrong directory and a taken port need not wait for them.
"""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from keras_transformer.files import versions_in
from keras_transformer.terminal import native_messages_hidden, print_message


def serve(directory: str | Path, host: str = "127.0.0.1", port: int = 8501) -> None:
    """Serves the highest version of an export over TensorFlow Serving's REST interface.

    It is for trying an export on this machine: it runs one request at a time, and logs
    each in one line. In production use TensorFlow Serving itself. It returns at Ctrl-C,
    when the requests that came before are answered; a second Ctrl-C does not wait.

    Args:
        directory: saved_models/NAME, with a SavedModel in NAME/VERSION.
        host: Address to listen on. At any but 0.0.0.0 and :: a request must name it, or
            this machine, in its `Host`.
        port: Port to listen on; 0 picks a free one.

    Raises:
        FileNotFoundError: If the directory holds no SavedModel.
        ImportError: If starlette or uvicorn is not installed.
        OSError: If the port cannot be had, or the SavedModel cannot be read.
        ValueError: If the port is out of range.

    Example:
        >>> serve("saved_models/en-de")
    """
    directory = Path(directory)
    versions = versions_in(directory, "saved_model.pb")
    if not versions:
        raise FileNotFoundError(
            f"{directory} must hold SavedModels, each in a directory that has its "
            f"version as its name: {directory / '1'}. Received: none"
        )
    with listening(host, port, extra="serve") as listener:
        with native_messages_hidden():
            from keras_transformer.serving.app import make_app
            from keras_transformer.serving.model import ServedModel

        model = ServedModel(versions[max(versions)])
        run(make_app(model, host), listener, f"/v1/models/{model.name}", "info")


def listening(host: str, port: int, extra: str) -> socket.socket:
    """Returns a socket that has the address, before the long work of loading.

    `extra` is the extra of this package that brings the web server.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "A server needs starlette and uvicorn: install "
            f"keras-transformer-seq2seq[{extra}]"
        ) from error
    if not 0 <= port <= 65535:
        raise ValueError(f"`port` must be from 0 to 65535. Received: port={port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio avoids delays (TCP_NODELAY, 40 ms) only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose "
            "another `--port`."
        ) from error
    return listener


def address(listener: socket.socket) -> str:
    """Returns where a socket listens, such as "http://127.0.0.1:8501"."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app, listener: socket.socket, path: str, log_level: str):
    """Says where `path` is and serves an ASGI application until Ctrl-C.

    At the `log_level` "info" Uvicorn logs each request in a line.
    """
    import uvicorn

    config = uvicorn.Config(app, lifespan="off", log_level=log_level)
    listener.listen()
    print_message(f"{address(listener)}{path} (Ctrl-C ends it)")
    # Uvicorn answers what runs, and then raises the signal again.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
