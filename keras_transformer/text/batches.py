"""Groups pairs of ids by length, and pads a group into one batch."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from keras_transformer.text.subwords import END_ID, PAD_ID, START_ID


class Buckets:
    """Length buckets: which pairs may share a batch, and how many.

    A pair belongs to the bucket of its longer side, and a batch of a bucket holds
    about `batch_tokens` tokens, including padding.

    Args:
        max_length: Longest side of a pair (tokens, including the end token).
        batch_tokens: Tokens of a batch on its longer side.
        boundaries: Longest length of each bucket, rising to `max_length`; default
            `bucket_boundaries`.
    """

    def __init__(
        self,
        max_length: int,
        batch_tokens: int,
        boundaries: Sequence[int] | None = None,
    ):
        self.boundaries = list(boundaries or bucket_boundaries(max_length))
        self.sizes = [max(1, batch_tokens // longest) for longest in self.boundaries]

    def of(self, length: int) -> int:
        """Returns the index of the bucket of a side of `length` tokens."""
        return bisect.bisect_left(self.boundaries, length)

    def width(self, length: int) -> int:
        """Returns the width of a padded side whose longest row has `length` tokens."""
        return self.boundaries[self.of(length)]

    def group(self, entries: Iterable, rng=None) -> Iterator[tuple[int, list]]:
        """Groups entries into batches, in the order in which the batches fill up.

        Args:
            entries: Tuples that begin with the index of a bucket.
            rng: NumPy generator that shuffles the batches of leftovers, or `None`.

        Yields:
            The index of the widest bucket in the batch, and the batch's entries.
        """
        open_batches = defaultdict(list)
        sizes = self.sizes
        for entry in entries:
            batch = open_batches[entry[0]]
            batch.append(entry)
            if len(batch) == sizes[entry[0]]:
                yield entry[0], open_batches.pop(entry[0])
        leftovers = list(self._leftovers(open_batches))
        if rng:
            rng.shuffle(leftovers)
        yield from leftovers

    def _leftovers(self, open_batches):
        """Groups the entries of buckets that never filled.

        They join the next longer bucket, so that the epoch ends in a few well-filled
        batches and not in one small batch for each bucket.
        """
        rest = []
        for bucket in sorted(open_batches):
            rest += open_batches[bucket]
            size = self.sizes[bucket]
            while len(rest) >= size:
                yield rest[size - 1][0], rest[:size]
                rest = rest[size:]
        if rest:
            yield rest[-1][0], rest


def bucket_boundaries(max_length: int) -> list[int]:
    """Returns the longest length of each bucket: steps of 4 tokens, then of 20 %.

    Example:
        >>> bucket_boundaries(100)
        [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 56, 64, 76, 88, 100]
    """
    boundaries = [min(4, max_length)]
    while (last := boundaries[-1]) < max_length:
        step = max(4, last // 5 // 4 * 4)
        boundaries.append(min(max_length, last + step))
    return boundaries


def few_boundaries(lengths: np.ndarray, max_length: int, number: int) -> list[int]:
    """Chooses those of `bucket_boundaries` with which the least is padding.

    Args:
        lengths: Length of the longer side of each pair (tokens).
        max_length: As for `bucket_boundaries`.
        number: Buckets that may hold pairs.

    Returns:
        At most `number` boundaries, of which the last is no shorter than any length,
        and `max_length`.

    Example:
        >>> few_boundaries(np.array([3, 3, 3, 9, 30]), max_length=100, number=2)
        [12, 32, 100]
    """
    all_boundaries = bucket_boundaries(max_length)
    used = all_boundaries[: np.searchsorted(all_boundaries, lengths.max()) + 1]
    # Pairs that are no longer than each boundary, and than nothing.
    counts = [0, *np.searchsorted(np.sort(lengths), used, side="right").tolist()]
    # For each number of buckets, the least cost of the pairs up to each boundary, in
    # tokens with padding, and the boundaries that have it.
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
    chosen = best[len(used)][1]
    return chosen if chosen[-1] == max_length else [*chosen, max_length]


def padded_batch(sources, targets, shape) -> tuple:
    """Returns `((source, target_in), target_out)` of some pairs.

    Args:
        sources: Ids of each source, without start and end.
        targets: Ids of each target.
        shape: Rows B, source width S and target width T; if there are fewer than B
            pairs, rows of padding follow.

    Returns:
        int32 arrays [B, S], [B, T] and [B, T].
    """
    size, source_width, target_width = shape
    source = _padded(sources, (size, source_width))
    target_out = _padded(targets, (size, target_width))
    target_in = np.full_like(target_out, PAD_ID)
    target_in[: len(targets), 0] = START_ID
    target_in[:, 1:] = target_out[:, :-1]
    target_in[target_in == END_ID] = PAD_ID
    return (source, target_in), target_out


def _padded(rows, shape):
    """Returns ids of `shape`: each row, the end id, padding; then rows of padding."""
    padded = np.full(shape, PAD_ID, np.int32)
    lengths = np.array([len(row) for row in rows])
    inside = np.arange(shape[1]) < lengths[:, None]
    padded[: len(rows)][inside] = np.concatenate(rows)
    padded[np.arange(len(rows)), lengths] = END_ID
    return padded
