"""Checkpoints of a run and their mean."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

import h5py
import keras
import numpy as np
from rich.console import Console

from keras_transformer.config import RunConfig
from keras_transformer.config.options import check_number
from keras_transformer.files import replacing, write_json
from keras_transformer.models.loading import load_model
from keras_transformer.models.transformer import Transformer
from keras_transformer.search.run_directory import SUMMARY, check_new_directory
from keras_transformer.search.translator import Translator
from keras_transformer.text import TokenizerPair
from keras_transformer.text.lines import checked_path
from keras_transformer.training.report import summary
from keras_transformer.training.state import StateFiles


class _WeightsInMemory(io.BytesIO):
    """A file in memory: HDF5 ends the process if the disk is full while it writes."""

    def __str__(self):
        return "memory.weights.h5"  # Keras requires this suffix.


def save_checkpoint(model: keras.Model, directory: str | Path, step: int):
    """Writes the weights of a model at a step, whole or not at all."""
    path = checkpoint_path(directory, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        weights = _WeightsInMemory()
        with _without_optimizer(model):
            model.save_weights(weights)
        temporary.write_bytes(weights.getbuffer())


@contextlib.contextmanager
def _without_optimizer(model):
    """Takes the optimizer off a model, whose file then has no moments of it."""
    optimizer = getattr(model, "optimizer", None)
    model.optimizer = None
    try:
        yield
    finally:
        model.optimizer = optimizer


def checkpoint_path(directory: str | Path, step: int) -> Path:
    """Returns the file of the weights at a step."""
    return Path(directory) / f"step-{step:09d}.weights.h5"


def checkpoints_in(directory: str | Path) -> list[Path]:
    """Returns the checkpoints in a directory, oldest first."""
    return sorted(Path(directory).glob("step-*.weights.h5"))


def can_be_opened(path: str | Path) -> bool:
    """Returns whether a checkpoint is there, and neither empty nor cut."""
    try:
        with h5py.File(path) as file:
            file.visititems(lambda name, item: None)
    except FileNotFoundError:
        return False
    except Exception as error:
        if _is_damage(error):
            return False
        raise
    return True


def _is_damage(error):
    """Whether an error is that of a damaged file: the machine's have a number."""
    return not isinstance(error, MemoryError) and not getattr(error, "errno", None)


def load_average(model: keras.Model, paths: Sequence[str | Path]):
    """Sets the weights of a model to the mean of files of `model.save_weights`.

    The mean is computed in float64. Section 6.1 of Vaswani et al., 2017, averages the
    last 5 checkpoints of the base model and the last 20 of the big one.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If there is no path, or a file does not fit the model.
    """
    if not paths:
        raise ValueError("There is no checkpoint to average. Received: no paths")
    totals = None
    for path in map(checked_path, paths):
        try:
            with _without_optimizer(model):
                model.load_weights(path)
        # Damage raises many errors, depending on its place.
        except Exception as error:
            if not _is_damage(error):
                raise
            raise ValueError(
                f"{path} does not fit the model, or is damaged."
            ) from error
        if totals is None:
            # Adding to 0 would turn -0 into 0.
            totals = [weight.astype(np.float64) for weight in model.get_weights()]
            continue
        for total, weight in zip(totals, model.get_weights(), strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in totals])


def average_run(
    run: str | Path,
    output: str | Path,
    last: int | None = None,
    checkpoints: Sequence[str | Path] | None = None,
) -> list[Path]:
    """Writes a translator of the mean of a run's checkpoints.

    The run may be unfinished. `Translator.load` and the verbs `evaluate`, `translate`
    and `export` take the new directory, whose summary.json is for the model card.

    Args:
        run: Directory of the run.
        output: Directory to write; must be new or empty.
        last: Number of last checkpoints to average; default all.
        checkpoints: Files to average instead.

    Returns:
        The checkpoints that were averaged.

    Raises:
        FileExistsError: If `output` is not empty.
        FileNotFoundError: If a file is missing.
        ValueError: If there are too few checkpoints, one does not fit the run's model,
            the tokenizer is damaged, or both `last` and `checkpoints` are given.

    Example:
        >>> average_run("runs/en-de", "runs/en-de-mean-of-3", last=3)
    """
    check_number("last", last, int, optional=True)
    run = Path(run)
    output = Path(output)
    check_new_directory(output)
    if checkpoints is None:
        checkpoints = checkpoints_in(run / "checkpoints")
        if not checkpoints:
            raise FileNotFoundError(f"{run / 'checkpoints'} holds no checkpoint.")
    elif last is not None:
        raise ValueError("Give either `last` or `checkpoints`.")
    paths = list(map(Path, checkpoints))
    if last is not None:
        if not 1 <= last <= len(paths):
            raise ValueError(
                f"`last` must be from 1 to {len(paths)}, the checkpoints in {run}. "
                f"Received: last={last}"
            )
        paths = paths[-last:]
    config = RunConfig.load(run / "config.json")
    tokenizers = TokenizerPair.load(run / "tokenizer")
    made = run / "model.keras"  # An unfinished run has none.
    model = load_model(made) if made.exists() else Transformer(config.model)
    load_average(model, paths)
    Translator(model, tokenizers, config.decoding).save(output)
    write_json(output / "config.json", config.to_dict())
    if facts := _summary(run, paths):
        write_json(output / SUMMARY, facts)
    return paths


def _summary(run, paths):
    """Returns what is known of the training of checkpoints, or `None`."""
    try:
        state = StateFiles(run / "states").latest(Console(quiet=True))
    except ValueError:  # All states are damaged.
        state = None
    names = [path.name for path in paths]
    rows = [] if state is None else state.history
    rows = [row for row in rows if checkpoint_path("", row["step"]).name in names]
    if not rows:
        return None
    words = f"the mean of {len(paths)} checkpoints"
    if len(paths) == 1:
        words = f"the checkpoint of epoch {rows[0]['epoch']:g}"
    more = {"weights": words, "averaged_checkpoints": len(paths), "final": {}}
    return summary(state.facts, state, rows[-1], **more)
