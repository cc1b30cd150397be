"""Pairs of ids grouped by length, and a group as one padded batch."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from keras_transformer.text.tokenizer import END_ID, PAD_ID, START_ID


class Buckets:
    """Length buckets: which pairs may share a batch, and how many.

    A pair belongs to the bucket of its longer side, and a batch of a bucket holds
    about `batch_tokens` tokens, padding counted.

    Args:
        max_length: Longest side of a pair (tokens, the end token counted).
        batch_tokens: Tokens a batch on the longer side.
    """

    def __init__(self, max_length: int, batch_tokens: int):
        self.boundaries = bucket_boundaries(max_length)
        self.sizes = [max(1, batch_tokens // longest) for longest in self.boundaries]

    def of(self, length: int) -> int:
        """Returns the number of the bucket of a side of `length` tokens."""
        return bisect.bisect_left(self.boundaries, length)

    def width(self, length: int) -> int:
        """Returns how wide a batch is whose longest side has `length` tokens."""
        return self.boundaries[self.of(length)]

    def group(self, entries: Iterable, rng=None) -> Iterator[tuple[int, list]]:
        """Groups entries into batches, in the order in which the batches fill up.

        Args:
            entries: Pairs of a bucket's number and anything.
            rng: NumPy generator that shuffles the batches of leftovers, or `None`.

        Yields:
            The number of the widest bucket in the batch, and its entries.
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
        batches and not in one scrap for each bucket.
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


def padded_batch(sources, targets, shape) -> tuple:
    """Returns `((source, target_in), target_out)` of some pairs.

    Args:
        sources: Ids of each source, without start and end.
        targets: Ids of each target.
        shape: Rows B, source width S and target width T; pairs fewer than B are
            followed by rows of padding.

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
