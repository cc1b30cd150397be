"""Logs of a run on disk that go on after a crash without a row lost or twice."""

from __future__ import annotations

import os
from pathlib import Path

import keras


class EpochLog(keras.callbacks.CSVLogger):
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

    def state(self) -> dict:
        """Returns what `restore` needs after an interruption."""
        return {"bytes": os.path.getsize(self.filename)}

    def restore(self, state: dict):
        """Takes rows off the file that came after `state`; all, if it is empty."""
        _cut(Path(self.filename), state.get("bytes", 0))


class TensorBoardLog(keras.callbacks.TensorBoard):
    """Writes event files for TensorBoard; a resumed run adds to them.

    Args:
        directory: Where they are written.
    """

    def __init__(self, directory: str | Path):
        super().__init__(directory)
        self.directory = Path(directory)

    def state(self) -> dict:
        """Returns what `restore` needs after an interruption."""
        for writer in self._writers.values():
            writer.flush()
        sizes = {path: path.stat().st_size for path in self._files()}
        return {str(p.relative_to(self.directory)): size for p, size in sizes.items()}

    def restore(self, state: dict):
        """Takes off the files what came after `state`; all, if it is empty."""
        for path in self._files():
            size = state.get(str(path.relative_to(self.directory)))
            if size is None:
                path.unlink()
            else:
                _cut(path, size)

    def _files(self):
        return sorted(self.directory.rglob("events.out.tfevents.*"))


def _cut(path, size):
    """Cuts a file, if there is one, to at most `size` bytes."""
    if path.exists() and path.stat().st_size > size:
        os.truncate(path, size)
