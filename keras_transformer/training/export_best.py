"""Exports a SavedModel whenever a model in training reaches a new best."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rich.console import Console

from keras_transformer.files import next_version, replacing
from keras_transformer.terminal import say
from keras_transformer.training.ema import averaged_weights
from keras_transformer.training.monitor import Monitor
from keras_transformer.training.run_callback import RunCallback
from keras_transformer.training.summary import FactsSoFar
from keras_transformer.translator import Translator

# Versions kept: the newest, and the one that a server may still be leaving.
_KEPT = 2


class ExportBest(RunCallback):
    """Exports the model after each epoch that is better than all before it.

    Each version appears as a whole and gets a number above all others, so that a server
    that watches the directory loads it. The last two that this run exported are kept.

    Args:
        translator: A `Translator` of the model in training, with the export's search.
        monitor: Compares the epochs.
        directory: Directory of the versions, named like the model.
        console: Where each export is reported.
        facts: What the cards of the exports say of the run; default nothing.
    """

    def __init__(
        self,
        translator: Translator,
        monitor: Monitor,
        directory: str | Path,
        console: Console,
        facts: FactsSoFar | None = None,
    ):
        super().__init__()
        self.translator = translator
        self.monitor = monitor
        self.directory = Path(directory)
        self.console = console
        self.facts = facts
        self.best = None

    def on_epoch_end(self, epoch, logs=None):
        value = self.monitor.value(logs)
        if not self.monitor.better(value, self.best):
            return
        version = next_version(self.directory)
        facts = self.facts and self.facts.after(epoch, self.model, logs)
        with averaged_weights(self.model):
            path = self.translator.export(self.directory / str(version), run=facts)
        self.best = value
        say(self.console, f"exported {path}: {self.monitor.key} {value:.4f}")
        self._prune(version)

    def _prune(self, newest):
        """Removes old versions that this run exported, and no others.

        A file beside them lists the run's: a saved state would not know of those that
        were exported after it.
        """
        record = self.directory / ".exported.json"
        versions = [*self._recorded(record), newest]
        for old in versions[:-_KEPT]:
            shutil.rmtree(self.directory / str(old), ignore_errors=True)
        with replacing(record) as temporary:
            temporary.write_text(json.dumps(versions[-_KEPT:]), encoding="utf-8")

    def _recorded(self, record):
        """Returns the versions listed in the file beside them.

        The run may be a stranger's, and its file may list any path: only a number is
        accepted, and only for a directory right beside the file.
        """
        if not record.exists():
            return []
        try:
            names = json.loads(record.read_text("utf-8"))
            versions = [name for name in names if _is_version(self.directory, name)]
        except (ValueError, TypeError, RecursionError):
            names, versions = record.name, []
        if versions != names:
            self.console.print(
                f"warning: {record} lists something that is not a version beside it; "
                "this is left alone",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        return versions

    def state(self):
        return {"best": self.best}

    def restore(self, state):
        self.best = state["best"]


def _is_version(directory, name):
    # A bool is an int in Python; longer numbers are no name of a file.
    if type(name) is not int or not 0 <= name < 10**18:
        return False
    path = directory / str(name)
    return not path.is_symlink() and (path.is_dir() or not path.exists())
