"""Attention and masks as grids of squares, with tokens on both axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.plots.canvas import array_of, many_axes, one_axes
from keras_transformer.plots.fonts import labels_of
from keras_transformer.types import TensorLike

# Inches: a token's square, the space of labels and colour bar, the largest figure.
_SQUARE, _MARGIN, _LARGEST = 0.28, 1.6, 24.0
# Inches, of one of several panels.
_SMALL_SQUARE, _SMALL_MARGIN = 0.2, 1.0


def attention(
    weights: TensorLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    head: int | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draws what each query attends to: a row per query, a column per key.

    Args:
        weights: Attention weights (T, S), or (H, T, S) of several heads.
        queries: T tokens, down the left side, or `None` for positions.
        keys: S tokens, along the top, or `None` for positions.
        head: Head to draw, counted from 0, or backwards from -1; `None` for the mean
            of all.
        title: Text above the picture.
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the shapes do not fit each other, or there is no such head.

    Example:
        >>> figure = plots.attention(np.eye(2), ["Guten", "Tag"], ["Good", "day"])
        >>> figure.savefig("attention.png")
    """
    weights = array_of("weights", weights, (2, 3))
    if head is not None:
        weights = _head_of(weights, head)
    elif weights.ndim == 3:
        weights = weights.mean(axis=0)
    size = _size(weights.shape, _SQUARE, _MARGIN)
    figure, ax = one_axes(ax, size)
    image = _grid(ax, weights, queries, keys, vmin=0.0, cmap="Blues")
    figure.colorbar(image, ax=ax, shrink=0.7, pad=0.02)
    if title is not None:
        _title(ax, title)
    return figure


def attention_heads(
    weights: TensorLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    title: str | None = None,
    axes: Sequence[Axes] | np.ndarray | None = None,
) -> Figure:
    """Draws the attention of every head side by side, on one colour scale.

    Args:
        weights: Attention weights (H, T, S).
        queries: T tokens, down the left side, or `None` for positions.
        keys: S tokens, along the top, or `None` for positions.
        title: Text above the picture.
        axes: At least H axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the shapes do not fit each other.

    Example:
        >>> figure = plots.attention_heads(np.full((4, 2, 3), 1 / 3))
    """
    weights = array_of("weights", weights, (3,))
    size = _size(weights.shape[1:], _SMALL_SQUARE, _SMALL_MARGIN)
    own = axes is None
    figure, axes = many_axes(axes, len(weights), size)
    largest = weights.max()
    for head, (ax, one) in enumerate(zip(axes, weights, strict=True)):
        image = _grid(ax, one, queries, keys, vmin=0.0, vmax=largest, cmap="Blues")
        _title(ax, f"head {head}")
    figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
    if title is not None and own:
        text, properties = _text(title)
        figure.suptitle(text, **properties)
    return figure


def mask(
    mask: TensorLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draws a mask: dark where a query (row) may attend to a key (column).

    Args:
        mask: Boolean (T, S) or (1, T, S) of one sentence, such as the functions of
            `keras_transformer.masks` return.
        queries: T tokens, down the left side, or `None` for positions.
        keys: S tokens, along the top, or `None` for positions.
        title: Text above the picture.
        ax: Axes to draw on, or `None` for a new figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        TypeError: If `mask` is not boolean.
        ValueError: If it is of several sentences, or the number of tokens is wrong.

    Example:
        >>> figure = plots.mask(causal_mask(5))
    """
    allowed = array_of("mask", mask, (2, 3))
    if allowed.dtype != bool:
        raise TypeError(
            "`mask` must be boolean, True where a position may be attended to. "
            f"Received: dtype {allowed.dtype}"
        )
    if allowed.ndim == 3:
        if len(allowed) != 1:
            raise ValueError(
                "`mask` must be of one sentence: choose one, such as mask[0]. "
                f"Received: shape {allowed.shape}"
            )
        allowed = allowed[0]
    figure, ax = one_axes(ax, _size(allowed.shape, _SQUARE, _SMALL_MARGIN))
    _grid(ax, allowed, queries, keys, vmin=0, vmax=1.4, cmap="Blues")
    ax.set_xticks(np.arange(allowed.shape[1] + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(allowed.shape[0] + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="0.8", linewidth=0.5)
    ax.tick_params(which="minor", length=0)
    if title is not None:
        _title(ax, title)
    return figure


def _head_of(weights, head):
    count = len(weights) if weights.ndim == 3 else 0
    if not -count <= head < count:
        raise ValueError(
            f"`head` must be one of the {count} heads of `weights`, counted from 0. "
            f"Received: head={head}, weights of shape {weights.shape}"
        )
    return weights[head]


def _size(shape, square, margin):
    """Width and height of a picture of T rows and S columns (inches)."""
    rows, columns = shape
    sides = (columns * square + margin, rows * square + margin)
    return tuple(min(_LARGEST, max(3.0, side)) for side in sides)


def _grid(ax, values, queries, keys, **options):
    """Draws values (T, S) with their tokens; returns the image."""
    image = ax.imshow(
        values, aspect="auto", interpolation="nearest", origin="upper", **options
    )
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.tick_params(length=0, labelsize="small")
    _label(ax.set_xticks, "keys", keys, values.shape[1])
    _label(ax.set_yticks, "queries", queries, values.shape[0])
    return image


def _label(set_ticks, name, tokens, count):
    if tokens is None:
        set_ticks(range(0, count, max(1, count // 10)))
        return
    if len(tokens) != count:
        raise ValueError(
            f"`{name}` must be as many as in `weights` or `mask`. "
            f"Received: {len(tokens)} tokens, {count} in the array"
        )
    labels, properties = labels_of(tokens)
    upright = name == "queries" or max(map(len, labels)) < 3
    set_ticks(range(count), labels, rotation=0 if upright else 90, **properties)


def _title(ax, title):
    text, properties = _text(title)
    ax.set_title(text, fontsize="medium", **properties)


def _text(title):
    labels, properties = labels_of(title.split())
    return " ".join(labels), properties
