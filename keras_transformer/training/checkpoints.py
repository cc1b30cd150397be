"""Checkpoints of a run, and their mean."""

from __future__ import annotations

import collections
import io
import re
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_transformer.files import replacing
from keras_transformer.training.ema import averaged_weights
from keras_transformer.training.monitor import Monitor
from keras_transformer.training.run_callback import RunCallback

_NAME = re.compile(r"epoch-(\d+)\.weights\.h5")


class _WeightsInMemory(io.BytesIO):
    """A file in memory for Keras to write weights to.

    HDF5 ends the whole process if the disk becomes full while it writes.
    """

    def __str__(self):
        # Keras requires this ending.
        return "memory.weights.h5"


class KeepCheckpoints(RunCallback):
    """Saves the weights after every epoch and keeps `count` of them.

    A file is written under a temporary name and renamed, so none is ever half-written.
    If the optimizer keeps a moving average of the weights, the average is saved.

    A checkpoint is kept as long as a saved state of the run names it, so that a run
    that continues from this state finds it.

    Args:
        directory: Where epoch-0001.weights.h5 and so on are written.
        count: Checkpoints kept.
        monitor: Ranks the checkpoints, of which the best are kept, of equal ones the
            earlier; `None` keeps the last.
        keep_states: Number of saved states that the run keeps.

    Raises:
        ValueError: If `count` is less than 1.
    """

    def __init__(
        self,
        directory: str | Path,
        count: int,
        monitor: Monitor | None = None,
        keep_states: int = 1,
    ):
        super().__init__()
        if count < 1:
            raise ValueError(f"`count` must be at least 1. Received: count={count}")
        self.directory = Path(directory)
        self.count = count
        self.monitor = monitor
        self._kept: dict[int, float | None] = {}  # By epoch, counted from 1.
        self._in_states = collections.deque(maxlen=keep_states)

    def on_epoch_end(self, epoch, logs=None):
        epoch += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(epoch)) as temporary, averaged_weights(self.model):
            weights = _WeightsInMemory()
            self.model.save_weights(weights)
            temporary.write_bytes(weights.getbuffer())
        self._kept[epoch] = None if self.monitor is None else self.monitor.value(logs)
        worst_first = sorted(self._kept, key=self._rank)
        self._kept = {number: self._kept[number] for number in sorted(self._kept)}
        for number in worst_first[: -self.count]:
            del self._kept[number]
        self._remove_others(set(self._kept).union(*self._in_states))

    def _rank(self, epoch):
        """Returns a sort key; the epochs with the highest keys are kept."""
        if self.monitor is None:
            return epoch
        return self.monitor.rank(self._kept[epoch]), -epoch

    def _path(self, epoch):
        return self.directory / f"epoch-{epoch:04d}.weights.h5"

    def _remove_others(self, epochs):
        for number, path in checkpoints_in(self.directory).items():
            if number not in epochs:
                path.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """Returns the checkpoints kept, oldest first."""
        return [self._path(epoch) for epoch in sorted(self._kept)]

    def prune(self):
        """Removes all other checkpoints, once the run no longer needs its states."""
        self._remove_others(set(self._kept))

    def state(self):
        self._in_states.append(list(self._kept))
        return {"kept": list(self._kept.items())}

    def restore(self, state):
        self._kept = {int(epoch): value for epoch, value in state["kept"]}
        self._in_states.append(list(self._kept))


def load_average(model: keras.Model, paths: Sequence[Path]):
    """Sets the model's weights to the mean of several checkpoints.

    Section 6.1 of Vaswani et al., 2017, averages the last 5 checkpoints of the base
    model and the last 20 of the big one. The mean is taken in float64, so that of equal
    values it is that value.

    Args:
        model: Model whose weights are set; the checkpoints must fit it.
        paths: Files that `model.save_weights` wrote.

    Raises:
        ValueError: If there is no path.
    """
    if not paths:
        raise ValueError("There is no checkpoint to average. Received: no paths")
    model.load_weights(paths[0])
    # Not a sum that begins with 0, which would make 0 of -0.
    totals = [weight.astype(np.float64) for weight in model.get_weights()]
    for path in paths[1:]:
        model.load_weights(path)
        for total, weight in zip(totals, model.get_weights(), strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in totals])


def checkpoints_in(directory: Path) -> dict[int, Path]:
    """Returns the checkpoints in a directory by epoch, oldest first."""
    matches = {path: _NAME.fullmatch(path.name) for path in directory.glob("*.h5")}
    found = {int(match[1]): path for path, match in matches.items() if match}
    return dict(sorted(found.items()))
