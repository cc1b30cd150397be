"""Callbacks of a training run: progress, limits, checks, logs."""

from __future__ import annotations

import math
import time
from pathlib import Path

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
from rich.table import Column

from keras_transformer.files import replacing
from keras_transformer.terminal import say
from keras_transformer.training.distribution import Distribution
from keras_transformer.training.run_callback import RunCallback
from keras_transformer.training.update_count import UpdateCount


class TokenRate(RunCallback):
    """Adds `tokens_per_second` to the logs, for the callbacks after it.

    It is the number of source and target tokens of the epoch so far, without padding,
    divided by the time they took in training. After an interruption, only what was done
    since then counts.

    Args:
        corpus: Training `Corpus`.
    """

    wants_every_batch = False

    def __init__(self, corpus):
        super().__init__()
        self.corpus = corpus

    def on_epoch_begin(self, epoch, logs=None):
        self._counted, self._tokens, self._seconds = self.first_batch, 0, 0.0
        self._now = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        if logs is None:
            return  # The device may not have done them yet.
        done = self.batches_done(batch)
        self._tokens += sum(self.corpus.batch_tokens[self._counted : done])
        self._counted = done
        before, self._now = self._now, time.monotonic()
        self._seconds += self._now - before
        logs["tokens_per_second"] = self._rate = self._tokens / self._seconds

    def on_epoch_end(self, epoch, logs=None):
        # Keras makes new logs for the end of an epoch.
        logs["tokens_per_second"] = self._rate


class ProgressReport(RunCallback):
    """Shows a progress bar with loss and speed, and prints a line an epoch.

    Args:
        corpus: Training `Corpus`.
        console: Rich console to write to; the bar shows on terminals only.
        epochs: Epochs of the whole run.
    """

    wants_every_batch = False

    def __init__(self, corpus, console: Console, epochs: int):
        super().__init__()
        self.corpus = corpus
        self.console = console
        self.epochs = epochs
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(None, table_column=Column(ratio=1)),  # The rest of the line.
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            expand=True,
            disable=not console.is_terminal,  # It would leave an empty line.
        )

    def on_train_begin(self, logs=None):
        total = self.corpus.num_batches * self.epochs
        self._task = self._progress.add_task("starting", total=total)
        self._progress.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        before = (self._epoch - 1) * self.corpus.num_batches
        new = {"completed": before + self.batches_done(batch)}
        if logs is not None:
            new["description"] = (
                f"epoch {self._epoch}/{self.epochs}  loss {logs['loss']:.3f}  "
                f"{logs['tokens_per_second']:,.0f} tokens/s"
            )
        self._progress.update(self._task, **new)

    def on_epoch_end(self, epoch, logs=None):
        parts = [f"epoch {epoch + 1}/{self.epochs}"]
        for name, value in logs.items():
            digits = ",.0f" if name == "tokens_per_second" else ".4f"
            parts.append(f"{name} {value:{digits}}")
        parts.append(f"updates {self.model.updates}")
        say(self.console, "  ".join(parts))

    def on_train_end(self, logs=None):
        self._progress.stop()


class StopAtLimit(RunCallback):
    """Ends the training after a number of updates or minutes of the whole run.

    Args:
        max_updates: Most weight updates, or `None`.
        max_minutes: Longest training, not counting interruptions, or `None`.
        distribution: The devices; all processes stop after the same batch.
    """

    wants_every_batch = False

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
        self._count = UpdateCount(self.model)

    def on_train_batch_end(self, batch, logs=None):
        self._seconds = time.monotonic() - self._start
        # All processes have made the same updates; their clocks may differ.
        if self._count.has_reached(self.max_updates, batch) or (
            self.max_minutes < math.inf
            and (self.distribution.num_processes == 1 or logs is not None)
            and self.distribution.any(self._time_is_up())
        ):
            self.model.stop_training = True

    def reached(self, updates: int) -> bool:
        """Returns whether a limit is reached after a number of updates."""
        return updates >= self.max_updates or self._time_is_up()

    def seconds(self) -> float:
        """Returns how long the run has trained, interruptions left out."""
        return self._seconds

    def seconds_left(self) -> float:
        """Returns the time until the limit in minutes, infinite if there is none."""
        return max(60 * self.max_minutes - self._seconds, 0.0)

    def _time_is_up(self):
        return self._seconds >= 60 * self.max_minutes

    def state(self):
        return {"seconds": self._seconds}

    def restore(self, state):
        self._seconds = state["seconds"]


class NonfiniteBatches(RunCallback):
    """Reports batches whose loss or gradient is not finite, and ends the run if asked.

    Such a batch is never applied: see `ExactTraining`. If the model's policy is "stop",
    the batch is written to `directory`/epoch-0001-batch-000001.npz: the ids `source`,
    `target_in` and `target_out`, and `source_text` and `target_text`. If it is "skip",
    the number of batches is printed at the end of the epoch.

    Args:
        corpus: Training `Corpus`.
        directory: Where the batches are written.
        console: Where their number is printed.
        writes: Whether this process writes files.

    Raises:
        FloatingPointError: With "stop" some batches later, none of which was applied,
            with "skip" after an epoch in which every batch was skipped.
    """

    wants_every_batch = False

    def __init__(
        self,
        corpus,
        directory: str | Path,
        console: Console,
        writes: bool = True,
    ):
        super().__init__()
        self.corpus = corpus
        self.directory = Path(directory)
        self.console = console
        self.writes = writes

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        self._epoch, self._seen = epoch, self.first_batch
        self._count_before = self.model.nonfinite_batches

    def on_train_batch_end(self, batch, logs=None):
        # The last call of the training step may find fewer batches than it runs.
        self._seen = min(self.batches_done(batch), self.corpus.num_batches)
        if logs is not None:  # The run waits for the device in any case.
            self.look()

    def look(self):
        """Writes the bad batch and raises, if there was one."""
        held = self.model.held_batches
        if not held:
            return
        number = self._seen - held
        path = self._write(number) if self.writes else self.directory
        raise FloatingPointError(
            "The loss or the gradient of a batch is not finite after "
            f"{self.model.updates} updates; the weights are those before it. "
            f"The batch is in {path}. Lower `learning_rate`, lengthen "
            "`warmup_steps`, set `global_clipnorm`, or skip such batches with "
            "`nonfinite` 'skip'.",
        )

    def on_epoch_end(self, epoch, logs=None):
        self.look()
        skipped = self.model.nonfinite_batches - self._count_before
        if skipped:
            say(
                self.console,
                f"warning: skipped {skipped} batches whose loss or gradient was not "
                "finite",
            )
        if skipped and not self.first_batch and skipped >= self._seen:
            raise FloatingPointError(
                f"Every batch of epoch {epoch + 1} was skipped, because its loss or "
                "gradient was not finite: the weights no longer change. Begin again "
                "with a lower `learning_rate`, a longer `warmup_steps` or "
                "`global_clipnorm`."
            )

    def _write(self, number):
        """Writes a batch of the epoch, counted from 0, and returns the file's path."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (source, target_in), target_out = next(
            self.corpus.epoch(self._epoch, first_batch=number)
        )
        tokenizers = self.corpus.tokenizers
        name = f"epoch-{self._epoch + 1:04d}-batch-{number + 1:06d}.npz"
        path = self.directory / name
        with replacing(path) as temporary:
            np.savez(
                temporary,
                source=source,
                target_in=target_in,
                target_out=target_out,
                source_text=_texts(tokenizers.source, source),
                target_text=_texts(tokenizers.target, target_out),
            )
        return path


def _texts(tokenizer, ids):
    """Returns the texts of ids (B, T) as NumPy strings."""
    return np.array([text.decode() for text in tokenizer.detokenize(ids).numpy()])
