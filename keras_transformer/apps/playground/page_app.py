"""The playground's page and what it asks for, as a Starlette application.

- `GET /`, and the files of the page;
- `GET /api/run`: what there is to choose;
- `POST /api/translate`, `POST /api/attend`: a JSON object of a method's arguments.

The model answers one question at a time. It does not begin with a question whose page
has been closed or has asked another one since.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from keras_transformer.apps.playground.played_run import PlayedRun
from keras_transformer.apps.serving.rest_app import (
    say_error,
    say_failure,
    say_nothing,
    trusted_hosts,
)
from keras_transformer.apps.serving.tensors import RequestError, read_json

PAGE = Path(__file__).with_name("page")
# The page of `export --format web`, of which some files are this page's too.
SHARED = Path(__file__).parents[2] / "formats" / "web_page"
FILES = {
    "/": PAGE / "index.html",
    "/playground.css": PAGE / "playground.css",
    "/playground.js": PAGE / "playground.js",
    "/attention.js": PAGE / "attention.js",
    "/style.css": SHARED / "style.css",
    "/page.js": SHARED / "page.js",
}
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(
    run: PlayedRun, host: str, languages: Sequence[str] | None = None
) -> Starlette:
    """Returns the application of a run that listens at a host."""
    app = Starlette(
        routes=[
            *(Route(path, _file) for path in FILES),
            Route("/api/run", _facts),
            Route("/api/translate", _answer, methods=["POST"]),
            Route("/api/attend", _answer, methods=["POST"]),
        ],
        middleware=[trusted_hosts(host)],
        exception_handlers={
            RequestError: say_error,
            ClientDisconnect: say_nothing,
            Exception: say_failure,
        },
    )
    app.state.facts = {"languages": languages and list(languages), **run.facts}
    app.state.methods = {"/api/translate": run.translate, "/api/attend": run.attend}
    app.state.turn = asyncio.Lock()
    return app


async def _file(request: Request) -> Response:
    path = FILES[request.scope["path"]]
    return FileResponse(path, headers=HEADERS, media_type=_TYPES[path.suffix])


async def _facts(request: Request) -> Response:
    return JSONResponse(request.app.state.facts)


async def _answer(request: Request) -> Response:
    method = request.app.state.methods[request.scope["path"]]
    question = read_json(await request.body())
    try:
        inspect.signature(method).bind(**question)
    except TypeError as error:
        raise RequestError(f"The question does not fit: {error}.") from None
    async with request.app.state.turn:
        if await request.is_disconnected():
            return Response()
        begin = time.perf_counter()
        answer = await asyncio.to_thread(method, **question)
    milliseconds = round(1000 * (time.perf_counter() - begin), 1)
    return JSONResponse({"milliseconds": milliseconds, **answer})
