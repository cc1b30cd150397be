"""A SavedModel of every new best state of a model in training."""

from __future__ import annotations

import shutil
from pathlib import Path

import keras
from rich.console import Console

from keras_transformer.training.ema import averaged_weights
from keras_transformer.training.monitor import Monitor
from keras_transformer.translator import Translator

# Versions kept: the newest, and the one that a server may still be leaving.
_KEPT = 2


class ExportBest(keras.callbacks.Callback):
    """Exports the model after each epoch that is better than all before.

    The versions appear whole, numbered on from the highest there is, so that a server
    that watches the directory takes each up. Of those that this run exported the last
    two are kept.

    Args:
        translator: A `Translator` of the model in training, with the export's search.
        monitor: What is compared.
        directory: Directory of the versions, whose name is the model's.
        console: Told of each export.
    """

    def __init__(
        self,
        translator: Translator,
        monitor: Monitor,
        directory: str | Path,
        console: Console,
    ):
        super().__init__()
        self.translator = translator
        self.monitor = monitor
        self.directory = Path(directory)
        self.console = console
        self.best = None
        self.versions: list[int] = []

    def on_epoch_end(self, epoch, logs=None):
        value = self.monitor.value(logs)
        if not self.monitor.better(value, self.best):
            return
        version = self._next_version()
        with averaged_weights(self.model):
            path = self.translator.export(self.directory / str(version))
        self.best = value
        self.versions.append(version)
        self.console.print(
            f"exported {path}: {self.monitor.key} {value:.4f}",
            highlight=False,
            soft_wrap=True,
        )
        for old in self.versions[:-_KEPT]:
            shutil.rmtree(self.directory / str(old), ignore_errors=True)
        del self.versions[:-_KEPT]

    def _next_version(self):
        return max(self._all_versions(), default=0) + 1

    def _all_versions(self):
        """The versions that there are, oldest first."""
        names = [path.name for path in self.directory.glob("*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def state(self) -> dict:
        """Returns what `restore` needs after an interruption."""
        return {"best": self.best, "versions": list(self.versions)}

    def restore(self, state: dict):
        """Goes on from what `state` returned."""
        self.best, self.versions = state["best"], list(state["versions"])
        # The directory is the run's: what is newer, it exported after that state.
        newest = max(self.versions, default=0)
        self.versions += [v for v in self._all_versions() if v > newest]
