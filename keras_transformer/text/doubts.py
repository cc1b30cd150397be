"""What is doubtful about a translation: it loops, is empty, a copy, likely wrong.

`in_graph.py` and `formats/web_page/doubts.js` find the same. This file needs
Python alone: a LiteRT export has a copy of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

DOUBTS = ("copy", "empty", "loop", "score", "script")
# Words. Of 460,000 pairs of Tatoeba no side loops beside the other.
LONGEST_LOOP = 16
# Each character of Chinese and Japanese is a word.
WIDE = "([\u3040-\u30ff\u3400-\u9fff])"
# Pieces that are no text: special ones, bytes and names of target languages.
NO_TEXT = "^(<.+>|>>.+<<)$"


def doubts_of(
    source: str,
    translation: str,
    is_unlikely: bool = False,
    is_unreadable: bool = False,
) -> tuple[str, ...]:
    """Returns which of `DOUBTS` a sentence's translation deserves.

    It is a copy if it is the source, of more than two words, whatever their case. It
    loops if up to 16 words stand in it three times in a row, and none do in the source.
    `doubt_at` says whether it is unlikely, and `is_foreign` whether it is unreadable.
    """
    words = words_of(translation)
    of_source = words_of(source)
    found = (
        len(of_source) > 2 and source.lower() == translation.lower(),
        bool(of_source) and not words,
        loops(words) and not loops(of_source),
        is_unlikely,
        is_unreadable,
    )
    return tuple(
        doubt for doubt, is_found in zip(DOUBTS, found, strict=True) if is_found
    )


def doubt_at(score: float, steps: Sequence[Sequence[float]] | None) -> float:
    """Returns the share of wrong translations at a score; 0 where nobody knows."""
    if steps is None:
        return 0.0
    return steps[sum(score >= lowest for lowest, _ in steps[1:])][1]


def is_foreign(text: str, pieces: Sequence[str]) -> bool:
    """Returns whether a text has letters, and none of its pieces has one."""
    return has_letters(text) and not any(map(has_letters, pieces))


def has_letters(text: str) -> bool:
    """Returns whether there is a letter in a text or a piece of text."""
    return any(map(str.isalpha, re.sub(NO_TEXT, "", text)))


def faults_of(doubts: Sequence[str]) -> tuple[bool, bool]:
    """Returns what is wrong with a translation, the greater fault first.

    That is to be empty or to loop, and to have lost something ("lost").
    """
    return bool({"empty", "loop"} & {*doubts}), "lost" in doubts


def words_of(text: str) -> list[str]:
    """Returns the words of a text, with their marks."""
    return re.findall("[^ \t\n\v\f\r]+", re.sub(WIDE, r" \1 ", text))


def loops(words: Sequence[str]) -> bool:
    """Returns whether up to 16 words stand three times in a row."""
    for size in range(1, LONGEST_LOOP + 1):
        equal = 0  # words in a row that are those of `size` places before
        for word, before in zip(words[size:], words, strict=False):
            equal = equal + 1 if word == before else 0
            if equal == 2 * size:
                return True
    return False
