"""Which pairs are in a wrong language, learned from the pairs themselves.

Trigrams of characters tell the languages of the two sides apart. A third language is a
group of texts whose trigrams are likelier within the group than outside it.
"""

from __future__ import annotations

import re

import numpy as np

_WORD = re.compile(r"[^\W\d_]+")
_LONGEST = 1000  # Characters of a text that are looked at.
_TABLE = 1 << 16  # Numbers of trigrams.
_FACTORS = np.array([0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35], np.uint32)
# Pairs that are learned from, and the share of them whose sides are in two languages.
_FEWEST = 50
_TWO = 0.7
# Evidence is in nats: the logarithm of how much likelier one language is than another.
_SWAPPED = 4.0  # Of each side that it is in the language of the other.
_UNTRANSLATED = 30.0
_THIRD = 10.0
_CLEAR = 0.7  # For each trigram of a text.
# Trigrams and words, names not counted, of a text that may be in a third language.
_SHORT = 12
_FEW_WORDS = 3
# The search for a third language begins with this share: what is least like the others.
_FIRST = 0.003
_ROUNDS = 8
_JOINS = 0.2  # For each trigram of a text that joins the group in a round.
# The group is a language, and no topic, if nearly all texts with any evidence have
# clear evidence. Where more pairs than this share are in it, somebody meant it.
_NEARLY_ALL = 0.8
_FEWEST_THIRD = 10
_MOST_THIRD = 0.1


class Languages:
    """The languages of the two sides, and a third one on each if there is one.

    Args:
        pairs: Some of the pairs.

    Attributes:
        are_two: Whether most pairs are in two languages.
    """

    def __init__(self, pairs):
        self.are_two = False
        if len(pairs) < _FEWEST:
            return
        sides = _sides(pairs)
        self._table = _evidence(*(side.counts() for side in sides))
        own, lengths = self._own(sides)
        means = (own / lengths)[:, lengths.min(axis=0) >= _SHORT]
        differing = np.sum((means > 0).all(axis=0))
        self.are_two = differing >= max(_FEWEST, _TWO * means.shape[1])
        if self.are_two:
            self._thirds = [_third(side, _are_sentences(sides)) for side in sides]

    def wrong(self, pairs):
        """Returns which pairs are swapped, and which have a side in another language.

        Nothing is wrong unless `are_two`.
        """
        if not self.are_two:
            return np.zeros((2, len(pairs)), bool)
        sides = _sides(pairs)
        own, lengths = self._own(sides)
        swapped = (own < -_SWAPPED).all(axis=0)
        third = np.array([*map(_Side.sums, sides, self._thirds)])
        is_third = _is_clear(third, lengths) & _are_sentences(sides)
        other = is_third | (own < -_UNTRANSLATED)
        return swapped, other.any(axis=0) & ~swapped

    def _own(self, sides):
        """Returns the evidence for the language of a text's own side, and lengths."""
        source, target = (side.sums(self._table) for side in sides)
        return np.array([source, -target]), np.array([side.lengths for side in sides])


class _Side:
    """The trigrams of some texts, numbered, and which text each belongs to."""

    def __init__(self, texts):
        lines = "".join(f"\n {' '.join(words)} " for words in texts).lower()
        codes = np.frombuffer(lines.encode("utf-32-le"), np.uint32)
        # Spaces separate the texts, so that no trigram has letters of two of them.
        numbers = codes[:-2] * _FACTORS[0] + codes[1:-1] * _FACTORS[1]
        self.trigrams = (numbers + codes[2:] * _FACTORS[2]) >> np.uint32(16)
        self.texts = (np.cumsum(codes == ord("\n")) - 1)[:-2]
        self.lengths = np.bincount(self.texts)
        self.words = np.array([sum(map(str.islower, words)) for words in texts])

    def sums(self, table):
        """Returns the sum of the values that a table has for the trigrams of a text."""
        return np.bincount(self.texts, table[self.trigrams])

    def counts(self, which=slice(None)):
        """Returns how often the trigrams of the texts, or of some of them, occur."""
        return np.bincount(self.trigrams[which], minlength=_TABLE)


def _sides(pairs):
    """Returns the two sides, without the words that are on both sides of a pair."""
    sides = [], []
    for pair in pairs:
        words = [_WORD.findall(text[:_LONGEST]) for text in pair]
        shared = set(words[0]) & set(words[1])
        for side, own in zip(sides, words, strict=True):
            side.append([word for word in own if word not in shared])
    return [*map(_Side, sides)]


def _are_sentences(sides):
    long = [(x.words >= _FEW_WORDS) & (x.lengths >= _SHORT) for x in sides]
    return np.all(long, axis=0)


def _evidence(one, other):
    """Returns the evidence of each trigram for the first of two languages.

    A text that was counted must not speak for itself, so that counts are one less.
    """
    seen = (one > 0) | (other > 0)
    smooth = [np.maximum(counts - 1, 0) + 0.5 for counts in (one, other)]
    logs = [np.log(counts / np.sum(counts[seen])) for counts in smooth]
    return np.where(seen, logs[0] - logs[1], 0.0)


def _third(side, may):
    """Returns the evidence for a third language; zeros if there is none."""
    counts = side.counts()
    likely = side.sums(np.log(np.maximum(counts - 1, 0) + 0.5)) / side.lengths
    ranks = np.argsort(np.argsort(np.where(may, likely, np.inf)))
    group = ranks <= _FIRST * np.sum(may)
    for _ in range(_ROUNDS):
        inside = side.counts(group[side.texts])
        table = _evidence(inside, counts - inside)
        sums = side.sums(table)
        group = may & (sums > _JOINS * side.lengths)
    clear = np.sum(may & _is_clear(sums, side.lengths))
    is_language = clear > _NEARLY_ALL * np.sum(may & (sums > 0))
    is_fault = _FEWEST_THIRD <= clear <= _MOST_THIRD * len(may)
    return table * (is_language & is_fault)


def _is_clear(evidence, lengths):
    return evidence > np.maximum(_THIRD, _CLEAR * lengths)
