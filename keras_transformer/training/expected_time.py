"""How long a training run will take, from its first updates."""

from __future__ import annotations

import math
import time

from rich.console import Console

from keras_transformer.config import TrainingConfig
from keras_transformer.terminal import say
from keras_transformer.training.callbacks import StopAtLimit
from keras_transformer.training.run_callback import RunCallback

# Time to watch after the first figures, before which the step is compiled.
_SECONDS = 15.0


class ExpectedTime(RunCallback):
    """Says once how long the rest of a run takes at the speed of its first updates.

    Where epochs are short, their validation is in it. A run that `patience` ends may
    take less.

    Args:
        num_batches: Batches of an epoch.
        options: When the run ends.
        limit: The same, in minutes.
        console: Where it is printed.
    """

    wants_every_batch = False

    def __init__(
        self,
        num_batches: int,
        options: TrainingConfig,
        limit: StopAtLimit,
        console: Console,
    ):
        super().__init__()
        self.limit = limit
        self.num_batches = num_batches
        self.options = options
        self.console = console
        self._first = None
        self._is_said = False
        self._epochs = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._before = epoch * self.num_batches
        self._epochs += 1
        if self._epochs == 2:
            self._first = None  # The step of the first validation was compiled.

    def on_train_batch_end(self, batch, logs=None):
        if logs is None or self._is_said:
            return
        done, now = self._before + self.batches_done(batch), time.monotonic()
        if self._first is None:
            self._first = done, now
            return
        batches, seconds = done - self._first[0], now - self._first[1]
        if seconds < _SECONDS or not batches:
            return
        self._is_said = True
        left = min(self._left(done) * seconds / batches, self.limit.seconds_left())
        say(
            self.console,
            f"expected: {duration(left)} more, at {batches / seconds:.2g} batches a "
            "second",
        )

    def _left(self, done):
        """Returns the batches that are left, without a limit in minutes."""
        left = self.options.epochs * self.num_batches - done
        if self.options.max_updates is not None:
            updates = self.options.max_updates - self.model.updates
            left = min(left, updates * self.options.gradient_accumulation_steps)
        return max(left, 0)


def duration(seconds: float) -> str:
    """Returns a time in words, with two units at most.

    Example:
        >>> duration(7300)
        '2 h 1 min'
    """
    if seconds < 60:
        return f"{math.ceil(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 10:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    words = f"{hours} h {minutes} min" if hours else f"{minutes} min"
    return words if hours < 48 else f"{hours // 24} days {hours % 24} h"
