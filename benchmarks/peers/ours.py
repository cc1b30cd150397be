"""Ours: the SavedModel's own signature, with nothing of this project imported."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
import tensorflow_text
from workload import Setting, Size, source_ids, word


class Peer:
    """Calls `serving_default`, strings in and strings out; see `worker.Contender`.

    `folder` holds what `export_ours.py` wrote.
    """

    versions = {
        "tensorflow": tf.__version__,
        "tensorflow-text": tensorflow_text.__version__,
    }

    def __init__(self, size: Size, variant: str, threads: int, folder: str):
        self._folder = Path(folder)
        self._modules = {}
        self._serve, self._texts = None, None

    def prepare(self, setting: Setting):
        """Loads the export of this beam and makes the sentences, as strings."""
        if setting.beam not in self._modules:
            path = self._folder / f"beam{setting.beam}" / "1"
            self._modules[setting.beam] = tf.saved_model.load(str(path))
        self._serve = self._modules[setting.beam].signatures["serving_default"]
        # The tokenizer adds the end id itself.
        rows = source_ids(setting.batch)[:, :-1]
        self._texts = tf.constant([" ".join(map(word, row)) for row in rows])

    def run(self):
        """Translates all sentences as one batch: strings [B]."""
        return self._serve(text=self._texts)["translation"].numpy()

    def result(self, output) -> list[int]:
        """Tokens decoded for each sentence: each is a word of the vocabulary."""
        return [len(text.split()) for text in output]
