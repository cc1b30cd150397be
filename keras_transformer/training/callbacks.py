"""Callbacks of a training run: progress, limits, checks, logs."""

from __future__ import annotations

import math
import time

import keras
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class TokenRate(keras.callbacks.Callback):
    """Adds `tokens_per_second` to the logs, for the callbacks after it.

    Source and target tokens, padding left out, over the time of the epoch's training so
    far; in the middle of an epoch its batches count alike.

    Args:
        corpus: Training `Corpus`.
    """

    def __init__(self, corpus):
        super().__init__()
        self.corpus = corpus

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        tokens = self.corpus.num_tokens * (batch + 1) / self.corpus.num_batches
        self._rate = tokens / (time.monotonic() - self._start)
        logs["tokens_per_second"] = self._rate

    def on_epoch_end(self, epoch, logs=None):
        # The last batch's: Keras made new logs after the validation.
        logs["tokens_per_second"] = self._rate


class ProgressReport(keras.callbacks.Callback):
    """Shows a progress bar with loss, accuracy and tokens a second; a line an epoch.

    Args:
        corpus: Training `Corpus`.
        console: Rich console to write to; the bar shows on terminals only.
    """

    def __init__(self, corpus, console: Console):
        super().__init__()
        self.corpus = corpus
        self.console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def on_train_begin(self, logs=None):
        total = self.corpus.num_batches * self.params["epochs"]
        self._task = self._progress.add_task("starting", total=total)
        self._progress.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        self._progress.update(
            self._task,
            advance=1,
            description=f"epoch {self._epoch}/{self.params['epochs']}  "
            f"loss {logs['loss']:.3f}  accuracy {logs['accuracy']:.3f}  "
            f"{logs['tokens_per_second']:,.0f} tokens/s",
        )

    def on_epoch_end(self, epoch, logs=None):
        parts = [f"epoch {epoch + 1}/{self.params['epochs']}"]
        for name, value in logs.items():
            digits = ",.0f" if name == "tokens_per_second" else ".4f"
            parts.append(f"{name} {value:{digits}}")
        updates = int(self.model.optimizer.iterations.numpy())
        self.console.print(
            "  ".join([*parts, f"updates {updates}"]), highlight=False, soft_wrap=True
        )

    def on_train_end(self, logs=None):
        self._progress.stop()


class StopAtLimit(keras.callbacks.Callback):
    """Ends the training after a number of updates or minutes.

    Args:
        max_updates: Most weight updates, or `None`.
        max_minutes: Most time since the training began, or `None`.
    """

    def __init__(self, max_updates: int | None, max_minutes: float | None):
        super().__init__()
        self.max_updates = math.inf if max_updates is None else max_updates
        self.max_minutes = math.inf if max_minutes is None else max_minutes

    def on_train_begin(self, logs=None):
        self._updates, self._start = 0, time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        self._updates += 1
        minutes = (time.monotonic() - self._start) / 60
        if self._updates >= self.max_updates or minutes >= self.max_minutes:
            self.model.stop_training = True


class StopOnDivergence(keras.callbacks.Callback):
    """Raises an error as soon as the loss is infinite or not a number.

    Raises:
        FloatingPointError: On such a loss.
    """

    def on_train_batch_end(self, batch, logs=None):
        if not math.isfinite(logs["loss"]):
            # A running mean over the epoch: once infinite it stays so.
            updates = int(self.model.optimizer.iterations.numpy())
            raise FloatingPointError(
                f"The loss is {logs['loss']} after {updates} updates. Lower "
                "`learning_rate_scale` or lengthen `warmup_steps`; the checkpoints of "
                "earlier epochs are intact."
            )
