"""Trains, evaluates, exports and translates on sentences that need no download."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import keras
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from keras_transformer.config import (
    DataConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from keras_transformer.evaluation import Scores, evaluate
from keras_transformer.export import ExportedTranslator
from keras_transformer.export.run_facts import record_scores
from keras_transformer.export.saved_model import CARD
from keras_transformer.files import replacing
from keras_transformer.quickstart.grammar import write_corpus
from keras_transformer.terminal import plain_console, printable, say
from keras_transformer.text import open_pairs
from keras_transformer.training import train

# Chosen on the generated validation sentences, for a few minutes on two cores.
CONFIG = RunConfig(
    # Pre-norm is stable at a short run's high rate; a grammar needs no dropout.
    model=TransformerConfig.preset(
        "tiny",
        num_encoder_layers=2,
        num_decoder_layers=2,
        norm_first=True,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        activation_dropout_rate=0.0,
    ),
    tokenizer=TokenizerConfig(vocabulary_size=4000),
    data=DataConfig(batch_tokens=1500),
    training=TrainingConfig(
        epochs=2,
        warmup_steps=300,
        learning_rate=0.0102,
        label_smoothing=0.05,
        average_checkpoints=1,
    ),
)
_TEST = "generated test sentences"
NAME = "quickstart-en-de"  # Of the run and the SavedModel.
SIZES = {"train": 100000, "valid": 500, "test": 500}


def quickstart(
    directory: str | Path | None = None,
    saved_models: str | Path = "saved_models",
    console: Console | None = None,
    config: RunConfig = CONFIG,
    sizes: dict[str, int] | None = None,
) -> Scores:
    """Trains on generated sentences, evaluates, exports, and translates.

    The sentences come from the package's own grammar
    (`keras_transformer.quickstart.grammar`): scores on them show that the system works,
    and say nothing about real text. The scores are those of the SavedModel, read back.

    Args:
        directory: Directory of the run; by default runs/quickstart-en-de.
        saved_models: Directory for the SavedModel, quickstart-en-de/VERSION.
        console: Where progress goes; by default the terminal.
        config: Options of the run.
        sizes: Pairs of each split, "train", "valid" and "test"; default `SIZES`.

    Returns:
        The `Scores` of the test sentences.

    Raises:
        FileExistsError: If `directory` holds something other than its run.
        RuntimeError: If the Keras backend is not TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "The quick start exports a SavedModel; set KERAS_BACKEND=tensorflow. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    console = plain_console() if console is None else console
    name, language = NAME, "de"
    directory = Path("runs") / name if directory is None else Path(directory)
    with tempfile.TemporaryDirectory() as temporary:
        say(console, f"generating English-{language} sentences from the grammar")
        files = write_corpus(temporary, language, **(sizes or SIZES))
        pairs = {split: open_pairs(path) for split, path in files.items()}
        translator = train(pairs["train"], directory, config, pairs["valid"], console)
        test = [(pair.source, pair.target) for pair in pairs["test"].pairs()]
        fingerprint = pairs["test"].fingerprint()
    languages = ("en", language)
    saved_model = translator.export(Path(saved_models) / name)
    say(console, f"exported {saved_model}; translating with it")
    exported = ExportedTranslator(saved_model)
    scores = evaluate(exported, test, directory / "test.translations.txt")
    values = dataclasses.asdict(scores)
    record_scores(directory, _TEST, fingerprint, translator.config, values)
    about = {"name": name, "version": saved_model.name, "dtype": "float32"}
    with replacing(saved_model / CARD) as temporary:
        card = translator.model_card(directory, languages, **about)
        temporary.write_text(card, encoding="utf-8")
    console.print(_samples(exported, test[:6], console.encoding))
    for line in f"{_TEST}: {scores}".splitlines():
        say(console, line)
    return scores


def _samples(translate, pairs, encoding):
    """Returns a table of sentences, their translations and the references."""
    # Without "fold" a long word would end in an ellipsis, which ASCII lacks.
    columns = [
        Column(name, overflow="fold") for name in ("source", "translation", "reference")
    ]
    table = Table(*columns, title="Unseen sentences")
    translations = translate([source for source, _ in pairs])
    for (source, reference), translation in zip(pairs, translations, strict=True):
        cells = (source, translation, reference)
        table.add_row(*(Text(printable(cell, encoding)) for cell in cells))
    return table
