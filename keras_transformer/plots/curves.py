"""Curves over the epochs of training: losses and scores."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import keras
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.plots.attention import axes_for

# A directory or file of a run, what `fit` returned, or numbers by name.
Log: TypeAlias = "str | Path | keras.callbacks.History | Mapping[str, Sequence[float]]"


def training_curves(
    log: Log,
    metrics: Sequence[str] | None = None,
    *,
    axes: Sequence[Axes] | np.ndarray | None = None,
) -> Figure:
    """Draws quantities of a training run over the epochs, with those of validation.

    Args:
        log: A run's directory or its log.csv; what `fit` returned; or a mapping from
            names such as "loss" and "val_loss" to one number per epoch.
        metrics: Names of the quantities, without "val_"; by default all of the log.
        axes: Axes to draw on, at least one for each, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        FileNotFoundError: If there is no log.
        ValueError: If the log has no such quantity or is not a log, or there are too
            few axes.

    Example:
        >>> figure = plots.training_curves("runs/en-de", ["perplexity"])
        >>> figure = plots.training_curves(model.fit(x, y, validation_data=valid))
    """
    log = _read(log)
    names = [name.removeprefix("val_") for name in log if name != "epoch"]
    known = sorted(dict.fromkeys(names), key=lambda name: name != "loss")
    metrics = known if metrics is None else list(metrics)
    if not metrics:
        raise ValueError("The log has no quantity to draw, such as `loss`.")
    for metric in metrics:
        if metric not in known:
            raise ValueError(
                f"The log has no {metric!r}. It has: {', '.join(known) or 'nothing'}"
            )
    size = (6.4, 4.0) if len(metrics) == 1 else (4.4, 3.2)
    figure, axes = axes_for(axes, len(metrics), size, columns=3)
    for ax, metric in zip(axes, metrics, strict=True):
        for name, label in ((metric, "training"), (f"val_{metric}", "validation")):
            if name in log:
                values = log[name]
                ax.plot(log["epoch"][: len(values)], values, ".-", label=label)
        if metric == "perplexity":
            ax.set_yscale("log")  # It falls by orders of magnitude.
        ax.set_xlabel("epoch")
        ax.set_ylabel(metric.replace("_", " "))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.legend(fontsize="small")
    return figure


def _read(log):
    """A log as lists by name, "epoch" (counted from 1) among them."""
    if isinstance(log, keras.callbacks.History):
        log = log.history
    if not isinstance(log, Mapping):
        return _read_file(Path(log))
    columns = {name: list(map(float, values)) for name, values in log.items()}
    epochs = max(map(len, columns.values()), default=0)
    return {"epoch": list(range(1, epochs + 1))} | columns


def _read_file(path):
    path = path / "log.csv" if path.is_dir() else path
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        names = rows.fieldnames or []
        if "epoch" not in names:
            raise ValueError(
                f"{path}: not the log of a training run: its first line must name "
                "columns, `epoch` among them."
            )
        columns = {name: [] for name in names}
        try:
            for row in rows:
                for name in names:
                    columns[name].append(float(row[name] or "nan"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}:{rows.line_num}: {error}") from error
    return columns
