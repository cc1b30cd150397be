"""What readers correct, kept in a file of training pairs: source, tab, correction."""

from __future__ import annotations

import asyncio
from pathlib import Path

import tensorflow as tf
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.apps.serving.served_model import check_bytes
from keras_transformer.apps.serving.tensors import RequestError, read_inputs, read_json
from keras_transformer.files import append_lines
from keras_transformer.text.lines import pair_line
from keras_transformer.text.parallel_text import checked

_INPUTS = {"pairs": tf.TensorSpec([None, 2], tf.string)}


def corrections_route(file: Path) -> Route:
    """Returns the route that appends to a file, which must be one to write."""
    append_lines(file, [])

    async def correct(request: Request) -> Response:
        kind = request.headers.get("content-type", "")
        # A page of another site can send every other type without asking first.
        if kind.partition(";")[0].strip() != "application/json":
            raise RequestError(
                f"`Content-Type` must be application/json. Received: {kind:.200}", 415
            )
        body = await request.body()
        encoding = request.headers.get("content-encoding", "identity")
        kept = await asyncio.to_thread(_keep, file, read_json(body, encoding))
        return JSONResponse({"kept": kept})

    return Route("/corrections", correct, methods=["POST"])


def _keep(file, document):
    """Appends the pairs of a request, or none of them; returns their number."""
    _, inputs = read_inputs(document, _INPUTS)
    check_bytes(inputs)
    lines = []
    for row, pair in enumerate(inputs["pairs"]):
        texts, problems = checked(pair)
        for problem in filter(None, problems):
            raise RequestError(f"`pairs[{row}]` must be two texts: its {problem}.")
        lines.append(pair_line(*texts))
    try:
        append_lines(file, lines)
    except OSError as error:
        raise RequestError(f"Nothing was kept: {error}", 507) from error
    return len(lines)
