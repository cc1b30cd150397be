"""Curves over the updates and epochs of training: learning rates, losses, scores."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import keras
import numpy as np
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.plots.canvas import many_axes, one_axes
from keras_transformer.schedules import TransformerSchedule

_POINTS = 400  # of a curve of learning rates

# A directory or file of a run, what `fit` returned, or numbers by name.
Log: TypeAlias = "str | Path | keras.callbacks.History | Mapping[str, Sequence[float]]"


def learning_rate(
    schedules: LearningRateSchedule
    | Sequence[LearningRateSchedule]
    | Mapping[str, LearningRateSchedule],
    steps: int | None = None,
    *,
    ax: Axes | None = None,
) -> Figure:
    """Draws learning rates over the updates of training.

    Args:
        schedules: One or several `keras.optimizers.schedules.LearningRateSchedule`s; a
            mapping gives each its name in the legend.
        steps: Updates to draw; by default five times the longest warm-up.
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If there is no schedule, or `steps` is below 1.

    Example:
        >>> figure = plots.learning_rate(
        ...     [TransformerSchedule(512, 4000), TransformerSchedule(256, 8000)]
        ... )
    """
    named = _named(schedules)
    warmups = [getattr(schedule, "warmup_steps", 0) for schedule in named.values()]
    steps = 5 * (max(warmups) or 1000) if steps is None else steps
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1. Received: steps={steps}")
    figure, ax = one_axes(ax)
    for name, schedule in named.items():
        places = np.linspace(0, steps - 1, min(steps, _POINTS)).round()
        # The peak of a warm-up is a corner, which must not fall between two points.
        peak = getattr(schedule, "warmup_steps", 0) - 1
        if 0 <= peak < steps:
            places = np.union1d(places, [peak])
        rates = [float(ops.convert_to_numpy(schedule(int(step)))) for step in places]
        ax.plot(places + 1, rates, label=name)
    ax.set_xlabel("update")
    ax.set_ylabel("learning rate")
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    ax.set_xlim(0, steps)
    ax.set_ylim(bottom=0)
    ax.legend(fontsize="small")
    return figure


def training_curve(log: Log, metric: str = "loss", *, ax: Axes | None = None) -> Figure:
    """Draws a quantity of a training run over the epochs, with that of validation.

    Args:
        log: A run's directory or its log.csv; what `fit` returned; or a mapping from
            names such as "loss" and "val_loss" to one number per epoch.
        metric: Name of the quantity, without "val_".
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        FileNotFoundError: If there is no log.
        ValueError: If the log has no such quantity or is not a log.

    Example:
        >>> figure = plots.training_curve("runs/en-de", "perplexity")
    """
    log = _read(log)
    _check_metric(log, metric)
    figure, ax = one_axes(ax)
    _draw_metric(ax, log, metric)
    return figure


def training_curves(
    log: Log,
    metrics: Sequence[str] | None = None,
    *,
    axes: Sequence[Axes] | np.ndarray | None = None,
) -> Figure:
    """Draws quantities of a training run, each as `training_curve` does.

    Args:
        log: As for `training_curve`.
        metrics: Names of the quantities; by default all of the log.
        axes: Axes to draw on, at least one for each, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        FileNotFoundError: If there is no log.
        ValueError: If the log has no such quantity or is not a log, or there are too
            few axes.

    Example:
        >>> figure = plots.training_curves(model.fit(x, y, validation_data=valid))
    """
    log = _read(log)
    metrics = _metrics_of(log) if metrics is None else list(metrics)
    if not metrics:
        raise ValueError("The log has no quantity to draw, such as `loss`.")
    for metric in metrics:
        _check_metric(log, metric)
    figure, axes = many_axes(axes, len(metrics), size=(4.4, 3.2), columns=3)
    for ax, metric in zip(axes, metrics, strict=True):
        _draw_metric(ax, log, metric)
    return figure


def _named(schedules):
    """Schedules by the name that the legend gives them."""
    if isinstance(schedules, keras.optimizers.schedules.LearningRateSchedule):
        schedules = [schedules]
    if not schedules:
        raise ValueError("`schedules` must hold at least one. Received: none")
    if isinstance(schedules, Mapping):
        return dict(schedules)
    named = {}
    for schedule in schedules:
        name = type(schedule).__name__
        if isinstance(schedule, TransformerSchedule):
            name = f"d_model {schedule.d_model}, warm-up {schedule.warmup_steps}"
            name += "" if schedule.scale == 1 else f", scale {schedule.scale:g}"
        if name in named:
            name += f" ({len(named) + 1})"
        named[name] = schedule
    return named


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
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not valid UTF-8") from error
    rows = csv.DictReader(io.StringIO(text, newline=""))
    names = rows.fieldnames or []
    if "epoch" not in names or len(set(names)) < len(names):
        raise ValueError(
            f"{path}: not the log of a training run: its first line must name "
            "columns, each once, `epoch` among them."
        )
    columns = {name: [] for name in names}
    for row in rows:
        try:
            for name in names:
                columns[name].append(float(row[name] or "nan"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}:{rows.line_num}: {error}") from error
    return columns


def _metrics_of(log):
    """Quantities of a log, the loss first."""
    names = [name.removeprefix("val_") for name in log if name != "epoch"]
    return sorted(dict.fromkeys(names), key=lambda name: name != "loss")


def _check_metric(log, metric):
    if metric not in _metrics_of(log):
        raise ValueError(
            f"The log has no {metric!r}. It has: "
            f"{', '.join(_metrics_of(log)) or 'nothing'}"
        )


def _draw_metric(ax, log, metric):
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
