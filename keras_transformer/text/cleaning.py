"""Leaves out what is certainly wrong in training pairs, and says what it was.

A pair is left out where nobody who looked at it would keep it: a doubtful one stays.
One reading judges all pairs, in 27 bytes of memory for each; the next ones go by that.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import html
import itertools
import re
import unicodedata
import zlib
from html.entities import html5
from typing import Any

import numpy as np

from keras_transformer.config.run_config import CLEANING, cleaning_rules
from keras_transformer.text.pairs import open_pairs
from keras_transformer.text.parallel_text import Mix, ParallelText, checked

_EXAMPLES = 3
# The last rule that a pair breaks: a place in this.
_RULES = ("", *CLEANING)
_MENDED = _RULES.index("entities")
_BAD = 255  # A bad line: it is reported where it is read.
# What is kept of a pair: the rule that it breaks, a digest, the length (characters) and
# the script of each side, the share of common words, and whether it was not translated.
_PAIR = np.dtype("u1, u8, 2u4, 2u4, f4, ?")
_PAIR.names = ("rule", "digest", "lengths", "scripts", "likeness", "same")

# Or a character of Windows-1252 that was read as Latin-1, such as a quotation mark.
_ENTITY = re.compile(r"&(#\d+|#[xX][\da-fA-F]+|\w+);|[\x80-\x9f]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# UTF-8 read as Windows-1252. A capital may precede a closing mark, a dash or the sign
# of a brand, so that these are no evidence.
_SIGNS = "¡¢£¤¥¦§¨©ª¬\xad¯±´µ¶·¸¹º¼½¾¿€‚ƒ„†‡ˆ‰Š‹ŒŽ•˜š›œžŸ"
_MOJIBAKE = re.compile(
    f"\ufffd|â€|Ä™|Ã[²³]|Â[{_SIGNS}®™°²³]|[ÃÄÅÐÑ][{_SIGNS}]|[à-ï][{_SIGNS}]{{2}}"
)
_WORD = re.compile(r"[^\W\d_]{2,}")
_ADDRESS = re.compile("[!-~]{25,}")  # Or a line of dashes: a word of any length.

# Untranslated texts are left out where they are more than this share of the pairs, and
# this share has less than half its words in common: the languages are two.
_MOST_SAME = 0.01
_FEW_SAME = 10
_UNLIKE = 0.7
# A script that this share of the texts has is that of the language.
_ONE_SCRIPT = 0.98
# Names are written in Latin letters everywhere: only long texts of nothing else count.
_LONG_LATIN = 20
_LONG_OTHER = 5
_LATIN = zlib.crc32(b"LATIN")
# Sides are out of proportion from this many characters, this factor beside the median
# of all pairs, and this many times the deviation of most pairs.
_LONG = 60
_FACTOR = 6.0
_DEVIATIONS = 6.0


class Cleaning:
    """The lines that were judged, and what each rule found: a count and examples."""

    def __init__(self):
        self.lines = 0
        self.counts = collections.Counter()
        self.examples: dict[str, list[str]] = collections.defaultdict(list)

    def add(self, rule: str, place: str, texts: list[str]):
        """Counts a pair that breaks a rule."""
        self.counts[rule] += 1
        if self.counts[rule] <= _EXAMPLES:
            source, target = (" ".join(text.split()) for text in texts)
            self.examples[rule].append(f"{place}: {source:.30} -> {target:.30}")

    def __str__(self):
        if not self.counts:
            return ""
        mended = self.counts["entities"]
        left_out = self.counts.total() - mended
        rows = [f"cleaning left out {left_out:,} of {self.lines:,} lines:"]
        for rule in sorted(self.counts, key=lambda rule: rule == "entities"):
            if rule == "entities":
                rows.append(f"and mended {mended:,}:")
            rows.append(f"{self.counts[rule]:9,} {rule}: {CLEANING[rule]}")
            rows += [f"{'':10}{example}" for example in self.examples[rule]]
        return "\n".join([*rows, "  --keep and a rule's name keeps what it found"])


def clean_pairs(text: Any, keep: str | None = None) -> ParallelText:
    """Leaves out the pairs that are certainly wrong, and decodes HTML's entities.

    `train` does it with its training pairs. The rules judge each corpus by itself, by
    what most of its pairs are like. A bad line stays, to be reported when it is read.

    Args:
        text: Pairs, as `open_pairs` returns or takes them.
        keep: What to keep in spite of its rule, separated by commas: {rules}; or "all".

    Returns:
        A `ParallelText` of the other pairs. Its `cleaning` says what was found.

    Raises:
        ValueError: If `keep` names no rule, or a file is damaged.

    Example:
        >>> pairs = clean_pairs(open_pairs("train.tsv"), keep="duplicates")
        >>> print(pairs.cleaning)  # counts and examples, or nothing
        >>> corpus = Corpus(pairs, learn_tokenizers(pairs))
    """
    rules = cleaning_rules(keep)
    found = Cleaning()
    parts = [(_cleaned(part, rules, found), n) for part, n in open_pairs(text).parts]
    return Mix(parts, found)


# Python's option -OO leaves none.
clean_pairs.__doc__ = (clean_pairs.__doc__ or "").replace(
    "{rules}", ", ".join(CLEANING)
)


def _cleaned(part, rules, found):
    """Returns a corpus without what breaks one of the rules; adds to what was found."""
    judged = (_judged(checked(fields)[0], rules) for _, fields in part.rows())
    pairs = np.fromiter(judged, _PAIR)
    _compare(pairs, rules)
    broken = pairs["rule"].tobytes()

    def judged_rows():
        known = itertools.chain(broken, itertools.repeat(0))
        return zip(part.rows(), known, strict=False)

    def rows():
        for (line, fields), rule in judged_rows():
            if rule == _MENDED:
                yield line, [*map(_mended, checked(fields)[0])]
            elif rule in (0, _BAD):
                yield line, fields

    found.lines += len(broken)
    for (line, fields), rule in judged_rows():
        if 0 < rule < _BAD:
            found.add(_RULES[rule], part.place(line, "source"), checked(fields)[0])
    left_out = sum(_MENDED < rule < _BAD for rule in broken)
    return part.with_rows(rows, left_out)


def _mended(text):
    """Returns a text with the characters that entities stand for."""
    if "&" not in text and text.isascii():
        return text
    return _ENTITY.sub(_character, text)


def _character(entity):
    """Returns what an entity stands for; a word that is none stays."""
    name = entity[1] or f"#{ord(entity[0])}"
    is_one = name[0] == "#" or f"{name};" in html5
    return html.unescape(f"&{name};") if is_one else entity[0]


def _judged(texts, rules):
    """Returns what is kept of a pair, as a `_PAIR`."""
    if None in texts:
        return _BAD, 0, (0, 0), (0, 0), 0, False
    mended = tuple(map(_mended, texts)) if "entities" in rules else texts
    sides = [" ".join(text.split()) for text in mended]
    both = "\n".join(sides)
    broken = {
        "entities": mended != texts,
        "empty": not all(sides),
        "control": any(map(_CONTROL.search, mended)),
        "mojibake": not both.isascii() and _MOJIBAKE.search(both),
    }
    source, target = (set(side.split()) for side in sides)
    return (
        max((_RULES.index(name) for name in rules if broken.get(name)), default=0),
        int.from_bytes(hashlib.blake2b(both.encode(), digest_size=8).digest()),
        [len(_ADDRESS.sub("", side)) for side in sides],
        [*map(_script, sides)],
        len(source & target) / max(len(source), len(target), 1),
        sides[0] == sides[1] and len(_WORD.findall(sides[0])) >= 3,
    )


def _script(text):
    """Returns the number of a text's script, or 0 if that is not clear."""
    if text.isascii():
        return _LATIN * (text.upper() != text.lower())
    scripts = [_script_of(x) for x in set(text) if x.isalpha()]
    script = max(scripts, key=scripts.count, default=0)
    share = 1.0 if script == _LATIN else 0.8
    return script * (scripts.count(script) >= share * len(scripts))


@functools.cache
def _script_of(letter):
    """Returns a number for the script of a letter."""
    name = unicodedata.name(letter, "").partition(" ")[0]
    # Japanese is written in three scripts, one of which is that of Chinese.
    is_japanese = name.startswith(("HIRAGANA", "KATAKANA"))
    return zlib.crc32(b"CJK" if is_japanese else name.encode())


def _compare(pairs, rules):
    """Notes what breaks the rules by which pairs are compared with all others."""
    good = pairs[pairs["rule"] != _BAD]

    def leave_out(rule, which):
        if rule in rules:
            which = which & (pairs["rule"] <= _MENDED)
            pairs["rule"][which] = _RULES.index(rule)

    same = pairs["same"]
    is_much = np.sum(same) > max(_FEW_SAME, _MOST_SAME * len(good))
    if is_much and np.mean(good["likeness"] < 0.5) > _UNLIKE:
        leave_out("identical", same)
    lengths = pairs["lengths"].astype(np.float32)
    for side in range(2):
        scripts = pairs["scripts"][:, side]
        names, counts = np.unique(scripts[scripts > 0], return_counts=True)
        if len(names) and counts.max() >= _ONE_SCRIPT * counts.sum():
            long = np.where(scripts == _LATIN, _LONG_LATIN, _LONG_OTHER)
            is_other = (scripts > 0) & (scripts != names[counts.argmax()])
            leave_out("script", is_other & (lengths[:, side] >= long) & ~same)
    ratios = np.log((lengths[:, 1] + 5) / (lengths[:, 0] + 5))
    away = np.abs(ratios - np.median(ratios))
    most = max(np.log(_FACTOR), _DEVIATIONS * np.median(away))
    leave_out("ratio", (away > most) & (lengths.max(axis=1) >= _LONG))
    _, firsts, times = np.unique(pairs["digest"], True, return_counts=True)
    again = np.ones(len(pairs), bool)
    again[firsts] = False
    # Where every pair comes again, somebody meant it.
    leave_out("duplicates", again & (times.min() == 1))
