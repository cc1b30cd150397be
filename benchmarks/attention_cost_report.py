"""Formulas, table and plot of what `attention_cost.py` measured."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from figures import markdown


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What all layers of a run have in common.

    Args:
        width: Units of input and output, d.
        heads: Attention heads, h.
        window: Positions to each side that local attention sees, w.
        kernel: Positions under the convolution's kernel, k.
        batch: Sequences.
    """

    width: int = 256
    heads: int = 4
    window: int = 64
    kernel: int = 3
    batch: int = 1


@dataclasses.dataclass(frozen=True)
class Kind:
    """A layer, and how its cost grows.

    Args:
        formula: Multiplications for one sequence, as text.
        operations: The same as a function of the length n and `Sizes`.
        memory: How many numbers must be held at once, of the same arguments.
    """

    formula: str
    operations: Callable[[int, Sizes], int]
    memory: Callable[[int, Sizes], int]


KINDS = {
    "full attention": Kind(
        "4 n d² + 2 n² d",
        lambda n, s: 4 * n * s.width**2 + 2 * n**2 * s.width,
        lambda n, s: 4 * n * s.width + s.heads * n**2,
    ),
    "recurrence": Kind(
        "6 n d²", lambda n, s: 6 * n * s.width**2, lambda n, s: 4 * n * s.width
    ),
    "convolution": Kind(
        "k n d²", lambda n, s: s.kernel * n * s.width**2, lambda n, s: 2 * n * s.width
    ),
    "local attention": Kind(
        "4 n d² + 2 n (2w + 1) d",
        lambda n, s: 4 * n * s.width**2 + 2 * n * (2 * s.window + 1) * s.width,
        lambda n, s: 4 * n * s.width + s.heads * n * (2 * s.window + 1),
    ),
    "linear attention": Kind(
        "4 n d² + 2 n d² / h",
        lambda n, s: 4 * n * s.width**2 + 2 * n * s.width**2 // s.heads,
        lambda n, s: 4 * n * s.width,
    ),
}


def slope(lengths, values) -> float | None:
    """The exponent of growth between the last two lengths, `None` if one is missing.

    Args:
        lengths: Positions, at least two.
        values: A figure for each length, or `None`.
    """
    if len(lengths) < 2 or not all(values[-2:]) or min(values[-2:]) <= 0:
        return None
    (n, m), (a, b) = lengths[-2:], values[-2:]
    return math.log(b / a) / math.log(m / n)


def series(results: dict, kind: str) -> dict[str, list]:
    """Figures of a kind over the lengths, measured and by formula.

    Args:
        results: What `attention_cost.run` returned.
        kind: A key of `KINDS`.

    Returns:
        The keys "time" (milliseconds), "memory" (MiB), both measured and `None` where
        a measurement failed, "operations" and "numbers", by formula.
    """
    sizes, of_kind = Sizes(**results["sizes"]), KINDS[kind]
    found = [results["kinds"][kind][str(n)] for n in results["lengths"]]
    return {
        "time": [
            1e3 * statistics.median(one["seconds"]) if "seconds" in one else None
            for one in found
        ],
        "memory": [
            one["peak_memory"] / 2**20 if "seconds" in one else None for one in found
        ],
        "operations": [of_kind.operations(n, sizes) for n in results["lengths"]],
        "numbers": [of_kind.memory(n, sizes) for n in results["lengths"]],
    }


def table(results: dict) -> str:
    """Markdown: time and memory at each length, and how they grow at the end.

    Args:
        results: What `attention_cost.run` returned.
    """
    lengths = results["lengths"]
    heading = ["layer", "formula", "figure", *map(str, lengths), "slope", "by formula"]
    rows = []
    for kind in results["kinds"]:
        figures = series(results, kind)
        for name, unit, formula in (
            ("time", "ms", "operations"),
            ("memory", "MiB", "numbers"),
        ):
            cells = [None if x is None else f"{x:.3g}" for x in figures[name]]
            slopes = (slope(lengths, figures[x]) for x in (name, formula))
            growth = [None if x is None else f"{x:.2f}" for x in slopes]
            of_kind = KINDS[kind].formula
            rows.append([kind, of_kind, f"{name} ({unit})", *cells, *growth])
    return markdown(heading, rows)


def plot(results: dict, path: Path):
    """Draws time and memory against the length, both axes logarithmic.

    Lines are measured; the dashed ones beside them grow as the formula says and meet
    them at the greatest length.

    Args:
        results: What `attention_cost.run` returned.
        path: File to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lengths = results["lengths"]
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    drawn = (
        ("time", "operations", "time of a call (ms)"),
        ("memory", "numbers", "peak memory (MiB)"),
    )
    for ax, (name, formula, label) in zip(axes, drawn, strict=True):
        for number, kind in enumerate(results["kinds"]):
            figures, color = series(results, kind), f"C{number}"
            points = [
                (n, y)
                for n, y in zip(lengths, figures[name], strict=True)
                if y and y > 0
            ]
            if not points:
                continue
            ax.plot(*zip(*points, strict=True), "o-", color=color, label=kind)
            last, top = points[-1]
            scale = top / figures[formula][lengths.index(last)]
            ax.plot(lengths, [scale * x for x in figures[formula]], "--", color=color)
        ax.set(xscale="log", yscale="log", xlabel="length n (positions)", ylabel=label)
        ax.set_xticks(lengths, map(str, lengths))
        ax.minorticks_off()
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        title = "lines: measured; dashed: growth by formula"
        place = {"loc": "outside lower center", "ncols": len(handles)}
        figure.legend(handles, labels, title=title, **place)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
