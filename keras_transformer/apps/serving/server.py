"""The process of the local server.

TensorFlow and the web server are imported when they are needed, so that a wrong
directory and a used port are reported at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path

from keras_transformer.config.options import check_number
from keras_transformer.extras import required
from keras_transformer.formats.versions import versions_in
from keras_transformer.terminal import native_messages_hidden, print_message


def serve(
    directory: str | Path,
    host: str = "127.0.0.1",
    port: int = 8501,
    doubt_above: float | None = None,
    corrections: str | Path | None = None,
) -> None:
    """Serves a version of an export through TensorFlow Serving's REST API, and a page.

    The page translates while one types, shows other translations with their scores, and
    what each word looks at. The server is for trying an export on this machine, one
    request at a time; use TensorFlow Serving in production. It holds the limits of that
    server: the `max_batch_size` of batching_parameters.txt beside the versions, and 30
    seconds for an answer. A request also has at most 20,000 bytes of text, and one that
    nobody waits for any more is given up. Ctrl-C stops it after open requests; a second
    Ctrl-C does not wait for them.

    Args:
        directory: saved_models/NAME for the version that models.config in it asks for
            (`specific`), else the latest; or saved_models/NAME/1 for that one.
        host: Address to listen on. The `Host` of a request must be this address or this
            machine, unless it is 0.0.0.0 or ::.
        port: Port to listen on; 0 selects a free one.
        doubt_above: Limit of `doubt`, from 0 to 1, above which a translation has the
            doubt "score"; default that of the export.
        corrections: File to which the page appends what a reader corrects, as lines of
            source, tab, correction, which `train` takes; by default nothing is kept.

    Raises:
        FileNotFoundError: If the directory holds no SavedModel.
        ImportError: If starlette or uvicorn is not installed.
        OSError: If the port is not available, or `corrections` cannot be written.
        ValueError: If a number is out of range, or the SavedModel cannot be loaded.

    Example:
        >>> serve("saved_models/en-de")
    """
    check_number("doubt_above", doubt_above, optional=True, minimum=0, maximum=1)
    path = _version_of(Path(directory))
    with listening(host, port) as listener:
        with native_messages_hidden():
            from keras_transformer.apps.serving.rest_app import make_app
            from keras_transformer.apps.serving.served_model import ServedModel

        model = ServedModel(path, doubt_above)
        app = make_app(model, host, corrections=corrections)
        _run(app, listener, model.name)


def _version_of(directory):
    """Returns NAME/VERSION as it is, and of NAME the version to serve."""
    whole = Path(os.path.abspath(directory))  # without "."
    if whole in versions_in(whole.parent, "saved_model.pb").values():
        return whole
    versions = versions_in(directory, "saved_model.pb")
    if not versions:
        raise FileNotFoundError(
            f"{directory} must be a version, NAME/1, or hold SavedModels in "
            f"directories named by their version, such as {directory / '1'}. Received: "
            "none"
        )
    wanted = _wanted(directory / "models.config") or [max(versions)]
    if not versions.keys() & wanted:
        raise FileNotFoundError(
            f"{directory / 'models.config'} asks for a version that is not there. "
            f"Received: versions {wanted}, of {list(versions)}"
        )
    return versions[max(versions.keys() & wanted)]


def _wanted(file):
    """Returns the versions that TensorFlow Serving's configuration names, if any."""
    text = file.read_text("utf-8") if file.is_file() else ""
    policies = re.findall(r"\bspecific\s*:?\s*{([^}]*)}", re.sub("#.*", "", text))
    if len(policies) > 1:
        raise ValueError(
            f"{file} must have one `model_version_policy`: give NAME/VERSION to serve "
            f"that version. Received: {len(policies)}"
        )
    return list(map(int, re.findall(r"\d+", "".join(policies))))


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket bound to an address, before the model is loaded."""
    for module in ("starlette", "uvicorn"):
        required(module, "A server needs starlette and uvicorn", "serve")
    check_number("port", port, int, minimum=0, maximum=65535)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio only avoids delays (TCP_NODELAY, 40 ms) if the protocol is given.
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
    """Returns the URL of a socket, such as "http://127.0.0.1:8501"."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _run(app, listener, name):
    """Prints the URLs of page and model and serves an ASGI application until Ctrl-C."""
    import uvicorn

    config = uvicorn.Config(app, lifespan="off")
    listener.listen()
    url = address(listener)
    print_message(f"{url}/ is a page to try it")
    print_message(f"{url}/v1/models/{name} (Ctrl-C ends it)")
    # Uvicorn answers open requests, and then raises the signal again.
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
