"""What validation says: figures, the best intervals, when to stop."""

from __future__ import annotations

import csv
import io
import math

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import Corpus, TrainingConfig, Translator, train
from keras_transformer.evaluation import evaluate
from keras_transformer.training.state import StateFiles
from keras_transformer.training.validation import (
    check_validated,
    rows_to_average,
    without_progress,
)
from tests import tiny_run


def rows_of(values, name="val_loss"):
    return [{"step": n, name: value} for n, value in enumerate(values, start=1)]


# The best of the losses so far, at most two, of equals the earlier.
LOSSES = [5.0, 4.0, 4.0, 6.0, 3.0, math.nan, 2.0]
BEST = [[1], [1, 2], [2, 3], [2, 3], [2, 5], [2, 5], [5, 7]]
# Losses without a new best at the end; a tie is none, nor is no number.
WITHOUT = [0, 0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize("sign", [1, -1])
def test_lower_losses_and_higher_scores_are_better(sign):
    name = {1: "loss", -1: "bleu"}[sign]
    options = TrainingConfig(average="best", average_checkpoints=2, monitor=name)
    rows = rows_of([sign * value for value in LOSSES], f"val_{name}")
    for end, best, waited in zip(range(1, 8), BEST, WITHOUT, strict=True):
        kept = rows_to_average(rows[:end], options)
        assert [row["step"] for row in kept] == best
        assert without_progress(rows[:end], options) == waited


def test_what_is_no_number_is_no_progress():
    options = TrainingConfig(average="best", average_checkpoints=2)
    rows = rows_of([math.nan, math.nan, 5.0, math.nan])
    assert [without_progress(rows[:end], options) for end in range(1, 5)] == [
        1,
        2,
        0,
        1,
    ]
    # It is kept until there are better ones.
    assert [row["step"] for row in rows_to_average(rows[:2], options)] == [1, 2]
    assert [row["step"] for row in rows_to_average(rows, options)] == [1, 3]


def test_the_last_are_averaged_by_default():
    options = TrainingConfig(average_checkpoints=3)
    assert rows_to_average(rows_of(LOSSES)[:2], options) == rows_of(LOSSES)[:2]
    assert rows_to_average(rows_of(LOSSES), options)[0]["step"] == 5


NEEDS_VALIDATION = {
    "`average` 'best'": {"average": "best"},
    "`monitor` 'bleu'": {"monitor": "bleu"},
    "`patience`": {"patience": 2},
}


@pytest.mark.parametrize("name", NEEDS_VALIDATION)
def test_an_option_that_needs_validation_pairs_says_so(name):
    options = TrainingConfig(**NEEDS_VALIDATION[name])
    with pytest.raises(ValueError, match=f"^{name} needs validation pairs: give some"):
        check_validated(options, validated=False)
    check_validated(options, validated=True)
    check_validated(TrainingConfig(), validated=False)


# Enough training that some words are right.
LEARNING = {"epochs": 8, "warmup_steps": 20, "learning_rate": 0.11}


def run(directory, *callbacks, console=None, **options):
    config = tiny_run.CONFIG.replace(
        training=tiny_run.CONFIG.training.replace(**LEARNING | options)
    )
    console = Console(quiet=True) if console is None else console
    return train(
        tiny_run.TRAIN, directory / "run", config, tiny_run.VALID, console,
        callbacks=callbacks,
    )  # fmt: skip


def history(directory):
    states = StateFiles(directory / "run" / "states")
    return states.latest(Console(quiet=True)).history


class Score(keras.callbacks.Callback):
    """Scores greedy translations a second way, of the weights and of their average."""

    def __init__(self, directory):
        super().__init__()
        self.directory, self.bleu = directory, []

    def on_epoch_end(self, epoch, logs=None):
        path = max((self.directory / "run" / "checkpoints").iterdir())
        checkpoint = type(self.model)(self.model.config)
        checkpoint.load_weights(path)
        greedy = tiny_run.CONFIG.decoding.replace(beam_size=1)
        tokenizers = Translator.load(self.directory / "run").tokenizers
        self.bleu.append(
            [
                evaluate(Translator(model, tokenizers, greedy), tiny_run.VALID[:7])
                for model in (checkpoint, self.model)
            ]
        )


@pytest.mark.slow
def test_bleu_is_that_of_the_average_of_the_weights_in_two_forms(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, width=400)
    options = {"monitor": "bleu", "bleu_sentences": 7, "ema_decay": 0.9}
    # A finished run, whose tokenizer can be loaded.
    run(tmp_path, epochs=7, **options)
    score = Score(tmp_path)
    run(tmp_path, score, console=console, **options)
    row, ((averaged, raw),) = history(tmp_path)[-1], score.bleu
    assert row["val_bleu"] == pytest.approx(averaged.bleu, abs=1e-9)
    assert row["val_bleu_lowercase"] == pytest.approx(averaged.lowercase_bleu, abs=1e-9)
    assert averaged.bleu != pytest.approx(raw.bleu)
    mixed, lower = [x for x in screen.getvalue().splitlines() if "case:" in x]
    assert "\nBLEU of 7 sentences, by greedy search:\n" in screen.getvalue()
    assert mixed.startswith("val_bleu: nrefs:1|case:mixed")
    assert lower.startswith("val_bleu_lowercase: nrefs:1|case:lc")


@pytest.mark.slow
def test_scoring_leaves_the_training_alone(tmp_path):
    models = [
        run(tmp_path / monitor, epochs=2, monitor=monitor).model
        for monitor in ("loss", "bleu")
    ]
    for a, b in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_average_of_an_optimizer_of_ones_own_is_what_is_validated(tmp_path):
    """As it is what is saved; within an optimizer that scales the loss too."""
    inner = keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0)
    config = tiny_run.CONFIG.replace(
        training=tiny_run.CONFIG.training.replace(epochs=1, average_checkpoints=1)
    )
    translator = train(
        tiny_run.TRAIN, tmp_path / "run", config, tiny_run.VALID, Console(quiet=True),
        optimizer=optimizer,
    )  # fmt: skip
    with open(tmp_path / "run" / "log.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    corpus = Corpus(tiny_run.VALID, translator.tokenizers, config.data)
    dataset = corpus.dataset(shuffle=False)
    saved = translator.model.evaluate(dataset, verbose=0, return_dict=True)["loss"]
    assert float(row["val_loss"]) == pytest.approx(saved, rel=1e-5)
