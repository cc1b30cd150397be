"""Validation of a run: its figures, the best intervals, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.config import TrainingConfig
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
            pairs = run.validation.text.pairs(BadLines(run.config.data.bad_line_budget))
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


def rank(row: dict[str, float], options: TrainingConfig) -> float:
    """Returns a number that grows with quality by `monitor`; NaN ranks lowest."""
    value = row[f"val_{options.monitor}"]
    if math.isnan(value):
        return -math.inf
    return value if options.monitor == "bleu" else -value


def rows_to_average(rows: Sequence[dict], options: TrainingConfig) -> list[dict]:
    """Returns the rows whose checkpoints are averaged; ties prefer earlier ones."""
    count = options.average_checkpoints
    if options.average != "best":
        return list(rows[-count:])
    best = sorted(rows, key=lambda row: rank(row, options), reverse=True)[:count]
    return sorted(best, key=lambda row: row["step"])


def without_progress(rows: Sequence[dict], options: TrainingConfig) -> int:
    """Returns the number of rows since the best one."""
    ranks = [rank(row, options) for row in rows]
    best = max(ranks, default=-math.inf)
    return len(rows) - (ranks.index(best) + 1 if best > -math.inf else 0)
