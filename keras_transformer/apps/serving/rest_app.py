"""TensorFlow Serving's REST interface and a page as a Starlette application.

- `GET /v1/models/NAME[/versions/V]` returns the state of the served version;
- `GET /v1/models/NAME[/versions/V]/metadata` returns its signatures;
- `POST /v1/models/NAME[/versions/V]:predict` runs a signature;
- `GET /` returns a page to try them (page_routes.py);
- `POST /corrections`, where there is a file for them, appends pairs to it.

Status codes and the form of answers are those of TensorFlow Serving
(http_rest_api_handler.cc and json_tensor.cc); error messages are not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path

import tensorflow as tf
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.apps.serving.page_routes import page_routes
from keras_transformer.apps.serving.served_model import ServedModel, check_bytes
from keras_transformer.apps.serving.tensors import (
    RequestError,
    read_inputs,
    read_json,
    write_outputs,
)
from keras_transformer.files import append_lines
from keras_transformer.nn.kernels.keras_private import cancellation_of_graphs
from keras_transformer.text.lines import pair_line
from keras_transformer.text.parallel_text import checked

# Longest wait for an answer, as of TensorFlow Serving (--rest_api_timeout_in_ms).
SECONDS = 30.0
_CORRECTIONS = {"pairs": tf.TensorSpec([None, 2], tf.string)}


def make_app(
    model: ServedModel,
    host: str,
    seconds: float = SECONDS,
    corrections: str | Path | None = None,
) -> Starlette:
    """Returns the application that serves a model at a host.

    A client waits for an answer for so many `seconds` at most. The page offers to
    correct translations if there is a file for `corrections`.
    """
    actions = {"": status, "/metadata": metadata, ":predict": predict}
    routes = [
        Route(
            f"/v1/models/{{name}}{version}{action}",
            endpoint,
            methods=["POST" if endpoint is predict else "GET"],
        )
        for action, endpoint in actions.items()
        for version in ("", "/versions/{version}")
    ]
    if corrections is not None:
        append_lines(corrections, [])  # An error comes now, not at the first one.
        routes.append(Route("/corrections", correct, methods=["POST"]))
    app = Starlette(
        routes=[*routes, *page_routes(model, corrections is not None)],
        middleware=[_trusted_hosts(host)],
        exception_handlers={
            RequestError: _say_error,
            ClientDisconnect: _say_nothing,
            HTTPException: _say_malformed,
            Exception: _say_failure,
        },
    )
    app.router.redirect_slashes = False
    app.state.model = model
    app.state.seconds = seconds
    app.state.corrections = corrections
    # More threads would share the same cores.
    app.state.worker = concurrent.futures.ThreadPoolExecutor(1)
    return app


def _trusted_hosts(host):
    """Returns a middleware that refuses (400) a `Host` of another machine."""
    # A web page whose name resolves to 127.0.0.1 could read answers (DNS rebinding).
    if host in ("0.0.0.0", "::"):  # The machine's names are not known.
        return Middleware(TrustedHostMiddleware, allowed_hosts=["*"])
    own = f"[{host}]" if ":" in host else host
    names = ["localhost", "127.0.0.1", "[::1]", own]
    return Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)


def _say_error(request, error):
    """Answers a request that raised a `RequestError`."""
    return JSONResponse({"error": str(error)}, error.status)


def _say_failure(request, error):
    """Answers a request that raised another error; Uvicorn logs the traceback."""
    return JSONResponse({"error": f"The server failed: {error}"}, 500)


def _say_nothing(request, error):
    """Answers a client that has hung up, which nobody reads."""
    return Response(status_code=499)


def _say_malformed(request, error):
    """Answers a request that no route matches."""
    model = f"/v1/models/{request.app.state.model.name}"
    path = request.url.path
    message = (
        f"There is no {request.method} {path}. Ask GET /, GET {model}, GET "
        f"{model}/metadata or POST {model}:predict."
    )
    status = 400 if path.startswith("/v1/") else 404
    return JSONResponse({"error": message}, status)


def _model_of(request):
    """Returns the model if it is the one that the path names."""
    model = request.app.state.model
    own = {"name": model.name, "version": str(model.version)}
    if own | request.path_params != own:
        raise RequestError(
            f"This server only has version {model.version} of {model.name}. Received: "
            f"{request.url.path:.200}",
            404,
        )
    return model


async def status(request: Request) -> Response:
    """Answers the state of the version."""
    version = {
        "version": str(_model_of(request).version),
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return JSONResponse({"model_version_status": [version]})


async def metadata(request: Request) -> Response:
    """Answers the signatures as TensorFlow describes them."""
    model = _model_of(request)
    spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
    signatures = {"signature_def": {"signature_def": model.definitions}}
    return JSONResponse({"model_spec": spec, "metadata": signatures})


async def predict(request: Request) -> Response:
    """Answers the outputs of a signature, one request at a time."""
    body = await request.body()
    seconds = request.app.state.seconds
    cancellation, cancelled = cancellation_of_graphs()
    answer = asyncio.get_running_loop().run_in_executor(
        request.app.state.worker, _predict, request, body, cancelled
    )
    # After the body the client only says that it has hung up.
    hung_up = asyncio.ensure_future(request.receive())
    try:
        ended, _ = await asyncio.wait(
            {answer, hung_up}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        hung_up.cancel()
        if not answer.done():  # Nobody waits for it: loops of the graph end.
            answer.cancel()
            cancellation.start_cancel()
    if answer in ended:
        return Response(await answer, media_type="application/json")
    if hung_up in ended:
        raise ClientDisconnect
    raise RequestError(f"There is no answer after {seconds:g} s.", 504)


def _predict(request, body, cancelled):
    document = _document(request, body)
    signatures = _model_of(request).signatures
    name = document.get("signature_name", "")
    if name == "":
        name = "serving_default"
    if not isinstance(name, str) or name not in signatures:
        raise RequestError(
            f"`signature_name` must be one of {', '.join(sorted(signatures))}. "
            f"Received: {name!r}"
        )
    form, inputs = read_inputs(document, signatures[name].inputs)
    with cancelled:
        outputs = signatures[name](inputs)
    return write_outputs(outputs, form)


def _document(request, body):
    encoding = request.headers.get("content-encoding", "identity")
    return read_json(body, encoding)


async def correct(request: Request) -> Response:
    """Appends the pairs of a request to the file of corrections, or none of them."""
    kind = request.headers.get("content-type", "")
    # A page of another site can send every other type without asking first.
    if kind.partition(";")[0] != "application/json":
        raise RequestError(
            f"`Content-Type` must be application/json. Received: {kind:.200}", 415
        )
    document = _document(request, await request.body())
    inputs = read_inputs(document, _CORRECTIONS)[1]
    check_bytes(inputs)
    lines = []
    for row, pair in enumerate(inputs["pairs"]):
        texts, problems = checked(pair)
        for problem in filter(None, problems):
            raise RequestError(f"`pairs[{row}]` must be two texts: its {problem}.")
        lines.append(pair_line(*texts))
    try:
        await asyncio.to_thread(append_lines, request.app.state.corrections, lines)
    except OSError as error:
        raise RequestError(f"Nothing was kept: {error}", 507) from error
    return JSONResponse({"kept": len(lines)})
