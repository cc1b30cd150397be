"""Pairs that are taken out of a training text: for validation, and as a test set."""

from __future__ import annotations

import hashlib
import json
import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_transformer.text.pairs import BadLines, Pair, ParallelText, mixed_pairs

# The default number for validation is a hundredth of the groups, within these bounds.
_FEWEST, _MOST = 50, 2000
_FEWEST_GROUPS = 500  # of which it takes a tenth
_TRAINING, _VALIDATION, _TEST, _NONE = range(4)


class Split(NamedTuple):
    """A text in parts: no sentence of one set stands in another, on either side."""

    training: ParallelText
    validation: ParallelText | None
    test: ParallelText | None
    num_others: int  # pairs in no set, which share a sentence with one held out


def split(text: ParallelText, validation: int | None = None, test: int = 0) -> Split:
    """Takes pairs for validation and a test set out of a text.

    Pairs that share a sentence, directly or through others, are a group. A set has one
    pair of each of its groups. Which groups is told by a digest of their sentences, so
    the same pairs make the same sets, whatever their order and their files.

    Args:
        text: The pairs. A mix keeps the weights of its corpora for training; pairs
            that are held out occur once.
        validation: Pairs for validation; default a hundredth of the groups, from 50 to
            2000, and none of fewer than 500 groups.
        test: Pairs of the test set.

    Raises:
        ValueError: If more than half of the groups would be taken. It also raises what
            reading the text does.
    """
    whole = Split(training=text, validation=None, test=None, num_others=0)
    if validation == test == 0:
        return whole
    parts = [_digests(part) for part, _ in text.parts]
    digests = np.concatenate(parts)
    groups = _groups(digests)
    # The first pair of each group, by its sentences: that which may be held out.
    order = np.lexsort((digests[:, 1], digests[:, 0], groups))
    _, places, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    firsts = order[places]
    # The rest of a group is lost, so that of a large one stays in the training.
    firsts = firsts[sizes <= max(10, len(digests) // 100)]
    if validation is None:
        share = min(max(_FEWEST, len(firsts) // 100), _MOST)
        validation = share if len(firsts) >= _FEWEST_GROUPS else 0
    if not validation + test:
        return whole
    if 2 * (validation + test) > len(firsts):
        raise ValueError(
            "`hold_out` and `test_size` must leave half of the text for training, "
            f"which has {len(firsts):,} groups of pairs without a common sentence. "
            f"Received: hold_out={validation}, test_size={test}"
        )
    firsts = firsts[np.argsort(digests[firsts].sum(axis=1))]  # modulo 2^64
    # Each has an end of this order, so that neither number changes the other's pairs.
    chosen = {
        _VALIDATION: firsts[:validation],
        _TEST: firsts[len(firsts) - test :],
    }
    sets = np.full(len(digests), _TRAINING, np.uint8)
    for places in chosen.values():
        sets[np.isin(groups, groups[places])] = _NONE
    for number, places in chosen.items():
        sets[places] = number
    of_parts = np.split(sets, np.cumsum([len(part) for part in parts])[:-1])

    def text_of(number):
        pieces = zip(text.parts, of_parts, strict=True)
        views = [(_View(part, own, number), weight) for (part, weight), own in pieces]
        if number != _TRAINING:
            views = [(view, 1) for view, _ in views if view.size]
        return views[0][0] if [w for _, w in views] == [1] else mixed_pairs(views)

    return Split(
        training=text_of(_TRAINING),
        validation=text_of(_VALIDATION) if validation else None,
        test=text_of(_TEST) if test else None,
        num_others=int((sets == _NONE).sum()),
    )


class _View(ParallelText):
    """The good pairs of a text that are in one of the sets."""

    def __init__(self, text: ParallelText, sets: np.ndarray, number: int):
        super().__init__(list, text.files)
        self._text = text
        self._sets = sets
        self._number = number
        self.size = int((sets == number).sum())
        self.origin = text.origin
        self.place = text.place

    def count(self) -> int:
        return self._text.count() if self._number == _TRAINING else self.size

    def fingerprint(self) -> str:
        sets = hashlib.blake2b(self._sets.tobytes()).hexdigest()
        known = json.dumps([self._text.fingerprint(), sets, self._number])
        return hashlib.blake2b(known.encode(), digest_size=16).hexdigest()

    def pairs(self, bad_lines: BadLines | None = None) -> Iterator[Pair]:
        if self._number != _TRAINING:
            bad_lines = BadLines(math.inf)  # The training counts them.
        good = self._text.pairs(bad_lines)
        for number, pair in zip(self._sets.tobytes(), good, strict=True):
            if number == self._number:
                yield pair


def _digests(text):
    """Returns a number for each sentence of a text: an array of pairs."""
    both = array("Q")
    for pair in text.pairs(BadLines(math.inf)):
        both.extend(map(_digest, pair[1:]))
    return np.array(both, np.uint64).reshape(-1, 2)


def _digest(sentence):
    """Returns a number for a sentence, whatever its case and its spaces."""
    words = " ".join(sentence.casefold().split()).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest())


def _groups(digests):
    """Returns a number for each pair, the same for pairs that share a sentence."""
    sides = [np.unique(side, return_inverse=True)[1] for side in digests.T]
    groups = np.arange(len(digests))
    while True:
        before = groups
        for side in sides:
            least = np.full(len(groups), len(groups))
            np.minimum.at(least, side, groups)
            groups = least[side]
        if np.array_equal(groups, before):
            return groups
