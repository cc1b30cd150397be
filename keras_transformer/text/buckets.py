"""Lengths that batches are padded to."""

from __future__ import annotations

import numpy as np


def check_boundaries(boundaries: list[int], longest: int):
    """Raises `ValueError` unless boundaries ascend from 1 to at least `longest`."""
    steps = [0, *boundaries]
    if steps != sorted({*steps}) or steps[-1] < longest:
        raise ValueError(
            "`boundaries` must ascend from 1 and end at the longest pair or beyond, "
            f"which has {longest} tokens: give those of a corpus with the same "
            "`max_length`, or leave out longer pairs with a lower `max_length`. "
            f"Received: boundaries={boundaries}"
        )


def bucket_boundaries(max_length: int) -> list[int]:
    """Returns the longest length of each bucket: steps of 4 tokens, then of 20 %."""
    boundaries = [min(4, max_length)]
    while (last := boundaries[-1]) < max_length:
        step = max(4, last // 5 // 4 * 4)
        boundaries.append(min(max_length, last + step))
    return boundaries


def few_boundaries(
    lengths: np.ndarray, boundaries: list[int], number: int
) -> list[int]:
    """Returns the `number` boundaries with the least padding, and the last of all."""
    used = boundaries[: np.searchsorted(boundaries, lengths.max()) + 1]
    # Number of pairs up to each boundary, after a 0.
    counts = [0, *np.searchsorted(np.sort(lengths), used, side="right").tolist()]
    # Dynamic programming over the number of buckets: the least cost of the pairs up to
    # each boundary, in tokens with padding, and the boundaries that cost it.
    best = {0: (0, [])}
    for _ in range(min(number, len(used))):
        best = {0: (0, [])} | {
            end: min(
                (cost + (counts[end] - counts[start]) * longest, [*chosen, longest])
                for start, (cost, chosen) in best.items()
                if start < end
            )
            for end, longest in enumerate(used, 1)
        }
    return sorted({*best[len(used)][1], boundaries[-1]})
