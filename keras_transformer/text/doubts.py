"""What is doubtful about a translation: it loops, is empty, a copy, or improbable.

`in_graph.py` and `formats/web_page/doubts.js` find the same. This file needs
Python alone: a LiteRT export has a copy of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

DOUBTS = ("copy", "empty", "loop", "score")
# Words. Of 460,000 pairs of Tatoeba no side loops beside the other.
LONGEST_LOOP = 16
# Each character of Chinese and Japanese is a word.
WIDE = "([\u3040-\u30ff\u3400-\u9fff])"


def doubts_of(
    source: str, translation: str, score: float = 0.0, lowest: float | None = None
) -> tuple[str, ...]:
    """Returns which of `DOUBTS` a sentence's translation deserves.

    It is a copy if it is the source, of more than two words, whatever their case. It
    loops if up to 16 words stand in it three times in a row, and none do in the source.
    Its score is doubtful below `lowest`.
    """
    words = words_of(translation)
    of_source = words_of(source)
    found = (
        len(of_source) > 2 and source.lower() == translation.lower(),
        bool(of_source) and not words,
        loops(words) and not loops(of_source),
        score < (-math.inf if lowest is None else lowest),
    )
    return tuple(
        doubt for doubt, is_found in zip(DOUBTS, found, strict=True) if is_found
    )


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
