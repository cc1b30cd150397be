"""The playground's page and what it asks for, as an ASGI application.

- `GET /`, and the files of the page;
- `GET /api/models`: what each model can be asked for;
- `POST /api/translate`, `POST /api/attend`: a question of `questions`, as JSON.

Every request must name this server as its `Host` and, where a browser tells, come from
its own page, so that no other page can use it. The models answer one question at a
time; a question whose page has gone, or has asked anew, is not begun.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from keras_transformer.playground.config import PlaygroundConfig
from keras_transformer.playground.played_model import Offer, PlayedModel
from keras_transformer.playground.questions import (
    AttentionQuestion,
    TranslationQuestion,
)
from keras_transformer.serving.errors import RequestError, bad_request, run_error
from keras_transformer.serving.predict_request import parse_json
from keras_transformer.serving.request_body import read_body
from keras_transformer.serving.request_head import check_framing, check_host

PAGE = Path(__file__).with_name("page")
# The page of `export --format web`, of which some files are this page's too.
SHARED = Path(__file__).parents[1] / "export" / "web_page"
_FILES = {
    "/": (PAGE / "index.html", "text/html"),
    "/playground.css": (PAGE / "playground.css", "text/css"),
    "/playground.js": (PAGE / "playground.js", "text/javascript"),
    "/attention.js": (PAGE / "attention.js", "text/javascript"),
    "/style.css": (SHARED / "style.css", "text/css"),
    "/page.js": (SHARED / "page.js", "text/javascript"),
}
_QUESTIONS = {
    "/api/translate": TranslationQuestion,
    "/api/attend": AttentionQuestion,
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MOST_BYTES = 2**18  # of a request's body
MOST_WAITING = 16  # questions
_BODY_SECONDS = 10.0

logger = logging.getLogger(__package__)


class Playground:
    """Answers every request.

    Args:
        models: The models, in the order of the page.
        config: Its `host` is a name that requests may give.
        languages: Codes of source and target language, or `None`.
    """

    def __init__(
        self,
        models: Sequence[PlayedModel],
        config: PlaygroundConfig,
        languages: Sequence[str] | None = None,
    ):
        self._models = models
        self._config = config
        self._languages = None if languages is None else list(languages)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "model")

    async def __call__(self, scope, receive, send):
        """Answers one request; called by the web server (ASGI)."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except RequestError as error:
            response = _json({"error": error.message}, error.status, error.headers)
        except ClientDisconnect:
            return
        except Exception:
            logger.exception("%s %s failed", request.method, scope["path"])
            response = _json({"error": "The server failed; its terminal says why"}, 500)
        response.headers.update(HEADERS)
        await response(scope, receive, send)

    async def warm(self):
        """Asks the models what they were not asked yet: a first answer takes seconds.

        The page's own questions come in between.
        """
        for number, model in enumerate(self._models):
            for question in first_questions(number, model.offer):
                async with self._turn:
                    with contextlib.suppress(RequestError):
                        await self._ask(_answer_of(model, question), question)

    async def _answer(self, request):
        check_framing(request)
        check_host(request, self._config.host, is_strict=True)
        check_origin(request)
        method, path = request.method, request.scope["path"]
        if method == "POST" and path in _QUESTIONS:
            return _json(await self._reply(request, _QUESTIONS[path]))
        if method == "GET" and path == "/api/models":
            return _json(self._offers())
        if method == "GET" and path in _FILES:
            file, media_type = _FILES[path]
            return Response(file.read_bytes(), media_type=media_type)
        if path in _FILES or path in _QUESTIONS or path == "/api/models":
            raise RequestError(405, f"{path} is not there for {method}.")
        raise RequestError(404, f"There is no {path}.")

    def _offers(self):
        return {
            "languages": self._languages,
            "max_text_length": self._config.max_text_length,
            "models": [dataclasses.asdict(model.offer) for model in self._models],
        }

    async def _reply(self, request, kind):
        body = await read_body(request, MOST_BYTES, _BODY_SECONDS)
        question = kind.read(parse_json(body), self._config.max_text_length)
        if question.model >= len(self._models):
            raise bad_request(f"There is no model {question.model}.")
        answer = _answer_of(self._models[question.model], question)
        if self._waiting >= MOST_WAITING:
            raise RequestError(503, "Too many questions wait: try again later.")
        self._waiting += 1
        try:
            async with self._turn:
                if await request.is_disconnected():
                    raise ClientDisconnect
                return await self._ask(answer, question)
        finally:
            self._waiting -= 1

    async def _ask(self, answer, question):
        begin = time.perf_counter()
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, answer, question)
        except RequestError:
            raise
        except Exception as error:
            logger.exception("a model failed")
            raise run_error(error) from error
        milliseconds = 1000 * (time.perf_counter() - begin)
        return {"milliseconds": round(milliseconds, 1)} | found


def first_questions(
    number: int, offer: Offer
) -> list[TranslationQuestion | AttentionQuestion]:
    """Returns a question of each kind that loading a model has not asked."""
    questions: list[TranslationQuestion | AttentionQuestion] = []
    if offer.attention == "best":
        questions.append(AttentionQuestion(number, ".", translation=""))
    if offer.prefix:
        questions.append(TranslationQuestion(number, ".", prefix="."))
    if offer.sampling:
        questions.append(TranslationQuestion(number, ".", temperature=1.0))
    return questions


def _answer_of(model, question):
    is_attention = isinstance(question, AttentionQuestion)
    return model.attend if is_attention else model.translate


def check_origin(request: Request):
    """Raises a `RequestError` if another page asks, or if it is no JSON that it sends.

    A page elsewhere can send a form or plain text to any server, unasked; JSON it can
    send only to one that allows it, which this one never does.
    """
    headers = request.headers
    origin = headers.get("origin")
    is_own = origin is None or origin.partition("://")[2] == headers["host"]
    is_own &= headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    is_link = request.method == "GET" and request.scope["path"] == "/"
    if not is_own and not is_link:
        raise RequestError(403, "Only the page of this server may ask it.")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise RequestError(415, "A question is sent as application/json.")


def _json(document, status=200, headers=None):
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    return Response(text, status, headers, media_type="application/json")
