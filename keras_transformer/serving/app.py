"""TensorFlow Serving's REST interface as an ASGI application.

Paths, messages and status codes follow http_rest_api_handler.cc, http_rest_api_util.cc
and get_model_status_impl.cc of TensorFlow Serving:

- `GET /v1/models/NAME[/versions/V]`: the state of the versions;
- `GET /v1/models/NAME[/versions/V]/metadata`: the signatures;
- `POST /v1/models/NAME[/versions/V]:predict`: runs a signature.

Deliberate differences, besides those that `predict_request`, `predict_response`,
`json_arrays` and `versions` name:

- A path outside /v1/ is answered 404 with a JSON body in place of an HTML one.
- `:classify`, `:regress` and labels of versions are unknown. TensorFlow Serving answers
  them 400, too, for the signatures of TensorFlow 2 and where no labels are configured.
- A body may be too large (413), have too many instances (400), come too slowly (408) or
  have another encoding than gzip (415), and an answer may be too large (400).
- A `Host` of another machine is answered 403, a length given in two ways 400.
- Too many requests at a time are answered 503.
- A request that takes too long is answered 504, as there, but the batch that runs goes
  on to its end.
"""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.parse
from typing import NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_transformer.serving.config import ServingConfig
from keras_transformer.serving.errors import RequestError, bad_request, run_error
from keras_transformer.serving.predict_request import (
    parse_json,
    read_predict,
    signature_name_of,
)
from keras_transformer.serving.predict_response import to_body, write_outputs
from keras_transformer.serving.request_body import decode_body, read_body
from keras_transformer.serving.request_head import check_framing, check_host
from keras_transformer.serving.versions import LARGEST_VERSION, ModelVersions

_VERSION = r"(?:(?i:/versions)/(?P<version>[0-9]+))?"
_PATHS = {
    "GET": rf"(?i:/v1/models)(?:/(?P<name>[^/:]+))?{_VERSION}(?P<verb>/metadata)?",
    "POST": rf"(?i:/v1/models)/(?P<name>[^/:]+){_VERSION}(?P<verb>:predict)",
}
logger = logging.getLogger(__name__)


class _Target(NamedTuple):
    """The model, version and action that a path names."""

    name: str
    number: int | None
    verb: str | None


class RestApi:
    """Answers every request.

    Args:
        versions: The model, each version a `ServedModel`.
        config: The limits.
    """

    def __init__(self, versions: ModelVersions, config: ServingConfig):
        self._versions = versions
        self._config = config
        self._limit = int(config.max_request_mib * 2**20)
        self._in_progress = 0

    async def __call__(self, scope, receive, send):
        """Answers one request; called by the web server (ASGI)."""
        request = Request(scope, receive)
        status, headers = 200, None
        try:
            body = await self._answer(request)
        except RequestError as error:
            status, headers = error.status, error.headers
            body = to_body({"error": error.message})
        except ClientDisconnect:
            return
        except Exception:
            logger.exception("%s %s failed", request.method, scope["path"])
            status, body = 500, to_body({"error": "Internal error"})
        response = Response(body, status, headers, media_type="application/json")
        await response(scope, receive, send)

    async def _answer(self, request):
        check_framing(request)
        path = request.scope["raw_path"].decode("latin-1")
        try:
            check_host(request, self._config.host)
            target = _target(request.method, path, self._versions.name)
        except RequestError:
            await self._read_body(request, keep=False)
            raise
        if request.method == "POST":
            return await self._post(request, target)
        if not target.name:
            raise bad_request("Missing model name in request.")
        if target.verb == "/metadata":
            return to_body(self._metadata(target))
        return to_body(self._versions.status(target.name, target.number))

    def _metadata(self, target):
        with self._versions.lease(target.name, target.number) as (number, model):
            spec = {"name": target.name, "signature_name": "", "version": str(number)}
            signatures = {"signature_def": {"signature_def": model.metadata()}}
        return {"model_spec": spec, "metadata": signatures}

    async def _post(self, request, target):
        if self._in_progress >= self._config.max_concurrent:
            message = f"{self._in_progress} requests are in progress: try again later"
            await self._read_body(request, keep=False)
            raise RequestError(503, message, {"Retry-After": "1"})
        self._in_progress += 1
        try:
            document = await self._read_document(request)
            async with asyncio.timeout(self._config.request_timeout_s):
                return await self._predict(target, document)
        except TimeoutError:
            raise RequestError(
                504, f"Timed out after {self._config.request_timeout_s:g} seconds"
            ) from None
        finally:
            self._in_progress -= 1

    async def _read_document(self, request):
        body = await self._read_body(request)
        encoding = request.headers.get("content-encoding", "")

        def parse():
            return parse_json(decode_body(body, encoding, self._limit))

        return await asyncio.to_thread(parse)

    async def _read_body(self, request, keep=True):
        seconds = self._config.request_timeout_s
        return await read_body(request, self._limit, seconds, keep)

    async def _predict(self, target, document):
        signature_name = signature_name_of(document)
        with self._versions.lease(target.name, target.number) as (_, model):
            if signature_name not in model.signatures:
                raise bad_request(
                    f'Serving signature name: "{signature_name}" not found in '
                    "signature def"
                )
            signature = model.signatures[signature_name]
            form, inputs = await asyncio.to_thread(
                read_predict, document, signature.inputs
            )
            self._check_instances(inputs)
            # The JSON takes many times the memory of the arrays, and the wait is long.
            document.clear()
            try:
                outputs = await signature.call(inputs)
            except RequestError:
                raise
            except Exception as error:
                raise run_error(error) from error
            return await asyncio.to_thread(write_outputs, outputs, form)

    def _check_instances(self, inputs):
        limit = self._config.max_instances
        size = max((len(array) for array in inputs.values() if array.ndim), default=1)
        if size > limit:
            raise bad_request(
                f"Task size {size} is larger than maximum input batch size {limit}"
            )


def _target(method, path, name):
    """Returns what a path names, as TensorFlow Serving reads it."""
    if not path.lower().startswith("/v1/"):
        raise RequestError(
            404,
            f"Not found: {path}. GET /v1/models/{name} says whether the model is "
            f"there, and POST /v1/models/{name}:predict asks it",
        )
    match = re.fullmatch(_PATHS[method], path) if method in _PATHS else None
    if match is None:
        raise bad_request(f"Malformed request: {method} {path}")
    number = None if match["version"] is None else _number(match["version"])
    return _Target(urllib.parse.unquote(match["name"] or ""), number, match["verb"])


def _number(digits):
    significant = digits.lstrip("0")[:30] or "0"
    if int(significant) > LARGEST_VERSION:
        raise bad_request(f"Failed to convert version: {digits} to numeric.")
    return int(significant)
