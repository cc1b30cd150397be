"""A SavedModel of every new best state of a model in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import keras
from rich.console import Console

from keras_transformer.files import replacing
from keras_transformer.terminal import say
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

    def on_epoch_end(self, epoch, logs=None):
        value = self.monitor.value(logs)
        if not self.monitor.better(value, self.best):
            return
        version = self._next_version()
        with averaged_weights(self.model):
            path = self.translator.export(self.directory / str(version))
        self.best = value
        say(self.console, f"exported {path}: {self.monitor.key} {value:.4f}")
        self._prune(version)

    def _prune(self, newest):
        """Removes versions of this run that are too old, and no others.

        A file beside them says which are the run's: a state would not know those that
        were exported after it.
        """
        record = self.directory / ".exported.json"
        versions = json.loads(record.read_text("utf-8")) if record.exists() else []
        versions.append(newest)
        for old in versions[:-_KEPT]:
            shutil.rmtree(self.directory / str(old), ignore_errors=True)
        with replacing(record) as temporary:
            temporary.write_text(json.dumps(versions[-_KEPT:]), encoding="utf-8")

    def _next_version(self):
        names = [path.name for path in self.directory.glob("*")]
        return 1 + max((int(name) for name in names if name.isdecimal()), default=0)

    def state(self) -> dict:
        """Returns what `restore` needs after an interruption."""
        return {"best": self.best}

    def restore(self, state: dict):
        """Goes on from what `state` returned."""
        self.best = state["best"]
