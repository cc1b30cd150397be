"""Checkpoints of a run, and the mean of the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_transformer.files import replacing


class KeepCheckpoints(keras.callbacks.Callback):
    """Saves the weights after every epoch and keeps the last `count` of them.

    A file is written under a temporary name and renamed, so none is ever half-written.

    Args:
        directory: Where epoch-0001.weights.h5 and so on are written.
        count: Checkpoints kept.

    Raises:
        ValueError: If `count` is less than 1.
    """

    def __init__(self, directory: str | Path, count: int):
        super().__init__()
        if count < 1:
            raise ValueError(f"`count` must be at least 1. Received: count={count}")
        self.directory = Path(directory)
        self.count = count

    def on_epoch_end(self, epoch, logs=None):
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"epoch-{epoch + 1:04d}.weights.h5"
        with replacing(path) as temporary:
            self.model.save_weights(temporary)
        for path in self.paths()[: -self.count]:
            path.unlink()

    def paths(self) -> list[Path]:
        """Returns the checkpoints, oldest first."""
        return sorted(
            self.directory.glob("epoch-*.weights.h5"),
            key=lambda path: int(path.name.split(".")[0].removeprefix("epoch-")),
        )


def load_average(model: keras.Model, paths: Sequence[Path]):
    """Sets the model's weights to the mean of several checkpoints.

    Section 6.1 of Vaswani et al., 2017, averages the last 5 checkpoints of the base
    model and the last 20 of the big one. The mean is taken in float64.

    Args:
        model: Model whose weights are set; the checkpoints must fit it.
        paths: Files that `model.save_weights` wrote.

    Raises:
        ValueError: If there is no path.
    """
    if not paths:
        raise ValueError("There is no checkpoint to average. Received: no paths")
    totals = [np.zeros(weight.shape, np.float64) for weight in model.weights]
    for path in paths:
        model.load_weights(path)
        for total, weight in zip(totals, model.get_weights(), strict=True):
            total += weight
    model.set_weights([total / len(paths) for total in totals])
