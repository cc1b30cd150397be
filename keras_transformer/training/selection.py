"""The callbacks of a run that validate, keep checkpoints and stop early."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import keras
from rich.console import Console

from keras_transformer.config import RunConfig, TrainingConfig
from keras_transformer.text.parallel_text import BadLines, ParallelText
from keras_transformer.training.bleu import ValidationBleu
from keras_transformer.training.checkpoints import KeepCheckpoints
from keras_transformer.training.ema import ValidateAverage, keeps_average
from keras_transformer.training.export_best import ExportBest
from keras_transformer.training.monitor import Monitor, StopWithoutProgress
from keras_transformer.training.summary import FactsSoFar
from keras_transformer.translator import Translator


@dataclass(frozen=True)
class Selection:
    """The callbacks that choose among the states of a run.

    Attributes:
        callbacks: For `model.fit`, in this order, before those that write the logs:
            they add `val_bleu`.
        checkpoints: Keeps the checkpoints; one of `callbacks` in a process that writes.
        facts: What the cards of exports say of the run, or `None`.
    """

    callbacks: list[keras.callbacks.Callback]
    checkpoints: KeepCheckpoints
    facts: FactsSoFar | None = None


def check_selection(options: TrainingConfig, validated: bool):
    """Checks before the training that its options can be used.

    Args:
        options: Options of the training.
        validated: Whether there are validation pairs.

    Raises:
        ValueError: If an option needs validation pairs and there are none, or the
            Keras backend cannot export.
    """
    given = {
        "`average` 'best'": options.average == "best",
        "`monitor` 'bleu'": options.monitor == "bleu",
        "`patience`": options.patience is not None,
        "`export_best`": options.export_best,
    }
    needing = [name for name, is_given in given.items() if is_given]
    if needing and not validated:
        raise ValueError(
            f"{', '.join(needing)} needs validation pairs. Give them, or leave it out. "
            "Received: no validation pairs"
        )
    if options.export_best and keras.backend.backend() != "tensorflow":
        raise ValueError(
            "`export_best` needs the TensorFlow backend, which alone writes "
            f"SavedModels. Received: backend {keras.backend.backend()!r}"
        )


def make_selection(
    config: RunConfig,
    directory: Path,
    translator: Translator,
    validation: ParallelText | None,
    console: Console,
    writes: bool = True,
    facts: FactsSoFar | None = None,
) -> Selection:
    """Returns the callbacks that a run's options ask for.

    BLEU is scored after every epoch if `monitor` is "bleu".
    Checkpoints are written to `directory`/checkpoints, exports of the best to
    `directory`/export/NAME/VERSION, where NAME is that of `directory`.

    Args:
        config: All options of the run; `check_selection` has passed.
        directory: Directory of the run.
        translator: The run's `Translator`, made of the model in training.
        validation: Validation pairs, or `None`.
        console: Where the callbacks report.
        writes: Whether this process writes files, as one of several does.
        facts: What the cards of exports say of the run; default nothing.

    Returns:
        A `Selection`.

    Example:
        >>> selection = make_selection(config, directory, translator, pairs, Console())
        >>> model.fit(..., callbacks=selection.callbacks)
        >>> load_average(model, selection.checkpoints.paths())
    """
    options, monitor = config.training, Monitor(config.training.monitor)
    checkpoints = KeepCheckpoints(
        directory / "checkpoints",
        options.average_checkpoints,
        monitor if options.average == "best" else None,
        2,
    )
    callbacks = [checkpoints] if writes else []
    if options.export_best and writes:
        exports = directory / "export" / directory.resolve().name
        callbacks.append(ExportBest(translator, monitor, exports, console, facts))
    if options.patience is not None:
        callbacks.append(StopWithoutProgress(monitor, options.patience, console))
    if options.monitor == "bleu":
        pairs = _first_pairs(validation, options.bleu_sentences, config)
        tensorboard = directory / "tensorboard" if writes else None
        bleu = ValidationBleu(translator, pairs, None, tensorboard, console)
        callbacks.insert(0, bleu)
    if keeps_average(translator.model):
        callbacks.insert(0, ValidateAverage())
    return Selection(callbacks, checkpoints, facts)


def _first_pairs(validation, count, config):
    """Returns the source and target of the first `count` validation pairs."""
    pairs = validation.pairs(BadLines(config.data.bad_line_budget))
    return [(pair.source, pair.target) for pair in itertools.islice(pairs, count)]
