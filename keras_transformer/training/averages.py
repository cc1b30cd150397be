"""A translator of the mean of a run's checkpoints."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from keras_transformer.config import RunConfig
from keras_transformer.config.options import check_number
from keras_transformer.files import write_json
from keras_transformer.models.loading import load_model
from keras_transformer.models.transformer import Transformer
from keras_transformer.search.run_directory import SUMMARY, check_new_directory
from keras_transformer.search.translator import Translator
from keras_transformer.text import TokenizerPair
from keras_transformer.training.report import summary
from keras_transformer.training.state import (
    StateFiles,
    checkpoint_path,
    checkpoints_in,
    load_average,
    named,
)


def average_run(
    run: str | Path, output: str | Path, last: int | None = None
) -> list[Path]:
    """Writes a translator of the mean of a run's checkpoints.

    The run may be unfinished. `load` and the verbs `evaluate`, `translate`
    and `export` take the new directory, whose summary.json is for the model card.

    Args:
        run: Directory of the run.
        output: Directory to write; must be new or empty.
        last: Number of last checkpoints to average; default all.

    Returns:
        The checkpoints that were averaged.

    Raises:
        FileExistsError: If `output` is not empty.
        FileNotFoundError: If a file is missing.
        ValueError: If there are too few checkpoints, one does not fit the run's model,
            or the tokenizer is damaged.

    Example:
        >>> average_run("runs/en-de", "runs/en-de-mean-of-3", last=3)
    """
    check_number("last", last, int, optional=True)
    run = Path(run)
    output = Path(output)
    check_new_directory(output)
    paths = checkpoints_in(run / "checkpoints")
    if not paths:
        raise FileNotFoundError(f"{run / 'checkpoints'} holds no checkpoint.")
    last = len(paths) if last is None else last
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
    rows = [] if state is None else state.history
    rows = [
        row for row in rows if checkpoint_path(paths[0].parent, row["step"]) in paths
    ]
    if not rows:
        return None
    return summary(
        state.facts,
        state,
        rows[-1],
        weights=named(rows),
        averaged_checkpoints=len(paths),
        final={},
    )
