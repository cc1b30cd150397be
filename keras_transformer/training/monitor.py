"""Which epoch was best on the validation pairs, and when to stop without progress."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console

from keras_transformer.terminal import say
from keras_transformer.training.run_callback import RunCallback


class Monitor:
    """A validation figure that compares epochs.

    Args:
        name: "loss", for which lower is better, or "bleu", for which higher is.

    Attributes:
        key: The figure's name in the logs.

    Example:
        >>> Monitor("bleu").better(30.5, 29.0)
        True
    """

    def __init__(self, name: str):
        self.key = f"val_{name}"
        self._sign = 1.0 if name == "bleu" else -1.0

    def rank(self, value: float) -> float:
        """Returns a number that grows with quality; NaN ranks below all others."""
        return -math.inf if math.isnan(value) else self._sign * value

    def better(self, value: float, best: float | None) -> bool:
        """Returns whether `value` is strictly better than the best so far."""
        so_far = -math.inf if best is None else self.rank(best)
        return self.rank(value) > so_far

    def value(self, logs: Mapping[str, float]) -> float:
        """Returns the figure of an epoch."""
        return float(logs[self.key])


class StopWithoutProgress(RunCallback):
    """Ends the training after a number of epochs without a new best.

    Args:
        monitor: Compares the epochs.
        patience: Epochs without a new best after which the training ends.
        console: Where the reason is printed.
    """

    def __init__(self, monitor: Monitor, patience: int, console: Console):
        super().__init__()
        self.monitor = monitor
        self.patience = patience
        self.console = console
        self.best = None
        self.epochs_without = 0

    def on_epoch_end(self, epoch, logs=None):
        value = self.monitor.value(logs)
        if self.monitor.better(value, self.best):
            self.best, self.epochs_without = value, 0
            return
        self.epochs_without += 1
        if self.epochs_without >= self.patience:
            self.model.stop_training = True
            best = "no number" if self.best is None else f"{self.best:.4f}"
            say(
                self.console,
                f"{self.monitor.key} has not been better than {best} for "
                f"{self.epochs_without} epochs: the training ends",
            )

    def state(self):
        return {"best": self.best, "epochs_without": self.epochs_without}

    def restore(self, state):
        self.best, self.epochs_without = state["best"], state["epochs_without"]
