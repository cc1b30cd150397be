"""What is best on the validation pairs, and when to stop waiting for better."""

from __future__ import annotations

import math
from collections.abc import Mapping

import keras
from rich.console import Console

from keras_transformer.terminal import say


class Monitor:
    """A figure of the validation, by which epochs are compared.

    Args:
        name: "loss", of which the lowest is best, or "bleu", of which the highest is.

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
        """Returns a number that is the higher the better; NaN is worse than all."""
        return -math.inf if math.isnan(value) else self._sign * value

    def better(self, value: float, best: float | None) -> bool:
        """Returns whether `value` beats the best so far; a tie does not."""
        so_far = -math.inf if best is None else self.rank(best)
        return self.rank(value) > so_far

    def value(self, logs: Mapping[str, float]) -> float:
        """Returns the figure of an epoch."""
        return float(logs[self.key])


class StopWithoutProgress(keras.callbacks.Callback):
    """Ends the training after some epochs that were no better than the best.

    Args:
        monitor: What is compared.
        patience: Epochs without a new best after which the training ends.
        console: Told why the training ends.
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

    def state(self) -> dict:
        """Returns what `restore` needs after an interruption."""
        return {"best": self.best, "epochs_without": self.epochs_without}

    def restore(self, state: dict):
        """Goes on from what `state` returned."""
        self.best, self.epochs_without = state["best"], state["epochs_without"]
