"""Pairs that are taken out of a training text: for validation, and as a test set."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from typing import NamedTuple

import numpy as np

from keras_transformer.text.parallel_text import Mix, ParallelText, checked

# The default number for validation is a hundredth of the pairs that may be held out,
# within these bounds, and at most a tenth.
_FEWEST, _MOST = 50, 2000
_FEWEST_PAIRS = 100
# A sentence of more pairs stays in the training, because the others would be lost.
_MOST_COMMON = 10


class Split(NamedTuple):
    """A text in parts: no sentence of one stands in another, on either side."""

    training: ParallelText
    validation: ParallelText | None = None
    test: ParallelText | None = None
    num_others: int = 0  # pairs that are left out, since they share a sentence


def split(text: ParallelText, validation: int | None = None, test: int = 0) -> Split:
    """Takes pairs for validation and a test set out of a text.

    Of the pairs with one sentence, the first by a digest may be held out; the others
    are then left out. So the same pairs make the same sets, whatever their order and
    files.

    Args:
        text: The pairs. A mix keeps the weights of its corpora for training; pairs
            that are held out occur once.
        validation: Pairs for validation; default a hundredth of those that may be held
            out, from 50 to 2,000; a tenth of fewer than 500, and none of fewer than
            100.
        test: Pairs of the test set.

    Raises:
        ValueError: If more than half of these pairs would be taken. It also raises what
            reading the text does.
    """
    if validation == test == 0:
        return Split(text)
    parts = [_digests(part) for part, _ in text.parts]
    digests = np.concatenate(parts)
    good = np.flatnonzero(digests.all(axis=1))
    order = good[np.lexsort((digests[good, 0], digests[good].sum(axis=1)))]
    firsts = np.arange(len(order))
    for sentences in digests[order].T:
        _, places, counts = np.unique(sentences, return_index=True, return_counts=True)
        firsts = np.intersect1d(firsts, places[counts <= _MOST_COMMON])
    firsts = order[firsts]
    if validation is None:
        share = min(max(_FEWEST, len(firsts) // 100), len(firsts) // 10, _MOST)
        validation = share if len(firsts) >= _FEWEST_PAIRS else 0
    number = validation + test
    if not number:
        return Split(text)
    if 2 * number > len(firsts):
        raise ValueError(
            "`hold_out` and `test_size` must leave half of the text for training, "
            f"which has {len(firsts):,} pairs without a common sentence. "
            f"Received: hold_out={validation}, test_size={test}"
        )
    # Each has an end of this order, so that neither number changes the other's pairs.
    chosen = [*firsts[:validation], *firsts[len(firsts) - test :]]
    shares = [np.isin(side, side[chosen]) for side in digests.T]
    is_kept = ~np.any(shares, axis=0)
    masks = np.split(is_kept, np.cumsum([*map(len, parts)])[:-1])
    rests = [
        (_rest(part, mask.tobytes()), weight)
        for (part, weight), mask in zip(text.parts, masks, strict=True)
    ]
    wanted = set(chosen)
    rows = itertools.chain(*(part.rows() for part, _ in text.parts))
    found = {
        place: checked(fields)[0]
        for place, (_, fields) in enumerate(rows)
        if place in wanted
    }
    held_out = [found[place] for place in chosen]
    return Split(
        training=Mix(rests, text.cleaning),
        validation=_held_out(held_out[:validation], text.files),
        test=_held_out(held_out[validation:], text.files),
        num_others=int(np.sum(~is_kept)) - number,
    )


def _rest(text, is_kept):
    """Returns a text without some of its lines."""

    def rows():
        # The text is read to its end, where it tells whether it has changed.
        selectors = itertools.chain(is_kept, itertools.repeat(True))
        return itertools.compress(text.rows(), selectors)

    return text.with_rows(rows, left_out=is_kept.count(0))


def _held_out(pairs, files):
    """Returns pairs as a text, or `None` if there are none."""
    place = "pair {line} held out of {path}"
    return ParallelText(lambda: enumerate(pairs, 1), files, place) if pairs else None


def _digests(text):
    """Returns a number for each sentence of a text, an array of pairs; 0 in bad lines.

    It does not depend on a sentence's case and spaces.
    """
    both = array("Q")
    for _, fields in text.rows():
        texts, problems = checked(fields)
        both.extend([0, 0] if any(problems) else map(_digest, texts))
    return np.array(both, np.uint64).reshape(-1, 2)


def _digest(sentence):
    words = " ".join(sentence.casefold().split()).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest())
