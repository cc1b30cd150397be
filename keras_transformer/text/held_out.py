"""Pairs that are taken out of a training text: for validation, and as a test set."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_transformer.text.pairs import mixed_pairs
from keras_transformer.text.parallel_text import BadLines, Pair, ParallelText

# The default number for validation is a hundredth of the groups, within these bounds.
_FEWEST, _MOST = 50, 2000
_FEWEST_GROUPS = 500  # of which it takes a tenth


class Split(NamedTuple):
    """A text in parts: no sentence of one stands in another, on either side."""

    training: ParallelText
    validation: ParallelText | None = None
    test: ParallelText | None = None
    num_others: int = 0  # pairs that are left out, since they share a sentence


def split(text: ParallelText, validation: int | None = None, test: int = 0) -> Split:
    """Takes pairs for validation and a test set out of a text.

    Pairs that share a sentence, directly or through others, are a group. A set has one
    pair of each of its groups, at random. Which groups is told by a digest of their
    sentences, so the same pairs make the same sets, whatever their order and files.

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
    if validation == test == 0:
        return Split(text)
    digests = [_digests(part) for part, _ in text.parts]
    ends = np.cumsum([len(part) for part in digests])
    digests = np.concatenate(digests)
    groups = _groups(digests)
    # The first pair of each group, by its sentences: that which may be held out.
    order = np.lexsort((digests[:, 1], digests[:, 0], groups))
    _, places, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    # The rest of a group is lost, so that of a large one stays in the training.
    firsts = order[places][sizes <= max(10, len(digests) // 100)]
    if validation is None:
        share = min(max(_FEWEST, len(firsts) // 100), _MOST)
        validation = share if len(firsts) >= _FEWEST_GROUPS else 0
    number = validation + test
    if not number:
        return Split(text)
    if 2 * number > len(firsts):
        raise ValueError(
            "`hold_out` and `test_size` must leave half of the text for training, "
            f"which has {len(firsts):,} groups of pairs without a common sentence. "
            f"Received: hold_out={validation}, test_size={test}"
        )
    firsts = firsts[np.argsort(digests[firsts].sum(axis=1))]  # modulo 2^64
    # Each has an end of this order, so that neither number changes the other's pairs.
    chosen = [*firsts[:validation], *firsts[len(firsts) - test :]]
    is_kept = ~np.isin(groups, groups[chosen])
    rests = zip(text.parts, np.split(is_kept, ends[:-1]), strict=True)
    wanted = set(chosen)
    pairs = itertools.chain(*(_good_pairs(part) for part, _ in text.parts))
    found = {place: pair for place, pair in enumerate(pairs) if place in wanted}
    held_out = [found[place][1:] for place in chosen]
    return Split(
        training=mixed_pairs((_Rest(part, own), times) for (part, times), own in rests),
        validation=_held_out(held_out[:validation], text.files),
        test=_held_out(held_out[validation:], text.files),
        num_others=int((~is_kept).sum()) - number,
    )


class _Rest(ParallelText):
    """A text without some of its good pairs."""

    def __init__(self, text: ParallelText, is_kept: np.ndarray):
        super().__init__(list, text.files)
        self._text = text
        self._is_kept = is_kept.tobytes()
        self.origin = text.origin
        self.place = text.place
        self.count = text.count

    def fingerprint(self) -> str:
        known = self._text.fingerprint().encode() + self._is_kept
        return hashlib.blake2b(known, digest_size=16).hexdigest()

    def pairs(self, bad_lines: BadLines | None = None) -> Iterator[Pair]:
        # The text is read to its end, where it tells whether it has changed.
        is_kept = itertools.chain(self._is_kept, itertools.repeat(True))
        return itertools.compress(self._text.pairs(bad_lines), is_kept)


def _held_out(pairs, files):
    """Returns pairs as a text, or `None` if there are none."""
    place = "pair {line} held out of {path}"
    return ParallelText(lambda: enumerate(pairs, 1), files, place) if pairs else None


def _good_pairs(text):
    return text.pairs(BadLines(1.0))


def _digests(text):
    """Returns a number for each sentence of a text: an array of pairs."""
    both = array("Q")
    for pair in _good_pairs(text):
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
