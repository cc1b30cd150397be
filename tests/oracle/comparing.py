"""Compares two recordings of the oracle, array by array; needs no Keras."""

from __future__ import annotations

import collections
import math
from typing import NamedTuple

import numpy as np

TYPES = ("float32", "bfloat16")
# Relative to the largest number of an array. Sums in another order differ by so much.
TOLERANCES = {
    "float32": {"outputs": 1e-6, "gradients": 2e-6, "updates": 1e-5, "search": 2e-6},
    "bfloat16": dict.fromkeys(("outputs", "gradients", "updates", "search"), 3e-2),
}
# A gradient that is zero but for rounding has no scale of its own: it is compared with
# this share of the largest of its case.
SMALLEST_SCALE = 0.05


class Difference(NamedTuple):
    """The largest differences between arrays; 0 and 0 if they are equal to the bit."""

    absolute: float
    relative: float

    def __str__(self):
        return f"{self.absolute:.0e}/{self.relative:.0e}" if any(self) else "="


def difference(a, b, scale=1.0):
    """Compares two arrays; a NaN or an infinity differs from everything but itself."""
    if a.shape != b.shape:
        return Difference(math.inf, math.inf)
    same = (a == b) | ((a != a) & (b != b))
    if same.all():
        return Difference(0.0, 0.0)
    a, b = a[~same].astype("float64"), b[~same].astype("float64")
    with np.errstate(invalid="ignore"):
        largest = float(np.nan_to_num(np.abs(a - b), nan=np.inf).max())
    return Difference(largest, largest / max(scale, 1e-30))


def worst(*differences):
    """Returns the largest absolute and the largest relative one."""
    return Difference(*map(max, zip(*differences, strict=True)))


def scales(arrays):
    """What the differences of each array are divided by: its largest number.

    For gradients and updates, at least a share of the largest one of their case.
    """
    groups = collections.defaultdict(float)
    sizes = {}
    for key, array in arrays.items():
        if array.dtype.kind in "iufb" and array.size:
            finite = np.abs(np.where(np.isfinite(array), array, 0).astype("float64"))
            sizes[key] = float(finite.max())
            group = key.rpartition("|")[0], kind_of(key)
            groups[group] = max(groups[group], sizes[key])
    for key, size in sizes.items():
        group = key.rpartition("|")[0], kind_of(key)
        sizes[key] = max(size, SMALLEST_SCALE * groups[group])
    return sizes


def kind_of(key):
    """Returns "outputs", "gradients", "updates", "search" or "error"."""
    return key.rpartition("|")[2].partition("/")[0]


def compare(a, b, wanted=lambda key: True):
    """Compares two recordings, arrays by their names.

    Returns the differences by case, column and kind, and sentences about what fails and
    about hypotheses that differ in bfloat16.
    """
    cells, failures, remarks = {}, [], []
    a, b = ({k: v for k, v in x.items() if wanted(k)} for x in (a, b))
    cases = [{key.rpartition("|")[0] for key in recording} for recording in (a, b)]
    left_out = cases[0] ^ cases[1]
    for case in sorted(left_out):
        failures.append(f"{case}: {_only(case in cases[0])}")
    for side, recording in (("first", a), ("second", b)):
        for key in sorted(key for key in recording if kind_of(key) == "error"):
            failures.append(f"{key} in the {side}: {recording[key]}")
            left_out.add(key.rpartition("|")[0])
    sizes = scales(a)
    for key in sorted({*a, *b}):
        case, kind = key.rpartition("|")[0], kind_of(key)
        mode, dtype, name = case.split("|")
        if case in left_out:
            continue
        if key not in a or key not in b:
            failures.append(f"{key}: {_only(key in a)}")
            continue
        found = difference(a[key], b[key], sizes.get(key, 1.0))
        place = name, (mode, dtype), kind
        cells[place] = worst(cells.get(place, found), found)
        if found.relative <= TOLERANCES[dtype][kind]:
            continue
        if kind == "search" and dtype != "float32" and a[key].shape == b[key].shape:
            remarks.append(f"{key}: {found}")
        else:
            failures.append(f"{key}: {found}, shapes {a[key].shape} and {b[key].shape}")
    if not cells:
        failures.append("nothing was compared")
    return cells, failures, remarks


def _only(in_first):
    return f"only in the {'first' if in_first else 'second'}"


def table(cells):
    """The lines of two tables: each case and, over all of them, each kind."""
    columns = sorted(
        {place[1] for place in cells}, key=lambda c: (TYPES.index(c[1]), c)
    )
    widest = max((len(place[0]) for place in cells), default=0)
    heads = [f"{mode} {dtype.replace('float', 'f')}" for mode, dtype in columns]
    lines = []
    for place, title in ((0, "case"), (2, "kind")):
        lines.append("  ".join([title.ljust(widest), *(f"{h:>11}" for h in heads)]))
        for row in sorted({cell[place] for cell in cells}):
            words = []
            for column in columns:
                keys = [c for c in cells if (c[place], c[1]) == (row, column)]
                words.append(str(worst(*(cells[c] for c in keys))) if keys else "")
            lines.append("  ".join([row.ljust(widest), *(f"{w:>11}" for w in words)]))
        lines.append("")
    return lines
