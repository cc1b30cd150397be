"""Position vectors: all of them, some of their dimensions, how alike they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.plots.canvas import array_of, one_axes
from keras_transformer.types import TensorLike


def positional_encoding(vectors: TensorLike, *, ax: Axes | None = None) -> Figure:
    """Draws position vectors as a matrix: a row per position, a column per dimension.

    Args:
        vectors: Float array (T, D) of T positions, such as `sinusoidal_encoding`
            returns or a learned table holds.
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If `vectors` is not a matrix.

    Example:
        >>> vectors = sinusoidal_encoding(np.arange(100), 128)
        >>> figure = plots.positional_encoding(vectors)
    """
    vectors = array_of("vectors", vectors, (2,))
    figure, ax = one_axes(ax)
    largest = np.abs(vectors).max() or 1.0
    image = ax.imshow(
        vectors, aspect="auto", cmap="RdBu", vmin=-largest, vmax=largest,
        interpolation="nearest",
    )  # fmt: skip
    ax.set_xlabel("dimension")
    ax.set_ylabel("position")
    figure.colorbar(image, ax=ax, pad=0.02)
    return figure


def position_dimensions(
    vectors: TensorLike,
    dimensions: Sequence[int] | None = None,
    *,
    ax: Axes | None = None,
) -> Figure:
    """Draws some dimensions of position vectors as curves over the positions.

    Args:
        vectors: Float array (T, D) of T positions.
        dimensions: Dimensions to draw, each from 0 to D - 1; by default four of the
            first half, evenly spaced.
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If `vectors` is not a matrix or has no such dimension.

    Example:
        >>> vectors = sinusoidal_encoding(np.arange(100), 20)
        >>> figure = plots.position_dimensions(vectors, [4, 5])
    """
    vectors = array_of("vectors", vectors, (2,))
    width = vectors.shape[1]
    if dimensions is None:
        dimensions = sorted({i * width // 8 for i in range(1, 5)})
    if not all(0 <= dimension < width for dimension in dimensions):
        raise ValueError(
            f"`dimensions` must be from 0 to {width - 1}. Received: "
            f"dimensions={list(dimensions)}"
        )
    figure, ax = one_axes(ax)
    for dimension in dimensions:
        ax.plot(vectors[:, dimension], label=f"dimension {dimension}")
    ax.set_xlabel("position")
    ax.set_ylabel("value")
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
    ax.legend(ncols=4, fontsize="small", **above)
    return figure


def position_similarity(vectors: TensorLike, *, ax: Axes | None = None) -> Figure:
    """Draws the cosine of the angle between every two position vectors.

    For sinusoids it depends only on the distance between the positions, because one
    rotation moves every position k places on (section 3.5 of Vaswani et al., 2017,
    https://arxiv.org/abs/1706.03762).

    Args:
        vectors: Float array (T, D) of T positions.
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If `vectors` is not a matrix.

    Example:
        >>> vectors = sinusoidal_encoding(np.arange(100), 128)
        >>> figure = plots.position_similarity(vectors)
    """
    vectors = array_of("vectors", vectors, (2,))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.where(lengths > 0, lengths, 1.0)
    figure, ax = one_axes(ax, size=(5.2, 4.4))
    image = ax.imshow(
        units @ units.T, cmap="RdBu", vmin=-1.0, vmax=1.0, interpolation="nearest"
    )
    ax.set_xlabel("position")
    ax.set_ylabel("position")
    figure.colorbar(image, ax=ax, pad=0.02, label="cosine")
    return figure
