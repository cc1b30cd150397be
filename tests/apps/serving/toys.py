"""A served model that translates at once and by rules, and a server of it."""

import threading

import numpy as np

from keras_transformer.apps.serving.rest_app import make_app
from keras_transformer.apps.serving.tensors import RequestError
from keras_transformer.search.strings import LOWEST, SIGNATURES
from tests.apps.serving.tiny_models import serving


class Toy:
    """Says a text in capitals; each word looks at its own, and a little at the next.

    Texts that begin with "slow" wait until `go` is set, "none" has no translation,
    "cut" is cut, "bad" is an error and "worse" one that nobody foresaw.
    """

    name = "a & b"
    version = 3
    definitions = {}

    def __init__(self):
        examples = ["a quick fox", "a dog", "a bear"]
        self.page = {"languages": ["en", "de"], "examples": examples}
        names = "serving_default", "nbest", "complete", "sample", "align"
        self.signatures = {
            name: _Signature(self, getattr(self, name)) for name in names
        }
        self.asked = []
        self.running = 0
        self.go = threading.Event()

    def serving_default(self, text):
        found = self.nbest(text)
        score = found["scores"][0][0]
        sources = [line for line in text[0].split("\n") if line]
        says = [source.upper() if score > LOWEST else "" for source in sources]
        return {
            "translation": [text[0].upper() if any(says) else ""],
            "score": [score],
            "truncated": found["truncated"],
            "doubts": ["copy score" if text[0] == "doubtful" else ""],
            "sources": [sources],
            "translations": [says],
            "scores": [[score] * len(sources)],
        }

    def nbest(self, text):
        text = text[0]
        if text.startswith("slow"):
            self.running += 1
            self.go.wait(20)
        if text == "bad":
            raise RequestError("This text is bad.")
        if text == "worse":
            raise RuntimeError("no memory")
        scores = [LOWEST] * 5 if text == "none" else [-1.0, -2.0, -3.0, -4.0, LOWEST]
        texts = [text.upper(), text.title(), text.swapcase(), f"{text}!", ""]
        return {"translations": [texts], "scores": [scores], "truncated": text == "cut"}

    def complete(self, text, prefix):
        texts = [f"{prefix[0]} {text[0].upper()}"]
        return {"translation": texts, "score": [-1.0], "truncated": False}

    def sample(self, text, temperature, seed):
        pairs = zip(text, seed, strict=True)
        texts = [f"{one} {its_seed}" for one, its_seed in pairs]
        return {"translation": texts, "score": [-1.0] * len(texts), "truncated": False}

    def align(self, text):
        source = _pieces(text[0])
        target = _pieces(text[0].upper())
        size = len(target)
        return {
            "translation": [text[0].upper()],
            "source_tokens": [source],
            "target_tokens": [target],
            "attention": [0.75 * np.eye(size) + 0.25 * np.eye(size, k=1)],
            "truncated": False,
        }


class _Signature:
    """A method as a signature: it notes what it is asked."""

    def __init__(self, toy, call):
        self.inputs = SIGNATURES[call.__name__].inputs
        self._toy = toy
        self._call = call

    def __call__(self, inputs):
        given = {
            name: [x.decode() for x in column] if column.dtype == object else column
            for name, column in inputs.items()
        }
        columns = {name: list(column) for name, column in given.items()}
        self._toy.asked.append((self._call.__name__, columns))
        outputs = self._call(**given)
        rows = len(given["text"])
        outputs["truncated"] = [outputs["truncated"]] * rows
        return {name: _array(values) for name, values in outputs.items()}


def _array(values):
    array = np.array(values)
    is_text = array.dtype.kind == "U"
    return np.char.encode(array, "utf-8").astype(object) if is_text else array


def _pieces(text):
    """Pieces of at most four letters, and the end."""
    words = [f"▁{word}" for word in text.split()]
    pieces = [word[i : i + 5] for word in words for i in range(0, len(word), 5)]
    return [*pieces, "</s>"]


def toy_serving(toy, port=0, corrections=None):
    """Serves a toy and its page in a thread; gives its address. A context manager."""
    return serving(make_app(toy, "127.0.0.1", corrections=corrections), port)
