"""Curves over the epochs of training: losses and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    import keras


def training_curves(
    log: str | Path | keras.callbacks.History | Mapping[str, Sequence[float]],
    metrics: Sequence[str] | None = None,
) -> Figure:
    """Draws quantities of a training run over the epochs, with those of validation.

    Args:
        log: A run's directory; what `fit` returned; or a mapping from names such as
            "loss" and "val_loss" to one number per epoch.
        metrics: Names of the quantities, without "val_"; by default all of the log but
            the counts of steps and updates.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        FileNotFoundError: If the run has no log.
        ValueError: If the log has no such quantity.

    Example:
        >>> figure = plots.training_curves("runs/en-de", ["perplexity"])
        >>> figure = plots.training_curves(model.fit(x, y, validation_data=valid))
    """
    if isinstance(log, (str, Path)):
        table = np.genfromtxt(Path(log) / "log.csv", delimiter=",", names=True, ndmin=1)
        log = {name: table[name] for name in table.dtype.names}
    columns = {**getattr(log, "history", log)}
    longest = max(map(len, columns.values()), default=0)
    epochs = columns.pop("epoch", range(1, longest + 1))
    known = dict.fromkeys(name.removeprefix("val_") for name in columns)
    if metrics is None:
        metrics = [name for name in known if name not in ("step", "updates")]
    if not metrics or not known.keys() >= set(metrics):
        raise ValueError(
            f"`metrics` must be some of those of the log: {', '.join(known)}. "
            f"Received: metrics={metrics}"
        )
    figure, axes = panels(len(metrics), 4.8, 3.5)
    for ax, metric in zip(axes, metrics, strict=True):
        for name, label in ((metric, "training"), (f"val_{metric}", "validation")):
            if name in columns:
                values = columns[name]
                ax.plot(epochs[: len(values)], values, ".-", label=label)
        if metric == "perplexity":
            ax.set_yscale("log")  # It falls by orders of magnitude.
        ax.set_title(metric, fontsize="medium")
        ax.set_xlabel("epoch")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(fontsize="small")
    return figure


def panels(count: int, width: float, height: float):
    """Returns a new figure and `count` axes in a square, each of a size (inches)."""
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]
