"""Models that translate at once and by rules, and a server that has them."""

from __future__ import annotations

import asyncio
import threading

import numpy as np

from keras_transformer.playground import PlaygroundConfig
from keras_transformer.playground.app import Playground
from keras_transformer.playground.played_model import Offer, looked_at
from keras_transformer.serving.connections import uvicorn_server
from keras_transformer.serving.errors import bad_request
from keras_transformer.serving.server import bind, shown_address

RUN = Offer(
    name="runs/a", kind="run", beam_size=4, several=True, prefix=True, sampling=True,
    attention="any", layers=2, layer=1, heads=2, missing=(),
)  # fmt: skip
SAVED_MODEL = Offer(
    name="saved_models/b", kind="SavedModel", beam_size=None, several=True,
    prefix=False, sampling=False, attention="best", layers=0, layer=0, heads=0,
    missing=("Its beam was fixed.", "It takes no beginning."),
)  # fmt: skip
BARE = Offer(
    name="saved_models/c", kind="SavedModel", beam_size=None, several=False,
    prefix=False, sampling=False, attention="none", layers=0, layer=0, heads=0,
    missing=("It does not tell what it looks at.",),
)  # fmt: skip


class Toy:
    """Says a text in capitals; each word looks at its own, and a little at the next.

    Texts that begin with "slow" wait until `go` is set, "none" has no translation,
    "cut" is cut, "bad" is an error and "worse" one that nobody foresaw.
    """

    def __init__(self, offer: Offer = RUN):
        self.offer = offer
        self.asked = []
        self.go = threading.Event()

    def translate(self, question):
        self.asked.append(question)
        text = question.text
        if text.startswith("slow"):
            self.go.wait(20)
        if text == "bad":
            raise bad_request("This text is bad.")
        if text == "worse":
            raise RuntimeError("no memory")
        return {
            "translations": [] if text == "none" else self._translations(question),
            "truncated": text == "cut",
        }

    def _translations(self, question):
        text = question.text
        if question.temperature is not None:
            seeds = range(question.seed, question.seed + question.count)
            texts = [f"{text} {seed}" for seed in seeds]
        elif question.prefix:
            texts = [f"{question.prefix} {text.upper()}"]
        else:
            texts = [text.upper(), text.title(), text.swapcase(), f"{text}!"]
            texts = texts[: min(question.count, question.beam_size or 4)]
        return [
            {"text": text, "score": -1.0 - i, "tokens": [5 + i, 2]}
            for i, text in enumerate(texts)
        ]

    def attend(self, question):
        self.asked.append(question)
        row = {
            "source_tokens": _tokens(question.text),
            "target_tokens": _tokens(question.translation),
        }
        sizes = len(row["target_tokens"]), len(row["source_tokens"])
        weights = 0.75 * np.eye(*sizes) + 0.25 * np.eye(*sizes, k=1)
        return looked_at(row, weights)


def _tokens(text):
    """Pieces of at most four letters, and the end."""
    words = [f"▁{word}" for word in text.split()]
    pieces = [word[i : i + 5] for word in words for i in range(0, len(word), 5)]
    return [piece.encode() for piece in (*pieces, "</s>")]


class Server:
    """Serves a playground at `url` in a thread. A context manager."""

    def __init__(self, models, languages=None, port=0, **options):
        config = PlaygroundConfig(port=port, **options)
        self._playground = Playground(models, config, languages)
        self._server = uvicorn_server(self._playground, 1.0)
        self._socket = bind(config.host, config.port)
        self._socket.listen()
        self.url = shown_address(self._socket)
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Ends the server: from here on its address cannot be reached."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
