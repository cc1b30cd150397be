"""Draws docs/architecture.svg: from pairs of sentences to a server.

python docs/architecture.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

TEXT, MODEL, SEARCH, OUTSIDE = "#fdebd0", "#d6eaf8", "#d5f5e3", "#f4f4f4"
INK = "#222222"


def box(ax, x, y, width, height, title, name="", colour=OUTSIDE, size=10):
    """A box around the point (x, y): a title, and below it the name in the code."""
    corner = (x - width / 2, y - height / 2)
    shape = FancyBboxPatch(
        corner, width, height, "round,pad=0,rounding_size=0.08",
        facecolor=colour, edgecolor=INK, linewidth=1,
    )  # fmt: skip
    ax.add_patch(shape)
    shift = 0.14 if name else 0
    ax.text(x, y + shift, title, ha="center", va="center", size=size, color=INK)
    if name:
        style = dict(size=size - 2, family="monospace", color="#555555")
        ax.text(x, y - 0.17, name, ha="center", va="center", **style)


def frame(ax, left, right, bottom, top, title, style="--"):
    """A frame with its title at the top left."""
    shape = FancyBboxPatch(
        (left, bottom), right - left, top - bottom, "round,pad=0,rounding_size=0.12",
        facecolor="none", edgecolor="#666666", linewidth=1.2, linestyle=style,
    )  # fmt: skip
    ax.add_patch(shape)
    ax.text(left + 0.12, top - 0.2, title, ha="left", va="center", size=9, color=INK)


def arrow(ax, start, end):
    shape = dict(arrowstyle="-|>", mutation_scale=10, color=INK, linewidth=1.1)
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=1, **shape))


def stack(ax, x, y, parts, repeats):
    """The sub-layers of an encoder or decoder layer, from the bottom up."""
    for row, (title, name) in enumerate(parts):
        box(ax, x, y + 0.75 * row, 2.6, 0.6, title, name, MODEL, size=9)
        if row:
            arrow(ax, (x, y + 0.75 * row - 0.47), (x, y + 0.75 * row - 0.28))
    top = y + 0.75 * (len(parts) - 1)
    frame(ax, x - 1.45, x + 1.45, y - 0.42, top + 0.75, repeats, "-")


def draw():
    matplotlib.rcParams.update({"svg.fonttype": "path", "svg.hashsalt": "docs"})
    figure = Figure(figsize=(9.2, 4.75))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, 12), ylim=(0, 6.2))
    ax.set_axis_off()
    figure.patch.set_facecolor("white")

    frame(ax, 1.75, 10.2, 0.2, 6.05, "SavedModel: strings in, strings out")
    box(ax, 0.85, 1.0, 1.3, 0.9, "source text", '"Two men."')
    box(ax, 2.75, 1.0, 1.3, 0.9, "tokenizer", "Tokenizer", TEXT)
    box(ax, 5.0, 1.0, 2.6, 0.7, "embedding, positions", "PositionalEmbedding", MODEL, 9)
    box(ax, 8.3, 1.0, 2.6, 0.7, "embedding, positions", "PositionalEmbedding", MODEL, 9)
    encoder = [
        ("self-attention", "MultiHeadAttention"),
        ("feed-forward", "FeedForward"),
    ]
    decoder = [("self-attention, past only", "MultiHeadAttention")]
    decoder += [("attention to the source", "MultiHeadAttention"), encoder[1]]
    stack(ax, 5.0, 2.1, encoder, "N × EncoderLayer")
    stack(ax, 8.3, 2.1, decoder, "N × DecoderLayer")
    box(ax, 8.3, 5.15, 2.6, 0.6, "logits, tied output", "", MODEL, 9)
    box(ax, 5.0, 5.15, 2.2, 0.9, "beam search", "beam_search", SEARCH)
    box(ax, 2.75, 5.15, 1.5, 0.9, "detokenizer", "Tokenizer", TEXT)
    box(ax, 0.85, 5.15, 1.3, 0.9, "translation", '"Zwei M…"')
    box(ax, 11.2, 4.4, 1.3, 0.9, "TF Serving", "export")
    box(ax, 11.2, 3.1, 1.3, 0.9, "LiteRT,\nbrowsers", "")
    box(ax, 11.2, 1.8, 1.3, 0.9, "your pairs", "train")

    arrow(ax, (1.5, 1.0), (2.1, 1.0))
    arrow(ax, (3.4, 1.0), (3.7, 1.0))
    arrow(ax, (5.0, 1.35), (5.0, 1.8))
    arrow(ax, (8.3, 1.35), (8.3, 1.8))
    arrow(ax, (6.3, 2.85), (7.0, 2.85))  # the encoder's output, for every decoder layer
    arrow(ax, (8.3, 4.35), (8.3, 4.85))
    arrow(ax, (7.0, 5.15), (6.1, 5.15))
    arrow(ax, (3.9, 5.15), (3.5, 5.15))
    arrow(ax, (2.0, 5.15), (1.5, 5.15))
    # The decoder reads each token that the search has chosen.
    ax.plot((5.6, 5.6, 6.65, 6.65), (4.7, 4.15, 4.15, 1.0), color=INK, linewidth=1.1)
    arrow(ax, (6.65, 1.0), (7.0, 1.0))
    ax.text(5.7, 4.3, "last token", size=8, color=INK, ha="left")
    for y in (4.4, 3.1):
        arrow(ax, (10.2, y), (10.55, y))
    arrow(ax, (10.55, 1.8), (10.2, 1.8))
    return figure


if __name__ == "__main__":
    file = Path(__file__).with_suffix(".svg")
    draw().savefig(file, metadata={"Date": None, "Creator": None})
