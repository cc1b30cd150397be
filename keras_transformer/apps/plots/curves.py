"""Curves over the epochs of training: losses and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from keras_transformer.config import RunConfig

if TYPE_CHECKING:
    import keras

# A directory or file of a run, what `fit` returned, or numbers by name.
Log: TypeAlias = "str | Path | keras.callbacks.History | Mapping[str, Sequence[float]]"
_PANEL = (4.8, 3.5)  # inches
# The titles of panels, in their order; others have their names.
_TITLES = {
    "loss": "loss (nats a token)",
    "bleu": "BLEU",
    "masked_accuracy": "accuracy",
    "perplexity": "perplexity",
    "learning_rate": "learning rate",
}


def training_curves(log: Log, metrics: Sequence[str] | None = None) -> Figure:
    """Draws quantities of a training run over the epochs, with those of validation.

    A dotted line marks the best epoch by validation: by the run's `monitor`, else by
    the loss.

    Args:
        log: A run's directory or its log.csv; what `fit` returned; or a mapping from
            names such as "loss" and "val_loss" to one number per epoch.
        metrics: Names of the quantities, without "val_"; by default all of the log but
            the counts of steps and updates.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        FileNotFoundError: If there is no log.
        ValueError: If the log has no such quantity or is not a log.

    Example:
        >>> figure = plots.training_curves("runs/en-de", ["perplexity"])
        >>> figure = plots.training_curves(model.fit(x, y, validation_data=valid))
    """
    title = "training"
    monitor = "loss"
    if isinstance(log, (str, Path)):
        log = Path(log) / "log.csv" if Path(log).is_dir() else Path(log)
        title = f"training of {log.absolute().parent.name}"
        if (config := log.with_name("config.json")).exists():
            monitor = RunConfig.load(config).training.monitor
    log = _read(log)
    known = dict.fromkeys(name.removeprefix("val_") for name in log if name != "epoch")
    if metrics is None:
        others = known.keys() - _TITLES.keys() - {"step", "updates"}
        metrics = [*filter(known.__contains__, _TITLES), *sorted(others)]
    if not metrics or not known.keys() >= set(metrics):
        raise ValueError(
            f"`metrics` must be some of those of the log: {', '.join(known)}. "
            f"Received: metrics={metrics}"
        )
    figure, axes = panels(len(metrics), _PANEL, columns=3)
    best = None
    scores = np.array(log.get(f"val_{monitor}", []))
    if np.isfinite(scores).any():
        find = np.nanargmin if monitor == "loss" else np.nanargmax
        best = log["epoch"][find(scores)]
    for ax, metric in zip(axes, metrics, strict=True):
        for name, label in ((metric, "training"), (f"val_{metric}", "validation")):
            if name in log:
                values = log[name]
                ax.plot(log["epoch"][: len(values)], values, ".-", label=label)
        if best is not None:
            ax.axvline(best, color="gray", ls=":", label=f"best epoch: {best:g}")
        if metric == "perplexity":
            ax.set_yscale("log")  # It falls by orders of magnitude.
            ax.yaxis.set_major_formatter(LogFormatter())
            ax.yaxis.set_minor_formatter(LogFormatter())
        ax.set_title(_TITLES.get(metric, metric.replace("_", " ")), fontsize="medium")
        ax.set_xlabel("epoch")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(fontsize="small")
    figure.suptitle(title, parse_math=False)
    return figure


def panels(count: int, size: Sequence[float], columns: int = 1):
    """Returns a new figure and `count` axes, each of a size (inches)."""
    columns = min(columns, count)
    rows = -(-count // columns)
    inches = (size[0] * columns, size[1] * rows)
    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def _read(log):
    """A log as columns by name, "epoch" (counted from 1) among them."""
    if isinstance(log, Path):
        return _read_file(log)
    log = getattr(log, "history", log)
    columns = {name: list(map(float, values)) for name, values in log.items()}
    epochs = max(map(len, columns.values()), default=0)
    return {"epoch": list(range(1, epochs + 1))} | columns


def _read_file(path):
    table = np.genfromtxt(path, delimiter=",", names=True, encoding="utf-8")
    if "epoch" not in (table.dtype.names or ()):
        raise ValueError(
            f"{path}: not the log of a training run: its first line must name "
            "columns, `epoch` among them."
        )
    return {name: np.atleast_1d(table[name]) for name in table.dtype.names}
