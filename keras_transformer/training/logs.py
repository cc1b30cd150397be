"""Logs of a run on disk, which lose and repeat no row after a crash."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import keras

from keras_transformer.training.run_callback import RunCallback


class EpochLog(RunCallback, keras.callbacks.CSVLogger):
    """Writes a row an epoch to a CSV file; a resumed run adds to it.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path):
        super().__init__(path, append=True)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        with open(self.filename, encoding="utf-8") as file:
            # The columns stay those of the header, whatever the next row offers.
            self.keys = file.readline().strip().split(",")[1:] or None

    def state(self):
        return {"bytes": os.path.getsize(self.filename)}

    def restore(self, state):
        """Removes the rows written after `state`; all, if it is empty."""
        _cut(Path(self.filename), state.get("bytes", 0))


class TensorBoardLog(RunCallback, keras.callbacks.TensorBoard):
    """Writes event files for TensorBoard; a resumed run adds to them.

    Args:
        directory: Where they are written.
    """

    wants_every_batch = False

    def __init__(self, directory: str | Path):
        super().__init__(directory)
        self.directory = Path(directory)

    def state(self):
        for writer in self._writers.values():
            writer.flush()
        sizes = {path: path.stat().st_size for path in self._files()}
        return {str(p.relative_to(self.directory)): size for p, size in sizes.items()}

    def restore(self, state):
        """Removes what was written after `state`; everything, if it is empty."""
        for path in self._files():
            size = state.get(str(path.relative_to(self.directory)))
            if size is None:
                path.unlink()
            else:
                _cut(path, size)

    def _files(self):
        return sorted(self.directory.rglob("events.out.tfevents.*"))


def last_scores(directory: str | Path) -> dict[str, float] | None:
    """Returns the last row of a run's log.csv, or `None` if there is none.

    What Keras writes as NA, such as every score of a validation that a run does not
    have, is left out.

    Args:
        directory: The run's directory.

    Raises:
        ValueError: If the log is damaged.
    """
    path = Path(directory) / "log.csv"
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        return None
    scores = {name: value for name, value in rows[-1].items() if value != "NA"}
    try:
        return {name: float(value) for name, value in scores.items()}
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: the last row is damaged") from error


def _cut(path, size):
    """Cuts a file, if it exists, to at most `size` bytes."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)
