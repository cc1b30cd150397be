"""The whole state of a run in one file.

A state is a NumPy .npz archive: the values of all variables, and a JSON header with the
rest. It holds no pickled object, so reading it runs no code. Each part has a checksum
(CRC-32), so that a damaged file is noticed.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from rich.console import Console

from keras_transformer.files import replacing
from keras_transformer.models.exact_training import ExactTraining
from keras_transformer.terminal import warn

# The newest one, and one in case it is damaged.
KEPT_STATES = 2


@dataclass
class State:
    """What a resume needs beside options, data and tokenizers, after some batches."""

    step: int = 0  # batches since the run began
    updates: int = 0  # weight updates
    accumulated: int = 0  # batches since the last update
    skipped: int = 0  # batches in a row, up to here, that were skipped
    is_compiled: bool = False  # whether XLA compiles the step from here on
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


def capture(model: ExactTraining, **fields: Any) -> State:
    """Returns the state of a compiled model; `fields` are the rest of the `State`."""
    model.sync_variables()
    return State(
        updates=model.updates,
        accumulated=model.accumulated_batches,
        values=[np.array(ops.convert_to_numpy(v)) for v in training_variables(model)],
        **fields,
    )


def restore(model: keras.Model, state: State):
    """Restores all variables of a compiled model, or raises `ValueError`."""
    variables = training_variables(model)
    found = [(tuple(variable.shape), variable.dtype) for variable in variables]
    if found != [(value.shape, value.dtype.name) for value in state.values]:
        raise ValueError(
            f"The state after {state.step} batches belongs to another model: it has "
            f"{len(state.values)} variables and this one {len(found)}, or their shapes "
            "differ."
        )
    for variable, value in zip(variables, state.values, strict=True):
        # JAX may share the memory of an array, and its steps reuse it.
        variable.assign(np.array(value))


def training_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns all variables of model, optimizer and metrics, each once."""
    every = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return list({id(variable): variable for variable in every}.values())


class StateFiles:
    """The newest states of a run, in a directory.

    A state is written and flushed to the disk before older ones are removed, so a crash
    or a full disk loses none.
    """

    def __init__(self, directory: str | Path):
        self.directory = Path(directory)

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
                # In a truncated file NumPy may seek to before the beginning.
                is_seek = getattr(error, "errno", 0) in (None, errno.EINVAL)
                if isinstance(error, (OSError, MemoryError)) and not is_seek:
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
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        # Checked first: a damaged header may ask for any memory.
        if damaged := archive.zip.testzip():
            raise ValueError(f"bad checksum of {damaged}")
        values = [archive[name] for name in sorted(archive.files) if name != "header"]
        return State(**json.loads(archive["header"].tobytes()), values=values)
