"""Ours on LiteRT or ONNX Runtime: strings in and out, without TensorFlow."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from workload import Setting, Size, source_ids, word

from keras_transformer.formats import LiteTranslator


class Peer:
    """Calls a `LiteTranslator`; see `worker.Contender`.

    `folder` holds what `export_ours.py` wrote.
    """

    versions = {name: version(name) for name in ("ai-edge-litert", "onnxruntime")}

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        self._folder, self._threads = Path(folder), threads
        self._translators = {}
        self._translate, self._texts = None, []

    def prepare(self, setting: Setting):
        """Loads the export of this beam and makes the sentences, as strings."""
        if setting.beam not in self._translators:
            path = self._folder / f"beam{setting.beam}" / "1"
            self._translators[setting.beam] = LiteTranslator(path, self._threads)
        self._translate = self._translators[setting.beam]
        # The tokenizer adds the end id itself.
        rows = source_ids(setting.batch)[:, :-1]
        self._texts = [" ".join(map(word, row)) for row in rows]

    def run(self):
        """Translates all sentences, as many at once as `LiteTranslator` likes."""
        return self._translate(self._texts)

    def result(self, output) -> list[int]:
        """Tokens decoded for each sentence: each is a word of the vocabulary."""
        return [len(text.split()) for text in output]
