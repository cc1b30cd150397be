"""The figure to draw on: the caller's axes or a new figure."""

from __future__ import annotations

import math

import numpy as np
from keras import ops
from matplotlib.figure import Figure


def one_axes(ax, size=(6.4, 4.0)):
    """Returns a figure and the axes to draw on.

    Args:
        ax: Axes of matplotlib, or `None` for those of a new figure.
        size: Width and height of a new figure (inches).

    Returns:
        A `Figure` and an `Axes`.
    """
    if ax is not None:
        return ax.get_figure(root=True), ax
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot()


def many_axes(axes, count, size, columns=4):
    """Returns a figure and as many axes as asked for, in a grid.

    Args:
        axes: Array or sequence of at least `count` axes, of which the rest are hidden;
            or `None` for those of a new figure.
        count: Number of axes to draw on.
        size: Width and height of each of the axes of a new figure (inches).
        columns: Most axes side by side in a new figure.

    Returns:
        A `Figure` and a list of `count` `Axes`.

    Raises:
        ValueError: If there are too few axes.
    """
    if axes is None:
        columns = min(columns, count)
        rows = math.ceil(count / columns)
        figure = Figure(
            figsize=(size[0] * columns, size[1] * rows), layout="constrained"
        )
        axes = figure.subplots(rows, columns, squeeze=False)
    axes = list(np.ravel(axes))
    if len(axes) < count:
        raise ValueError(
            f"`axes` must hold at least {count}. Received: {len(axes)} axes"
        )
    for unused in axes[count:]:
        unused.set_visible(False)
    return axes[0].get_figure(root=True), axes[:count]


def array_of(name, values, ranks):
    """Returns values as a NumPy array, float64 or boolean, of an allowed rank.

    Args:
        name: The argument's name.
        values: An array or a tensor of any backend.
        ranks: Allowed numbers of axes.

    Returns:
        The array.

    Raises:
        ValueError: If it has another rank or no element.
    """
    array = np.asarray(ops.convert_to_numpy(values))
    if array.ndim not in ranks or not array.size:
        allowed = " or ".join(map(str, ranks))
        raise ValueError(
            f"`{name}` must have {allowed} axes and not be empty. Received: shape "
            f"{array.shape}"
        )
    return array if array.dtype == bool else array.astype("float64")
