"""The figures of a run's validation."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer.search.translator import Translator
from keras_transformer.terminal import say
from keras_transformer.text import BadLines
from keras_transformer.training.evaluation import evaluate


class Validation:
    """Computes loss, accuracy and perplexity of the validation pairs, and maybe BLEU.

    BLEU is that of `evaluate`, of greedy translations of the first pairs, which are
    faster than a beam.
    """

    def __init__(self, run: Any):
        self._run = run
        self._pairs = []
        options = run.config.training
        translator = run.translator
        if run.validation is not None and options.monitor == "bleu":
            pairs = run.validation.text.pairs(BadLines(run.config.data.bad_line_share))
            # Reads all: the end raises an error if the file has changed.
            self._pairs = [pair[1:] for pair in pairs][: options.bleu_sentences]
            greedy = translator.config.replace(beam_size=1, n_best=None)
            self._translate = Translator(run.model, translator.tokenizers, greedy)
        self._is_described = False

    def figures(
        self, callbacks: keras.callbacks.CallbackList | None = None
    ) -> dict[str, float]:
        """Returns the figures; their names begin with "val_"."""
        run = self._run
        if run.validation is None:
            return {}
        data = run.distribution.dataset(run.validation.dataset(shuffle=False))
        logs = run.model.evaluate(
            data, verbose=0, callbacks=callbacks, return_dict=True
        )
        figures = {f"val_{name}": float(value) for name, value in logs.items()}
        if not self._pairs:
            return figures
        scores = evaluate(self._translate, self._pairs)
        if not self._is_described:
            self._is_described = True
            for words in (
                f"BLEU of {scores.sentences:,} sentences, by greedy search:",
                f"val_bleu: {scores.bleu_signature}",
                f"val_bleu_lowercase: {scores.lowercase_bleu_signature}",
            ):
                say(run.console, words)
        return figures | {
            "val_bleu": scores.bleu,
            "val_bleu_lowercase": scores.lowercase_bleu,
        }
