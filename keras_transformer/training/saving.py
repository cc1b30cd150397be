"""Saves the state of a run: regularly, at the ends of epochs, before a stop."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import keras
from rich.console import Console

from keras_transformer.config import TrainingConfig
from keras_transformer.terminal import say
from keras_transformer.training.callbacks import NonfiniteBatches
from keras_transformer.training.distribution import Distribution
from keras_transformer.training.machine import machine
from keras_transformer.training.run_callback import RunCallback
from keras_transformer.training.state import (
    StateFiles,
    TrainingState,
    capture,
    restore_metrics,
    states_of,
)
from keras_transformer.training.stop_signals import StopSignals
from keras_transformer.training.update_count import UpdateCount, next_multiple

# Options that may end the training; changing one lets a finished run continue.
_LIMITS = ("epochs", "max_updates", "max_minutes", "patience")


class SaveState(RunCallback):
    """Saves the state of a run; must be its last callback, since it saves theirs too.

    The end of an epoch is saved after its validation. If a limit ends the training
    within an epoch, the state is captured at the last batch, and saved after Keras has
    ended the epoch: a later run with a higher limit trains on the rest of the epoch.

    Args:
        files: Where states are saved.
        callbacks: The run's other callbacks.
        options: When to save, and the limits of the run.
        num_batches: Batches of an epoch.
        begin: The state that the training begins with.
        signals: Asked after every batch whether to save and stop; with several
            processes only after those at which the run waits.
        distribution: The devices; all processes save after the same batch.
        console: Where it is reported that a run was stopped.
    """

    wants_every_batch = False

    def __init__(
        self,
        files: StateFiles,
        callbacks: Sequence[keras.callbacks.Callback],
        options: TrainingConfig,
        num_batches: int,
        begin: TrainingState,
        signals: StopSignals,
        distribution: Distribution,
        console: Console,
    ):
        super().__init__()
        self.files = files
        self.callbacks = list(callbacks)
        self.options = options
        self.num_batches = num_batches
        self.newest = begin
        self.signals = signals
        self.distribution = distribution
        self.console = console
        self._machine = machine(distribution)
        self.first_batch = begin.batch
        self._at_stop = None

    def on_train_begin(self, logs=None):
        self._saved_at = time.monotonic()
        self._count = UpdateCount(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        if self.first_batch:
            restore_metrics(self.model, self.newest)

    def on_train_batch_end(self, batch, logs=None):
        batches = self.batches_done(batch)
        is_due = self._has_updates(batch) or self._is_asked(logs)
        if batches >= self.num_batches:
            return  # The end of the epoch follows.
        if self.model.stop_training:
            self._at_stop = self._capture(self._epoch, batches)
        elif is_due:
            self._save(self._capture(self._epoch, batches))
            self._stop_if_signalled()

    def on_epoch_end(self, epoch, logs=None):
        state = self._at_stop or self._capture(epoch + 1, 0)
        if self.model.stop_training or epoch + 1 >= self.options.epochs:
            state.finished = limits(self.options)
            state.callbacks_at_end = states_of(self.callbacks)
        self._save(state)
        self._stop_if_signalled()

    def _capture(self, epoch, batch):
        for callback in self.callbacks:
            if isinstance(callback, NonfiniteBatches):
                callback.look()  # A bad batch, held back until now, must come again.
        return capture(self.model, epoch, batch, self.callbacks, self._machine)

    def _save(self, state):
        self.files.save(state)
        self.newest, self._saved_at = state, time.monotonic()

    def _is_signalled(self):
        return self.signals.received is not None

    def _has_updates(self, batch):
        """Whether `save_every` asks for a state; the same in all processes."""
        every = self.options.save_every
        due = math.inf if every is None else next_multiple(self.newest.updates, every)
        return self._count.has_reached(due, batch)

    def _is_asked(self, logs):
        """Whether a signal or the clock of any process asks for a state."""
        is_asked = self._is_signalled() or time.monotonic() - self._saved_at >= 600
        if self.distribution.num_processes > 1 and logs is None:
            return False
        return self.distribution.any(is_asked)

    def _stop_if_signalled(self):
        if not self.distribution.any(self._is_signalled()):
            return
        received = self.signals.received
        by = "a signal to another process" if received is None else received.name
        say(
            self.console,
            f"stopped by {by} after "
            f"{self.newest.updates:,} updates; the same command goes on from there",
        )
        self.signals.stop()


def limits(options: TrainingConfig) -> dict:
    """Returns the options that say when a training ends."""
    return {name: getattr(options, name) for name in _LIMITS}
