"""Callbacks of a training run: progress, limits, checks, logs."""

from __future__ import annotations

import math
import time
from pathlib import Path

import keras
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from keras_transformer.files import replacing
from keras_transformer.terminal import say
from keras_transformer.training.distribution import Distribution


class TokenRate(keras.callbacks.Callback):
    """Adds `tokens_per_second` to the logs, for the callbacks after it.

    Source and target tokens of the batches, padding left out, over the time of the
    epoch's training so far; after an interruption, of what was done since.

    Args:
        corpus: Training `Corpus`.
        first_batch: Batch of the epoch that the training begins with.
    """

    def __init__(self, corpus, first_batch: int = 0):
        super().__init__()
        self.corpus = corpus
        self.first_batch = first_batch
        self._counted = first_batch
        self._tokens, self._seconds = 0, 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self._now = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        # A call may have taken several batches: see `steps_per_execution`.
        done = self.first_batch + batch + 1
        self._tokens += sum(self.corpus.batch_tokens[self._counted : done])
        self._counted = done
        before, self._now = self._now, time.monotonic()
        self._seconds += self._now - before
        logs["tokens_per_second"] = self._rate = self._tokens / self._seconds

    def on_epoch_end(self, epoch, logs=None):
        # The last batch's: Keras made new logs after the validation.
        logs["tokens_per_second"] = self._rate
        self._counted, self._tokens, self._seconds = 0, 0, 0.0


class ProgressReport(keras.callbacks.Callback):
    """Shows a progress bar with loss, accuracy and tokens a second; a line an epoch.

    Args:
        corpus: Training `Corpus`.
        console: Rich console to write to; the bar shows on terminals only.
        epochs: Epochs of the whole run.
        first_batch: Batch of the first epoch that the training begins with.
    """

    def __init__(self, corpus, console: Console, epochs: int, first_batch: int = 0):
        super().__init__()
        self.corpus = corpus
        self.console = console
        self.epochs = epochs
        self.first_batch = first_batch
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
        total = self.corpus.num_batches * self.epochs
        self._task = self._progress.add_task("starting", total=total)
        self._progress.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        batches = self.first_batch + batch + 1
        self._progress.update(
            self._task,
            completed=(self._epoch - 1) * self.corpus.num_batches + batches,
            description=f"epoch {self._epoch}/{self.epochs}  "
            f"loss {logs['loss']:.3f}  accuracy {logs['accuracy']:.3f}  "
            f"{logs['tokens_per_second']:,.0f} tokens/s",
        )

    def on_epoch_end(self, epoch, logs=None):
        parts = [f"epoch {epoch + 1}/{self.epochs}"]
        for name, value in logs.items():
            digits = ",.0f" if name == "tokens_per_second" else ".4f"
            parts.append(f"{name} {value:{digits}}")
        parts.append(f"updates {self.model.updates}")
        say(self.console, "  ".join(parts))

    def on_train_end(self, logs=None):
        self._progress.stop()


class StopAtLimit(keras.callbacks.Callback):
    """Ends the training after a number of updates or minutes of the whole run.

    Args:
        max_updates: Most weight updates, or `None`.
        max_minutes: Most time of training, interruptions left out, or `None`.
        distribution: The devices: several processes stop after the same batch.
    """

    def __init__(
        self,
        max_updates: int | None,
        max_minutes: float | None,
        distribution: Distribution | None = None,
    ):
        super().__init__()
        self.max_updates = math.inf if max_updates is None else max_updates
        self.max_minutes = math.inf if max_minutes is None else max_minutes
        self.distribution = Distribution() if distribution is None else distribution
        self._seconds = 0.0

    def on_train_begin(self, logs=None):
        self._start = time.monotonic() - self._seconds

    def on_train_batch_end(self, batch, logs=None):
        self._seconds = time.monotonic() - self._start
        if self.distribution.any(self.reached(self.model.updates)):
            self.model.stop_training = True

    def reached(self, updates: int) -> bool:
        """Returns whether a run may train no longer after so many updates."""
        return updates >= self.max_updates or self._seconds >= 60 * self.max_minutes

    def state(self) -> dict:
        """Returns what `restore` needs after an interruption."""
        return {"seconds": self._seconds}

    def restore(self, state: dict):
        """Goes on from what `state` returned."""
        self._seconds = state["seconds"]


class NonfiniteBatches(keras.callbacks.Callback):
    """Keeps the batches whose loss or gradient was not finite, and stops if asked.

    Such a batch is never applied: see `ExactTraining`. It is written to
    `directory`/epoch-0001-batch-000001.npz: the ids `source`, `target_in` and
    `target_out`, and `source_text` and `target_text`.

    Args:
        corpus: Training `Corpus`.
        directory: Where the batches are written.
        stop: Whether to stop; otherwise they are only counted.
        console: Told of their number.
        first_batch: Batch of the first epoch that the training begins with.
        writes: Whether this process writes files.

    Raises:
        FloatingPointError: After such a batch, if `stop` is on; otherwise after an
            epoch of such batches alone.
    """

    def __init__(
        self,
        corpus,
        directory: str | Path,
        stop: bool,
        console: Console,
        first_batch: int = 0,
        writes: bool = True,
    ):
        super().__init__()
        self.corpus = corpus
        self.directory = Path(directory)
        self.stop = stop
        self.console = console
        self.first_batch = first_batch
        self.writes = writes

    def on_train_begin(self, logs=None):
        self._count = self._count_of_epoch = self.model.nonfinite_batches

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._seen = epoch, self.first_batch

    def on_train_batch_end(self, batch, logs=None):
        first, self._seen = self._seen, self.first_batch + batch + 1
        count = self.model.nonfinite_batches
        if count > self._count and self.stop:
            paths = self._write(first, self._seen) if self.writes else []
            raise FloatingPointError(
                "The loss or the gradient of a batch is not finite after "
                f"{self.model.updates} updates; the weights are those before it. The "
                f"batch is in {', '.join(map(str, paths)) or self.directory}. Lower "
                "`learning_rate_scale`, lengthen `warmup_steps`, set "
                "`global_clipnorm`, or go on with `nonfinite_batches` 'skip'."
            )
        self._count = count

    def on_epoch_end(self, epoch, logs=None):
        skipped = self._count - self._count_of_epoch
        if skipped:
            say(
                self.console,
                f"warning: skipped {skipped} batches whose loss or gradient was not "
                "finite",
            )
        if skipped and not self.first_batch and skipped >= self._seen:
            raise FloatingPointError(
                f"Every batch of epoch {epoch + 1} was skipped: no loss and gradient "
                "is finite any more, and nothing changes the weights. Begin anew with "
                "a lower `learning_rate_scale`, a longer `warmup_steps` or "
                "`global_clipnorm`."
            )
        self._count_of_epoch = self._count

    def _write(self, first, last):
        """Writes the batches of one call of the training step; returns the paths."""
        self.directory.mkdir(parents=True, exist_ok=True)
        batches = self.corpus.epoch(self._epoch, first_batch=first)
        paths, tokenizers = [], self.corpus.tokenizers
        for number in range(first, min(last, self.corpus.num_batches)):
            (source, target_in), target_out = next(batches)
            name = f"epoch-{self._epoch + 1:04d}-batch-{number + 1:06d}.npz"
            paths.append(self.directory / name)
            with replacing(paths[-1]) as temporary:
                np.savez(
                    temporary,
                    source=source,
                    target_in=target_in,
                    target_out=target_out,
                    source_text=_texts(tokenizers.source, source),
                    target_text=_texts(tokenizers.target, target_out),
                )
        return paths


def _texts(tokenizer, ids):
    """Returns the texts of ids (B, T) as NumPy strings."""
    return np.array([text.decode() for text in tokenizer.detokenize(ids).numpy()])
