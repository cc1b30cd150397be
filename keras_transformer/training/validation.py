"""The figures of a run's validation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from keras_transformer.search.run_directory import TEST, record_scores
from keras_transformer.search.translator import Translator
from keras_transformer.terminal import say
from keras_transformer.text import BadLines, open_pairs
from keras_transformer.training.evaluation import evaluate_translator

# What is lower than this share of the validation's scores is doubtful. Fewer sentences
# do not say what that is.
_LOWEST = 0.01
_FEWEST = 50


class Validation:
    """Computes loss, accuracy and perplexity of the validation pairs, and maybe BLEU.

    BLEU is that of `evaluate_translator`, of greedy translations of some pairs, which
    are faster than a beam.
    """

    def __init__(self, run: Any):
        self._run = run
        self._pairs = []
        options = run.config.training
        translator = run.translator
        if run.validation is not None and options.monitor == "bleu":
            self._pairs = _some_pairs(run)
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
        scores = evaluate_translator(self._translate, self._pairs)
        if not self._is_described:
            self._is_described = True
            say(
                run.console,
                f"val_bleu of {scores.sentences:,} sentences, by greedy search: "
                f"{scores.bleu_signature}",
            )
        return figures | {
            "val_bleu": scores.bleu,
            "val_bleu_lowercase": scores.lowercase_bleu,
        }


def doubting(run: Any) -> Translator:
    """Returns the run's translator, which doubts what its validation scores too low.

    That is below the lowest hundredth of the scores, of 50 sentences or more.
    """
    translator = run.translator
    if run.validation is None or run.validation.num_pairs < _FEWEST:
        return translator
    say(run.console, "learning from validation sentences which scores are low")
    sources = [source for source, _ in _some_pairs(run)]
    found = translator.translate(sources)
    scores = [sentence.score for one in found for sentence in one.sentences]
    scores = [score for score in scores if math.isfinite(score)]
    if not scores:
        return translator
    lowest = round(float(np.quantile(scores, _LOWEST)), 3)
    config = translator.config.replace(doubt_below=lowest)
    return Translator(translator.model, translator.tokenizers, config)


def score_test_set(run: Any, translator: Translator) -> dict[str, Any]:
    """Scores the saved translator on the run's own test set, if it has one.

    Records the scores, and returns them for the summary under "test".
    """
    if run.job.test is None:
        return {}
    path = run.path / TEST
    text = open_pairs(path)
    pairs = [pair[1:] for pair in text.pairs()]
    scores = dataclasses.asdict(evaluate_translator(translator, pairs))
    record_scores(run.path, TEST, text.fingerprint(), translator.config, scores)
    return {"test": scores}


def _some_pairs(run):
    """Returns pairs from the whole validation text, which may be sorted by length."""
    pairs = run.validation.text.pairs(BadLines(run.config.data.bad_line_share))
    pairs = [pair[1:] for pair in pairs]
    count = min(run.config.training.bleu_sentences, len(pairs))
    return [pairs[number * len(pairs) // count] for number in range(count)]
