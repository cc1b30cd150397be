"""Pairs as people write them: in capitals, in title case, without marks, with typos.

A function of source and target returns one view of a pair, always the same; the pair
itself where it does not apply.
"""

from __future__ import annotations

import collections
import functools
import random
import re
from collections.abc import Iterator

import numpy as np

from keras_transformer.text.doubts import WIDE
from keras_transformer.text.sentences import GLUE
from keras_transformer.text.spans import PIECES, hidden_pair

# Two words in letters with case (Latin, Greek, Cyrillic) begin a text. Single letters,
# digits or one word may be none, and Chinese with a name in it has no case.
_CASED = re.compile(r"[\W\d_]*[A-Za-zÀ-ԯḀ-῾]+[\W\d_]+[A-Za-zÀ-ԯḀ-῾]{2}")
_FIRST_LETTER = re.compile(r"(?<![\w'’])[^\W\d_]")
# Two different letters within a word.
_INSIDE = re.compile(r"(?<=[^\W\d_])([^\W\d_])(?!\1)([^\W\d_])(?=[^\W\d_])")
_NAME = re.compile(r"\b(?:[^\W_]{2,}|\d)\b")
# A final mark, and the one that opens its sentence.
_MARKS = re.compile(
    r"[¿¡](?=[^.!?¿¡]*[.!?]+\s*$)|(?<=[^\s.!?…。！？])\s*[.!?…。！？]+\s*$"
)
# The end of a text, before its mark.
_END = re.compile(r"(?<![\s.!?…。！？])\s*[.!?…。！？]*\s*$")
_NO_SPACE = re.compile(f"(?<={WIDE}){GLUE}|{GLUE}(?={WIDE})")


def _in_case(change, source, target):
    """Returns both sides in another case, if the source has case."""
    if not _CASED.match(source):
        return source, target
    return change(source), change(target)


def _titled(text):
    """Returns a text With A Capital For Each Word."""
    return _FIRST_LETTER.sub(lambda letter: letter[0].title(), text)


def _without_mark(source, target):
    """Returns both sides without a final mark; every other source begins small.

    The target keeps its first letter, which may be that of a noun or name.
    """
    shown = _MARKS.sub("", source)
    if shown == source:
        return source, target
    if len(source) % 2 == 0 and not shown[1:2].isupper():
        shown = shown[:1].lower() + shown[1:]
    return shown, _MARKS.sub("", target)


def _with_typo(source, target):
    """Returns the source with one letter swapped, dropped, doubled or replaced."""
    places = list(_INSIDE.finditer(source))
    if not places or not _CASED.match(source):
        return source, target
    rng = random.Random(source)
    place = rng.choice(places)
    first, second = place.groups()
    other = rng.choice(places)[1]
    typed = rng.choice([second + first, second, first + place[0], other + second])
    return source[: place.start()] + typed + source[place.end() :], target


def _carrying(source, target):
    """Returns pieces of spans for one to three words or numbers that both sides have.

    A word may stay, between two pieces, as between tags. Others are at the front and
    before the final mark, always if no word is common. A space stands beside a piece
    where translation puts one: not in a script that writes none.
    """
    if PIECES[0] in source:  # It has spans of its own.
        return source, target
    rng = random.Random(source)
    names = collections.Counter(_NAME.findall(source))
    others = collections.Counter(_NAME.findall(target))
    words = [word for word in names if names[word] == others[word] == 1]
    start = rng.randrange(max(1, len(words)))
    pieces = iter(PIECES)
    front = next(pieces) + GLUE if rng.random() < 0.5 else ""
    shown = {}
    for word in words[start : start + rng.randint(1, 3)]:
        shown[word] = next(pieces)
        if rng.random() < 0.4:
            shown[word] += GLUE + word + GLUE + next(pieces)
    is_last = rng.random() < 0.5 or not (front or shown)
    end = f"{GLUE}{next(pieces)}\\g<0>" if is_last else r"\g<0>"

    def carried(text):
        text = _NAME.sub(lambda name: shown.get(name[0], name[0]), text)
        text = _END.sub(end, front + text, count=1)
        return _NO_SPACE.sub("", text).replace(GLUE, " ")

    return carried(source), carried(target)


# In which form a test set is scored too.
FORMS = {
    "in capitals": functools.partial(_in_case, str.upper),  # ß becomes SS.
    "in title case": functools.partial(_in_case, _titled),
    "without final mark": _without_mark,
    "with a typo": _with_typo,
}
# What a pair is shown as in each of PERIOD epochs: 0 as it is, n in view n. The `FORMS`
# are seen a quarter to a half as often as in Mozilla's production
# (github.com/mozilla/translations), whose shares cost 0.65 BLEU on Multi30k.
_TIMES = (84, 3, 2, 5, 2, 4)
NUM_VIEWS = len(_TIMES)
SCHEDULE = np.random.default_rng(0).permutation(np.repeat(range(NUM_VIEWS), _TIMES))
PERIOD = len(SCHEDULE)


def views_of(source: str, target: str, carries: bool) -> Iterator[tuple[str, str]]:
    """Yields a pair and its views, in the order of `SCHEDULE`.

    If the vocabulary `carries` spans, their pieces stand for them.
    """
    pair = hidden_pair(source, target) if carries else (source, target)
    yield pair
    for form in FORMS.values():
        yield form(*pair)
    yield _carrying(*pair) if carries else pair
