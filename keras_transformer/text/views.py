"""Pairs as people write them: in capitals, in title case, without marks, with typos.

Each function returns a view of a pair, always the same one; the pair itself where it
does not apply. A view that changes a pair changes its source.
"""

from __future__ import annotations

import collections
import functools
import random
import re

import numpy as np

from keras_transformer.text.spans import PIECES, hidden_pair

_WORD = re.compile(r"[^\W\d_]{2,}")
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_FIRST_LETTER = re.compile(r"(?<![\w'’])[^\W\d_]")
_NAME = re.compile(r"\b(?:[^\W_]{2,}|\d)\b")
_MARK = re.compile(r"\s*[.!?…。！？]+\s*$")
_END = re.compile(r"\s*[.!?…。！？]*\s*$")
_OPENING_MARK = re.compile(r"[¿¡](?=[^.!?]*$)")  # of the last sentence


def in_capitals(source: str, target: str) -> tuple[str, str]:
    """Returns both sides in capitals; ß becomes SS."""
    if not _has_case(source):
        return source, target
    return source.upper(), target.upper()


def in_title_case(source: str, target: str) -> tuple[str, str]:
    """Returns both sides With A Capital For Each Word."""
    if not _has_case(source):
        return source, target
    return _titled(source), _titled(target)


def without_mark(source: str, target: str) -> tuple[str, str]:
    """Returns both sides without a final mark; every other source begins small.

    The target keeps its first letter, which may be that of a noun or name.
    """
    shown = _unmarked(source)
    other = _unmarked(target)
    if not shown or not other or shown == source or other == target:
        return source, target
    is_word = shown[:1].isupper() and not shown[1:2].isupper()
    if is_word and random.Random(source).random() < 0.5:
        shown = shown[0].lower() + shown[1:]
    return shown, other


def with_typo(source: str, target: str) -> tuple[str, str]:
    """Returns the source with one letter swapped, dropped, doubled or replaced."""
    words = list(_LONG_WORD.finditer(source))
    if not words or not _has_case(source):
        return source, target
    rng = random.Random(source)
    word = rng.choice(words)
    place = rng.randrange(word.start(), word.end() - 1)
    first, second = source[place : place + 2]
    other = rng.choice(rng.choice(words)[0])
    typed = rng.choice([second + first, second, first + first + second, other + second])
    if typed == first + second:  # two equal letters
        typed = first
    return source[:place] + typed + source[place + 2 :], target


def carrying(source: str, target: str) -> tuple[str, str]:
    """Returns pieces of spans for one to three words or numbers that both sides have.

    A pair without one gets a piece at the front or before the final mark.
    """
    if PIECES[0] in source:  # It has spans of its own.
        return source, target
    rng = random.Random(source)
    first, other = (collections.Counter(_NAME.findall(x)) for x in (source, target))
    words = [word for word, times in first.items() if times == other[word] == 1]
    if words:
        chosen = rng.sample(words, min(len(words), rng.randint(1, 3)))
        pieces = dict(zip(sorted(chosen, key=words.index), PIECES, strict=False))
        source, target = (
            _NAME.sub(lambda name: pieces.get(name[0], name[0]), side)
            for side in (source, target)
        )
        return source, target
    if rng.random() < 0.5:
        return f"{PIECES[0]} {source}", f"{PIECES[0]} {target}"
    before = f" {PIECES[0]}\\g<0>"
    return _END.sub(before, source, count=1), _END.sub(before, target, count=1)


# In which form a test set is scored too.
FORMS = {
    "in capitals": in_capitals,
    "in title case": in_title_case,
    "without final mark": without_mark,
    "with a typo": with_typo,
}
# In how many of PERIOD epochs a pair is shown in each view: in capitals, in title case,
# without mark and with a typo as often as in Mozilla's production
# (github.com/mozilla/translations), and with carried spans.
PERIOD = 100
TIMES = (7, 5, 20, 5, 10)


def views_of(source: str, target: str, carries: bool) -> list[tuple[str, str]]:
    """Returns a pair and its views in the order of `TIMES`; empty if there is none.

    If the vocabulary `carries` spans, their pieces stand for them.
    """
    seen = hidden_pair(source, target) if carries else (source, target)
    views = [form(*seen) for form in FORMS.values()]
    views.append(carrying(*seen) if carries else seen)
    return [seen, *(("", "") if view[0] == seen[0] else view for view in views)]


def shown_views(turns: np.ndarray, epoch: int) -> np.ndarray:
    """Returns what pairs are shown as in an epoch: 0 as they are, n in view n.

    Each turn, from 0 to `PERIOD` - 1, has every view in its times of `PERIOD` epochs.
    """
    return _schedule()[(turns + epoch % PERIOD) % PERIOD]


@functools.cache
def _schedule():
    times = [PERIOD - sum(TIMES), *TIMES]
    shown = np.repeat(np.arange(len(times), dtype=np.uint8), times)
    return np.random.default_rng(0).permutation(shown)


def _has_case(text):
    """Returns whether a text has two words and most of its letters have case.

    Letters one by one, digits and names in another script are no such text.
    """
    cased = sum(map(str.isupper, text)) + sum(map(str.islower, text))
    return 2 * cased > sum(map(str.isalpha, text)) and len(_WORD.findall(text)) > 1


def _titled(text):
    return _FIRST_LETTER.sub(lambda letter: letter[0].title(), text)


def _unmarked(text):
    return _OPENING_MARK.sub("", _MARK.sub("", text))
