"""A run that translates at once and by rules, and a server of it."""

import threading

import numpy as np

from keras_transformer.apps.playground.page_app import make_app
from keras_transformer.apps.serving.tensors import RequestError
from keras_transformer.text.words import labels_of, words_of
from tests.serving.tiny_models import serving

FACTS = {
    "name": "runs/a", "beam_size": 4, "layers": 2, "layer": 1, "heads": 2,
    "max_text_length": 60, "examples": ["a quick fox", "a dog", "a bear"],
}  # fmt: skip


class Toy:
    """Says a text in capitals; each word looks at its own, and a little at the next.

    Texts that begin with "slow" wait until `go` is set, "none" has no translation,
    "cut" is cut, "bad" is an error and "worse" one that nobody foresaw.
    """

    facts = FACTS

    def __init__(self):
        self.asked = []
        self.running = self.most_running = 0
        self.go = threading.Event()

    def translate(
        self, text, count=1, beam_size=None, prefix="", temperature=None, seed=0
    ):
        self.asked.append(
            {
                "text": text,
                "count": count,
                "beam_size": beam_size,
                "prefix": prefix,
                "temperature": temperature,
                "seed": seed,
            }
        )
        if text.startswith("slow"):
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.go.wait(20)
            self.running -= 1
        if text == "bad":
            raise RequestError("This text is bad.")
        if text == "worse":
            raise RuntimeError("no memory")
        texts = [text.upper(), text.title(), text.swapcase(), f"{text}!"][:beam_size]
        if temperature is not None:
            texts = [f"{text} {seed + i}" for i in range(count)]
        elif prefix:
            texts = [f"{prefix} {text.upper()}"]
        found = [
            {"text": text, "score": -1.0 - i, "tokens": [5 + i, 2]}
            for i, text in enumerate([] if text == "none" else texts[:count])
        ]
        return {"translations": found, "truncated": text == "cut"}

    def attend(self, text, tokens, layer, head=None):
        """The translation is as in `translate`: the place is that of the tokens."""
        self.asked.append({"tokens": tokens, "layer": layer, "head": head})
        said = [text.upper(), text.title(), text.swapcase(), text][tokens[0] - 5]
        pieces = {"source": _pieces(text), "target": _pieces(said)}
        sizes = len(pieces["target"]), len(pieces["source"])
        weights = 0.75 * np.eye(*sizes) + 0.25 * np.eye(*sizes, k=1)
        sides = {
            side: {"pieces": labels_of(found), "words": words_of(found)}
            for side, found in pieces.items()
        }
        return sides | {"weights": weights.tolist()}


def _pieces(text):
    """Pieces of at most four letters, and the end."""
    words = [f"▁{word}" for word in text.split()]
    pieces = [word[i : i + 5] for word in words for i in range(0, len(word), 5)]
    return [*pieces, "</s>"]


def playing(toy, languages=("en", "de"), port=0):
    """Serves a playground in a thread; gives its address. A context manager."""
    return serving(make_app(toy, "127.0.0.1", languages), port)
