"""Training, evaluation, export and translation of built-in sentences."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from rich.console import Console

from keras_transformer.apps.quickstart.grammar import generate_pairs
from keras_transformer.config import RunConfig
from keras_transformer.formats import ExportedTranslator
from keras_transformer.formats.saved_model import check_backend
from keras_transformer.formats.versions import check_no_pattern
from keras_transformer.search.run_directory import record_scores, weights_digest
from keras_transformer.terminal import plain_console, say
from keras_transformer.text import open_pairs
from keras_transformer.training import train
from keras_transformer.training.evaluation import Scores, evaluate_translator

NAME = "quickstart-en-de"  # of the run and the SavedModel
SIZES = {"train": 75_000, "valid": 500, "test": 500}
# Tuned on the validation sentences. Pre-norm is stable at the high learning rate of a
# short run, and a grammar needs no dropout.
CONFIG = RunConfig.preset(
    "tiny",
    num_encoder_layers=2,
    num_decoder_layers=2,
    dropout_rate=0.0,
    vocabulary_size=2000,
    batch_tokens=1500,
    epochs=2,
    warmup_steps=250,
    learning_rate=0.01,
    label_smoothing=0.05,
    average_checkpoints=1,
    length_penalty=0.6,
)


def quickstart(
    directory: str | Path | None = None,
    saved_models: str | Path = "saved_models",
    console: Console | None = None,
    config: RunConfig = CONFIG,
    sizes: dict[str, int] = SIZES,
    command: str | None = None,
) -> Scores:
    """Trains on generated sentences, evaluates, exports, and translates.

    The sentences, English and German, come from a grammar: their scores show that the
    system works, but do not predict scores on real text.
    `sizes` are the numbers of pairs in the splits "train", "valid" and "test". The
    SavedModel is written to `saved_models`/quickstart-en-de/VERSION. The rest is as in
    `train`. Returns the `Scores` of the test sentences.

    Raises:
        FileExistsError: If `directory` holds something other than its run.
        RuntimeError: If the Keras backend is not TensorFlow.
        ValueError: If TensorFlow would read the path of the SavedModel as a pattern.
    """
    check_backend("The SavedModel of the quick start")
    console = plain_console() if console is None else console
    directory = Path("runs") / NAME if directory is None else Path(directory)
    path = Path(saved_models) / NAME
    check_no_pattern(path)
    say(console, "generating English and German sentences from a grammar")
    pairs = {name: list(generate_pairs(name, size)) for name, size in sizes.items()}
    training = pairs["train"]
    validation = pairs["valid"]
    translator = train(
        training, directory, config, validation, console, command=command
    )
    weights = weights_digest(directory)
    test = pairs["test"]
    name = "generated test sentences"
    scores = evaluate_translator(translator, test, directory / "test.translations.txt")
    fingerprint = open_pairs(test).fingerprint()
    values = dataclasses.asdict(scores)
    record_scores(directory, name, fingerprint, translator.config, values, weights)
    saved_model = translator.export(path, run=directory, languages=("en", "de"))
    say(console, f"exported {saved_model}; translating unseen sentences with it")
    sources = [source for source, _ in test[:6]]
    translations = ExportedTranslator(saved_model)(sources)
    for (source, reference), text in zip(test, translations, strict=False):
        verdict = "right" if text == reference else f"not {reference}"
        for line in (f"  {source}", f"    {text}", f"    {verdict}"):
            say(console, line)
    for line in f"{name}:\n{scores}".splitlines():
        say(console, line)
    served = shlex.quote(str(path))
    text = shlex.quote(sources[0])
    say(console, f"next: keras-transformer translate {served} {text}")
    say(console, f"      keras-transformer serve {served}")
    return scores
