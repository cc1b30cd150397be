"""Several corpora as one, such as general pairs and those of a domain."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_transformer.text.parallel_text import BadLines, Pair, ParallelText
from keras_transformer.text.sources import open_pairs


class MixedPairs(ParallelText):
    """Corpora of which an epoch has each pair as often as its corpus' weight says.

    The pairs of each are spread evenly over the whole, so that also a part of it, such
    as the pairs that a `Corpus` shuffles at a time, has the mix. The order is always
    the same.

    Args:
        parts: The corpora.
        weights: For each, how many times an epoch has its pairs.

    Attributes:
        weights: Their weights.
    """

    def __init__(self, parts: list[ParallelText], weights: list[int]):
        self._parts = parts
        self.weights = weights
        self._counts: list[int] | None = None

    @property
    def parts(self):
        return self._parts

    def count(self):
        return sum(self._counted())

    def _counted(self):
        """The lines of an epoch from each corpus."""
        if self._counts is None:
            parts = zip(self._parts, self.weights, strict=True)
            self._counts = [weight * part.count() for part, weight in parts]
        return self._counts

    def part_of(self, line):
        return self._place(line)[0]

    def _place(self, line):
        """The number of a line's corpus, and its number there."""
        return line % len(self._parts), line // len(self._parts)

    def place(self, line, side):
        number, line = self._place(line)
        return self._named(number)(self._parts[number].place(line, side))

    def _named(self, number):
        """Returns the function from a place in a corpus to one in the mix."""
        if self._parts[number].files():
            return lambda place: place
        return lambda place: f"{place} of corpus {number + 1}"

    def files(self) -> list[Path]:
        return [path for part in self._parts for path in part.files()]

    def fingerprint(self):
        mixed = [
            (part.fingerprint(), weight)
            for part, weight in zip(self._parts, self.weights, strict=True)
        ]
        return hashlib.blake2b(json.dumps(mixed).encode(), digest_size=16).hexdigest()

    def pairs(self, bad_lines: BadLines | None = None) -> Iterator[Pair]:
        bad_lines = BadLines(0) if bad_lines is None else bad_lines
        streams = (
            self._spread(number, count, bad_lines)
            for number, count in enumerate(self._counted())
        )
        # Of equal places the earlier corpus comes first.
        for _, pair in heapq.merge(*streams, key=lambda entry: entry[0]):
            yield pair

    def _spread(self, number, count, bad_lines):
        """Yields the pairs of a corpus, each with its place in the whole, 0 to 1."""
        named, seen = _NamedLines(bad_lines, self._named(number)), 0
        for _ in range(self.weights[number]):
            for pair in self._parts[number].pairs(named):
                line = pair.line * len(self._parts) + number
                yield (seen + 0.5) / count, pair._replace(line=line)
                seen += 1


class _NamedLines:
    """Counts bad lines of one corpus in the `BadLines` of all."""

    def __init__(self, bad_lines, named):
        self._bad_lines, self._named = bad_lines, named

    def add(self, place, reason):
        self._bad_lines.add(self._named(place), reason)


def mixed_pairs(parts: Iterable[tuple[Any, int]]) -> ParallelText:
    """Mixes corpora, such as much general text and a little of a domain.

    In each epoch a pair of a corpus with the weight 4 comes four times, shuffled among
    the others. A bad line is counted once.

    Args:
        parts: For each corpus its pairs, as `open_pairs` returns or takes them, and its
            weight, an integer of at least 1.

    Returns:
        A `ParallelText`, to be used as any other.

    Raises:
        TypeError: If something else is given, or holds no pairs.
        ValueError: If there is no corpus, a weight is less than 1, or a corpus is
            itself a mix.

    Example:
        >>> general, domain = open_pairs("news.tsv"), open_pairs("manuals.tsv")
        >>> train(mixed_pairs([(general, 1), (domain, 4)]), "runs/manuals")
    """
    parts = [_checked(part) for part in parts]
    if not parts:
        raise ValueError("`parts` must have at least one corpus. Received: none")
    return MixedPairs([open_pairs(pairs) for pairs, _ in parts], [w for _, w in parts])


def _checked(part):
    """Returns the pairs and the weight of a corpus, or says what they must be."""
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        raise TypeError(
            "`parts` must be (pairs, weight), one for each corpus. Received: "
            f"{part!r:.100}"
        )
    pairs, weight = part
    if isinstance(weight, bool) or not isinstance(weight, int):
        raise TypeError(
            "A weight must be an integer, how many times an epoch has the pairs. "
            f"Received: {weight!r:.100}"
        )
    if weight < 1:
        raise ValueError(f"A weight must be at least 1. Received: {weight}")
    if isinstance(pairs, MixedPairs):
        raise ValueError("A mix cannot be mixed again: give its parts. Received: one")
    return pairs, weight
