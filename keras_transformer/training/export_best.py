"""A SavedModel of every new best state of a model in training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import keras
from rich.console import Console

from keras_transformer.files import next_version, replacing
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
        version = next_version(self.directory)
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
        versions = [*self._recorded(record), newest]
        for old in versions[:-_KEPT]:
            shutil.rmtree(self.directory / str(old), ignore_errors=True)
        with replacing(record) as temporary:
            temporary.write_text(json.dumps(versions[-_KEPT:]), encoding="utf-8")

    def _recorded(self, record):
        """Returns the versions that the file beside them names.

        A run may be somebody else's, and its file name any directory of ours: only a
        number is a version, and only a directory right beside the file.
        """
        if not record.exists():
            return []
        try:
            names = json.loads(record.read_text("utf-8"))
            good = [name for name in names if _is_version(self.directory, name)]
        except (ValueError, TypeError, RecursionError):
            names, good = record.name, []
        if good != names:
            self.console.print(
                f"warning: {record} names what is no version beside it, which is left "
                "alone",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        return good

    def state(self) -> dict:
        """Returns what `restore` needs after an interruption."""
        return {"best": self.best}

    def restore(self, state: dict):
        """Goes on from what `state` returned."""
        self.best = state["best"]


def _is_version(directory, name):
    # A bool is an int in Python; longer numbers are no name of a file.
    if type(name) is not int or not 0 <= name < 10**18:
        return False
    path = directory / str(name)
    return not path.is_symlink() and (path.is_dir() or not path.exists())
