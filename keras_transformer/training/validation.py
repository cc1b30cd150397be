"""The figures of a run's validation."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import sacrebleu

from keras_transformer.search.run_directory import TEST, record_scores
from keras_transformer.search.translator import Translator
from keras_transformer.terminal import say
from keras_transformer.text import BadLines, open_pairs
from keras_transformer.training.evaluation import evaluate_translator

# A translation of a lower chrF is wrong.
_RIGHT = 40.0
# Doubts are learned from so many pairs. Of 200 they varied twice as much, and fewer
# than 50 do not say what a score is worth.
_MOST_PAIRS = 500
_FEWEST_PAIRS = 50
# Sentences of a step, and steps.
_FEWEST_OF_A_STEP = 20
_MOST_STEPS = 10
_LOWEST = -1e6


class Validation:
    """Computes loss, accuracy and perplexity of the validation pairs, and maybe scores.

    BLEU and chrF are those of `evaluate_translator`, of greedy translations of some
    pairs, which are faster than a beam.
    """

    def __init__(self, run: Any):
        self._run = run
        self._pairs = []
        options = run.config.training
        translator = run.translator
        if run.validation and options.monitor != "loss":
            self._pairs = _some_pairs(run, options.bleu_sentences)
            greedy = translator.config.replace(beam_size=1, n_best=None)
            self._translate = Translator(run.model, translator.tokenizers, greedy)
        self._is_described = False

    def figures(
        self, callbacks: keras.callbacks.CallbackList | None = None
    ) -> dict[str, float]:
        """Returns the figures; their names begin with "val_"."""
        run = self._run
        if not run.validation:
            return {}
        data = run.distribution.dataset(run.validation.dataset(shuffle=False))
        logs = run.model.evaluate(
            data, verbose=0, callbacks=callbacks, return_dict=True
        )
        figures = {f"val_{name}": float(value) for name, value in logs.items()}
        if not self._pairs:
            return figures
        scores = evaluate_translator(
            self._translate, self._pairs, tokenizer=run.bleu_tokenizer
        )
        if not self._is_described:
            self._is_described = True
            say(
                run.console,
                f"scores of {scores.sentences:,} sentences, by greedy search: BLEU "
                f"{scores.bleu_signature}, chrF {scores.chrf_signature}",
            )
        return figures | {
            "val_bleu": scores.bleu,
            "val_bleu_lowercase": scores.lowercase_bleu,
            "val_chrf": scores.chrf,
        }


def doubting(run: Any) -> Translator:
    """Returns the run's translator, which doubts what its validation had wrong."""
    translator = run.translator
    if not run.validation or run.validation.num_pairs < _FEWEST_PAIRS:
        return translator
    say(run.console, "learning from validation sentences which scores are doubtful")
    sources, references = zip(*_some_pairs(run, _MOST_PAIRS), strict=True)
    found = translator.translate(sources)
    chrf = sacrebleu.CHRF().sentence_score
    are_wrong = [
        chrf(one.text, [reference]).score < _RIGHT
        for one, reference in zip(found, references, strict=True)
    ]
    # JSON has no minus infinity, the score where nothing was found.
    scores = np.maximum([one.score for one in found], _LOWEST)
    steps = doubt_steps(scores, np.array(are_wrong))
    config = translator.config.replace(doubt_steps=steps)
    return Translator(translator.model, translator.tokenizers, config)


def doubt_steps(scores: np.ndarray, are_wrong: np.ndarray) -> list[list[float]]:
    """Returns `doubt_steps` of the search, by isotonic regression.

    A step that is not better than the one below it joins that one.
    """
    order = np.argsort(scores, kind="stable")
    count = min(len(order) // _FEWEST_OF_A_STEP, _MOST_STEPS)
    steps: list[np.ndarray] = []
    for step in np.array_split(order, count):
        while steps and are_wrong[step].mean() >= are_wrong[steps[-1]].mean():
            step = np.concatenate([steps.pop(), step])
        steps.append(step)
    rows = [[scores[step[0]], are_wrong[step].mean()] for step in steps]
    return np.round(rows, 3).tolist()


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


def _some_pairs(run, most):
    """Returns pairs from the whole validation text, which may be sorted by length."""
    pairs = run.validation.text.pairs(BadLines(run.config.data.bad_line_share))
    pairs = [pair[1:] for pair in pairs]
    count = min(most, len(pairs))
    return [pairs[number * len(pairs) // count] for number in range(count)]
