"""What a run keeps at its saves: its whole state, and checkpoints of the weights alone.

A state is a NumPy .npz archive: the values of all variables, and a JSON header with the
rest. It holds no pickled object, so reading it runs no code. Each part has a checksum
(CRC-32), so that a damaged file is noticed. A row is what the history tells of a save.
Importing this loads no Keras.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from rich.console import Console

from keras_transformer.config import TrainingConfig
from keras_transformer.files import check_archive, is_damage, replacing
from keras_transformer.terminal import warn
from keras_transformer.text.pairs import checked_path

if TYPE_CHECKING:
    import keras

# The newest one, and one in case it is damaged.
KEPT_STATES = 2
# Numbers of last checkpoints, beside `average_checkpoints`, whose mean is validated.
_MEANS = (1, 2, 3, 5, 10)


@dataclass
class State:
    """What a resume needs beside options, data and tokenizers, after some batches."""

    step: int = 0  # batches since the run began
    updates: int = 0  # weight updates
    accumulated: int = 0  # batches since the last update
    skipped: int = 0  # batches in a row, up to here, that were skipped
    # What the schedule is fitted to; 0 while `max_minutes` are not measured yet.
    planned_updates: int = 0
    seconds: float = 0.0  # time trained, without interruptions
    history: list[dict[str, float]] = field(default_factory=list)  # a row an interval
    callbacks: list[Any] = field(default_factory=list)  # [class name, state] of each
    # The limits that ended the training here, if they did.
    finished: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # `run_facts`
    values: list[np.ndarray] = field(default_factory=list)  # of all variables

    @property
    def has_row(self) -> bool:
        """Whether the last row belongs to this step."""
        return bool(self.history) and self.history[-1]["step"] == self.step


@dataclass(frozen=True)
class StateFiles:
    """The newest states of a run, in a directory.

    A state is written and flushed to the disk before older ones are removed, so a crash
    or a full disk loses none.
    """

    directory: Path

    def save(self, state: State):
        """Writes a state and removes old ones."""
        self.directory.mkdir(parents=True, exist_ok=True)
        header = dict(vars(state))
        values = header.pop("values")
        # Not strict JSON: a run goes on with the NaN and infinities that it had, and no
        # other program reads them here.
        parts = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
        parts |= {f"{i:06d}": value for i, value in enumerate(values)}
        with replacing(self.directory / f"step-{state.step:09d}.npz") as temporary:
            with open(temporary, "wb") as stream:
                np.savez(stream, **parts)
        for path in self.paths()[:-KEPT_STATES]:
            path.unlink(missing_ok=True)

    def latest(self, console: Console) -> State | None:
        """Returns the newest intact state, or `None` if there is no file.

        Damaged files are reported; if all are, it raises `ValueError`.
        """
        return next(self.intact(console), None)

    def intact(self, console: Console) -> Iterator[State]:
        """Yields the intact states, the newest first, with the errors of `latest`."""
        number = 0
        for path in reversed(self.paths()):
            try:
                state = _read(path)
            # Damage raises many errors, depending on its place.
            except Exception as error:
                if not is_damage(error):
                    raise
                warn(
                    console,
                    f"{path} is damaged ({type(error).__name__}: {error}); "
                    "trying the state before it",
                )
                continue
            number += 1
            yield state
        if not number and self.paths():
            raise ValueError(
                f"Every state in {self.directory} is damaged, so the run cannot "
                "resume. `keras-transformer average` makes a model of its checkpoints, "
                "if any. To start again, remove the run or choose another directory."
            )

    def paths(self) -> list[Path]:
        """Returns the files, oldest first."""
        return sorted(self.directory.glob("step-*.npz"))


def _read(path):
    check_archive(path)  # First: a damaged header may ask for any memory.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        values = [archive[name] for name in sorted(archive.files) if name != "header"]
        return State(**json.loads(archive["header"].tobytes()), values=values)


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


def checkpoints_of(directory: str | Path, rows: Sequence[dict]) -> list[Path]:
    """Returns the checkpoints of rows."""
    return [checkpoint_path(directory, row["step"]) for row in rows]


def remove_checkpoints(
    directory: str | Path,
    history: list[dict],
    num_states: int,
    options: TrainingConfig,
):
    """Removes the checkpoints that no kept state needs for its final model."""
    needed = []
    for back in range(num_states):
        needed += rows_to_keep(history[: max(len(history) - back, 0)], options)
    kept = checkpoints_of(directory, needed)
    for path in checkpoints_in(directory):
        if path not in kept:
            path.unlink(missing_ok=True)


def can_be_opened(path: str | Path) -> bool:
    """Returns whether a checkpoint is there, and neither empty nor cut."""
    try:
        with h5py.File(path) as file:
            file.visititems(lambda name, item: None)
    except (FileNotFoundError, RuntimeError):  # The latter is HDF5's, of some damage.
        return False
    except Exception as error:
        if is_damage(error):
            return False
        raise
    return True


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
        except Exception as error:
            if not is_damage(error) and can_be_opened(path):
                raise
            raise ValueError(
                f"{path} does not fit the model, or is damaged: {error}"
            ) from error
        if totals is None:
            # Adding to 0 would turn -0 into 0.
            totals = [weight.astype(np.float64) for weight in model.get_weights()]
            continue
        for total, weight in zip(totals, model.get_weights(), strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in totals])


def rank(row: dict[str, float], options: TrainingConfig) -> float:
    """Returns a number that grows with quality by `monitor`; NaN ranks lowest."""
    value = row[f"val_{options.monitor}"]
    if math.isnan(value):
        return -math.inf
    return -value if options.monitor == "loss" else value


def candidates(rows: list[dict], options: TrainingConfig) -> list[list[dict]]:
    """Returns the rows of each mean of checkpoints that may make the final weights.

    Without validation that is one mean. A single row is the last, or the first best.
    """
    count = options.average_checkpoints
    if not rows or f"val_{options.monitor}" not in rows[-1]:
        return [rows[-count:]]
    sizes = {min(size, len(rows)) for size in (*_MEANS, count)}
    means = [rows[-size:] for size in sorted(sizes)]
    best = [max(rows, key=lambda row: rank(row, options))]
    return means if best in means else [*means, best]


def rows_to_keep(rows: list[dict], options: TrainingConfig) -> list[dict]:
    """Returns the rows whose checkpoints may make the final weights."""
    means = candidates(rows, options)
    return [row for row in rows if any(row in mean for mean in means)]


def named(rows: Sequence[dict]) -> str:
    """Returns what weights are, from the rows of their checkpoints."""
    if not rows:
        return "those of the last state"
    if not rows[-1]["step"]:
        return "the initial weights"
    first, last = (f"{round(row['epoch'], 2):g}" for row in (rows[0], rows[-1]))
    if len(rows) == 1:
        return f"the checkpoint of epoch {last}"
    return f"the mean of {len(rows)} checkpoints, epochs {first} to {last}"


def without_progress(rows: Sequence[dict], options: TrainingConfig) -> int:
    """Returns the number of rows since the best one."""
    ranks = [rank(row, options) for row in rows]
    best = max(ranks, default=-math.inf)
    return len(rows) - (ranks.index(best) + 1 if best > -math.inf else 0)
