"""The whole state of a training run in one file, from which it can be resumed.

A state is a NumPy .npz archive: the values of all variables, and a JSON header with
their names, the place in the data and what the callbacks remember. It holds no pickled
object, so reading it runs no code. Each part of the archive has a checksum (CRC-32): a
file that was cut or changed is noticed and skipped.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import keras
import numpy as np
from keras import ops
from rich.console import Console

from keras_transformer.exact_training import ExactTraining
from keras_transformer.files import replacing, sync_directory
from keras_transformer.terminal import say
from keras_transformer.training.run_callback import RunCallback

_FORMAT = 1
_NAME = re.compile(r"update-(\d+)-epoch-(\d+)-batch-(\d+)\.npz")


@dataclass
class TrainingState:
    """Where a run is.

    Attributes:
        updates: Weight updates made.
        epoch: Number of the epoch, counted from 0.
        batch: Batches of this epoch that have been trained on.
        callbacks: What each callback remembers, by the name of its class.
        finished: The limits with which the training ended here; empty until it has.
        callbacks_at_end: As `callbacks`, but after the epoch's end that followed.
        machine: What `machine` returned when it was saved; empty if not known.
        variables: Path, shape and type of each variable.
        values: Their values.
    """

    updates: int
    epoch: int = 0
    batch: int = 0
    callbacks: dict[str, dict] = field(default_factory=dict)
    finished: dict = field(default_factory=dict)
    callbacks_at_end: dict[str, dict] = field(default_factory=dict)
    machine: dict = field(default_factory=dict)
    variables: list[list] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)


def capture(
    model: ExactTraining,
    epoch: int,
    batch: int,
    callbacks=(),
    machine: dict | None = None,
) -> TrainingState:
    """Copies the state of a model in training.

    Args:
        model: Compiled model whose variables `build_training_variables` has made.
        epoch: Number of the epoch, counted from 0.
        batch: Batches of the epoch that have been trained on.
        callbacks: Each `RunCallback` among them is asked for its `state()`.
        machine: As the function `machine` returns.

    Returns:
        A `TrainingState`.
    """
    model.sync_variables()
    variables = training_variables(model)
    return TrainingState(
        updates=model.updates,
        epoch=epoch,
        batch=batch,
        callbacks=states_of(callbacks),
        machine={} if machine is None else machine,
        variables=_describe(variables),
        values=[_value(variable) for variable in variables],
    )


def restore(model: keras.Model, state: TrainingState, callbacks=()):
    """Sets all variables of a model, and its callbacks, to a state.

    Keras resets the metrics when an epoch begins; call `restore_metrics` after that.

    Args:
        model: Compiled model, with the same options as the one captured.
        state: What `capture` returned.
        callbacks: Each `RunCallback` among them is told where the state is.

    Raises:
        ValueError: If the state is that of another model.
    """
    variables = training_variables(model)
    # Paths are left out: they contain Keras' number of the model in its process.
    found = [kind for _, *kind in _describe(variables)]
    if found != [kind for _, *kind in state.variables]:
        raise ValueError(
            f"The state after {state.updates} updates is that of another model: it "
            f"has {len(state.variables)} variables and this one {len(found)}, or "
            "their shapes differ."
        )
    for variable, value in zip(variables, state.values, strict=True):
        variable.assign(value)
    for callback in _run_callbacks(callbacks):
        callback.first_batch = state.batch
    restore_callbacks(callbacks, state.callbacks)


def states_of(callbacks) -> dict[str, dict]:
    """Returns what callbacks remember, by the names of their classes."""
    states = {type(c).__name__: c.state() for c in _run_callbacks(callbacks)}
    return {name: state for name, state in states.items() if state is not None}


def restore_callbacks(callbacks, states: dict[str, dict]):
    """Gives each callback what `states_of` returned for its class, if anything."""
    for callback in _run_callbacks(callbacks):
        if type(callback).__name__ in states:
            callback.restore(states[type(callback).__name__])


def _run_callbacks(callbacks):
    return [c for c in callbacks if isinstance(c, RunCallback)]


def restore_metrics(model: keras.Model, state: TrainingState):
    """Sets the metrics of a model to a state, for the rest of an epoch."""
    metrics = model.metrics_variables
    values = state.values[len(state.values) - len(metrics) :]
    for variable, value in zip(metrics, values, strict=True):
        variable.assign(value)


def build_training_variables(model: keras.Model):
    """Makes the variables that Keras would make for the first batch.

    Args:
        model: Compiled `Transformer`.
    """
    # Any sizes will do; of unknown ones JAX cannot tell what attention in blocks needs.
    ids = keras.KerasTensor((2, 3), "int32")
    # Keras has no public name for it; its own trainers call it on JAX and PyTorch.
    model._symbolic_build(data_batch=((ids, ids), ids))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def training_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns all variables of a training, each once, the metrics' last."""
    metrics = model.metrics_variables
    seen = {id(variable) for variable in metrics}
    variables = []
    for variable in [*model.variables, *model.optimizer.variables]:
        if id(variable) not in seen:
            seen.add(id(variable))
            variables.append(variable)
    return variables + list(metrics)


class StateFiles:
    """The newest states of a run, as files of a directory.

    A file is written under a temporary name, flushed to the disk and renamed; only then
    are older ones removed. So they survive a crash or a full disk.

    Args:
        directory: Directory of the states.
        keep: Number of states to keep.
        writes: Whether this process writes, as one of several does; the others read.

    Example:
        >>> files = StateFiles("runs/en-de/states", keep=2)
        >>> files.save(capture(model, epoch=0, batch=100))
        >>> restore(model, files.latest(Console()))
    """

    def __init__(self, directory: str | Path, keep: int, writes: bool = True):
        self.directory = Path(directory)
        self.keep = keep
        self.writes = writes

    def save(self, state: TrainingState):
        """Writes a state and removes old ones.

        Args:
            state: What `capture` returned.

        Raises:
            OSError: If it cannot be written; older states are then intact.
        """
        if not self.writes:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        name = (
            f"update-{state.updates:09d}-epoch-{state.epoch:04d}"
            f"-batch-{state.batch:06d}.npz"
        )
        header = {"format": _FORMAT, **_without_values(state)}
        parts = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
        parts |= {f"{i:06d}": value for i, value in enumerate(state.values)}
        with replacing(self.directory / name) as temporary:
            with open(temporary, "wb") as stream:
                np.savez(stream, **parts)
                stream.flush()
                os.fsync(stream.fileno())
        sync_directory(self.directory)
        for path in self.paths()[: -self.keep]:
            path.unlink(missing_ok=True)

    def latest(self, console: Console) -> TrainingState | None:
        """Reads the newest intact state.

        Args:
            console: Where each damaged file is reported.

        Returns:
            A `TrainingState`, or `None` if there is none.

        Raises:
            MemoryError: If there is not enough memory to read one.
            OSError: If one cannot be read for a reason other than damage.
        """
        for path in reversed(self.paths()):
            try:
                return _read(path)
            # Damage shows in many ways, depending on where the file was hit.
            except Exception as error:
                if _is_of_the_machine(error):
                    raise
                say(
                    console,
                    f"warning: {path} is damaged ({type(error).__name__}: {error}); "
                    "the state before it is tried",
                )
                # Otherwise it would be kept as one of the newest and found again.
                if self.writes:
                    path.rename(path.with_name(f"damaged-{path.name}"))
        return None

    def damaged(self) -> list[Path]:
        """Returns the files that `latest` found damaged, now or before."""
        return sorted(self.directory.glob("damaged-*"))

    def paths(self) -> list[Path]:
        """Returns the files, oldest first."""
        matches = {p: _NAME.fullmatch(p.name) for p in self.directory.glob("*.npz")}
        # An epoch's end makes no update, so the epoch goes first.
        order = {p: (int(m[2]), int(m[3])) for p, m in matches.items() if m}
        return sorted(order, key=order.get)


def _is_of_the_machine(error):
    """Whether the machine, not damage to the file, may have caused an error."""
    # In a file that was cut, NumPy may seek to before the beginning.
    is_seek = isinstance(error, OSError) and error.errno in (None, errno.EINVAL)
    return isinstance(error, (OSError, MemoryError)) and not is_seek


def _without_values(state):
    """Returns the fields of a state that JSON can hold."""
    return {name: value for name, value in vars(state).items() if name != "values"}


def _read(path):
    # A pickle may run any code.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        _check_claims(archive, os.fstat(file.fileno()).st_size)
        header = json.loads(archive["header"].tobytes())
        if header.pop("format") != _FORMAT:
            raise ValueError("it has another format")
        state = TrainingState(**header)
        for number, (_, shape, dtype) in enumerate(state.variables):
            value = archive[f"{number:06d}"]
            if list(value.shape) != shape:
                raise ValueError("a variable has another shape")
            state.values.append(value.astype(_file_type(dtype), copy=False))
    return state


def _check_claims(archive, size):
    """Refuses a part that claims more bytes than the file has, before allocating them.

    Arrays are not compressed.
    """
    for member in archive.zip.infolist():
        with archive.zip.open(member) as part:
            if np.lib.format.read_magic(part) != (1, 0):
                raise ValueError(f"{member.filename} has another format")
            shape, _, dtype = np.lib.format.read_array_header_1_0(part)
        claimed = math.prod(shape) * dtype.itemsize
        if claimed > size:
            raise ValueError(
                f"{member.filename} claims {claimed:,} bytes, and the file has {size:,}"
            )


def _describe(variables):
    return [[v.path, list(v.shape), _type(v)] for v in variables]


def _type(variable):
    return keras.backend.standardize_dtype(variable.dtype)


def _value(variable):
    value = np.array(ops.convert_to_numpy(variable))
    return value.astype(_file_type(_type(variable)), copy=False)


def _file_type(dtype):
    """NumPy's files have no bfloat16; float32 holds its values exactly."""
    return "float32" if dtype == "bfloat16" else dtype
