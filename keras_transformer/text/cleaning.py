"""Leaves out what is certainly wrong in training pairs, and says what it was.

A pair is left out where nobody who looked at it would keep it: a doubtful one stays.
The first reading judges pairs one by one, in 30 bytes of memory for each, and compares
them; the second one asks for the languages. The next ones go by that.
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
from keras_transformer.text.languages import Languages
from keras_transformer.text.pairs import open_pairs
from keras_transformer.text.parallel_text import Mix, ParallelText, checked

_EXAMPLES = 3
# The last rule that a pair breaks: a place in this.
_RULES = ("", *CLEANING)
_MENDED = _RULES.index("entities")
_BY_LANGUAGE = ("swapped", "language")
_BAD = 255  # A bad line: it is reported where it is read.
# What is kept of a pair: the rule that it breaks, a digest, the length (characters) and
# the script of each side, whether it was not translated, the number of words of that,
# and whether a mark ends each side.
_PAIR = np.dtype("u1, u8, 2u4, 2u4, ?, u2, 2?")
_PAIR.names = ("rule", "digest", "lengths", "scripts", "same", "words", "ended")

# Or a character of Windows-1252 that was read as Latin-1, such as a quotation mark.
_ENTITY = re.compile(r"&(#\d+|#[xX][\da-fA-F]+|\w+);|[\x80-\x9f]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# UTF-8 read as Windows-1252. A capital may precede a closing mark, a dash or the sign
# of a brand, so that these are no evidence.
_SIGNS = "¡¢£¤¥¦§¨©ª¬\xad¯±´µ¶·¸¹º¼½¾¿€‚ƒ„†‡ˆ‰Š‹ŒŽ•˜š›œžŸ"
_MOJIBAKE = re.compile(
    f"\ufffd|â€|Ä™|Ã[²³]|Â[{_SIGNS}®™°²³]|[ÃÄÅÐÑ][{_SIGNS}]|[à-ï][{_SIGNS}]{{2}}"
)
_WORD = re.compile(r"(?<!\S)[^\W\d_]+")
_ADDRESS = re.compile("[!-~]{25,}")  # Or a line of dashes: a word of any length.

_COPIED = 4  # Words of a text that was not translated, where the languages are two.
# A script that this share of the texts has is that of the language.
_ONE_SCRIPT = 0.98
# Names are written in Latin letters everywhere: only long texts of nothing else count.
_LONG_LATIN = 20
_LONG_OTHER = 5
_LATIN = zlib.crc32(b"LATIN")
# The length of a side is compared with that of pairs of a similar length: so many, or a
# sixteenth of all. It is odd from this factor and this many deviations.
_ALIKE = 100
_GROUPS = 16
_LONG = 60
_FACTOR = 4.0
_DEVIATIONS = 7.0
# Deviations of a group are this large at least.
_NARROW = 0.05
# A side was cut if it lacks the mark that ends the other side, and is so much shorter
# than usual as hardly a pair is by chance. A longer side lacks it by chance as often.
_END_MARKS = tuple(".!?…。！？؟۔।")
_CLOSING = "\"'’”“»」)] "
_BY_CHANCE = 1 / 20_000
_MARGIN = 1.3
_SHORT = 20
# Pairs that the languages are learned from, and those that are asked for at once.
_SAMPLE = 20_000
_CHUNK = 1024


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
    sample = []
    pairs = np.fromiter(_judged_rows(part, rules, sample), _PAIR)
    languages = Languages(sample)
    _compare(pairs, rules, languages.are_two)
    broken = pairs["rule"]
    lines = part.rows()
    for first in range(0, len(broken), _CHUNK):
        here = broken[first : first + _CHUNK]
        chunk = [*itertools.islice(lines, _CHUNK)]
        texts = [checked(fields)[0] for _, fields in chunk]
        good = [("", "") if None in pair else pair for pair in texts]
        for rule, which in zip(_BY_LANGUAGE, languages.wrong(good), strict=True):
            if rule in rules:
                here[which & (here <= _MENDED)] = _RULES.index(rule)
        for (line, _), pair, rule in zip(chunk, texts, here, strict=True):
            if 0 < rule < _BAD:
                found.add(_RULES[rule], part.place(line, "source"), pair)
    found.lines += len(broken)

    def rows():
        known = itertools.chain(broken.tobytes(), itertools.repeat(0))
        for (line, fields), rule in zip(part.rows(), known, strict=False):
            if rule == _MENDED:
                yield line, [*map(_mended, checked(fields)[0])]
            elif rule in (0, _BAD):
                yield line, fields

    left_out = np.sum((broken > _MENDED) & (broken < _BAD))
    return part.with_rows(rows, int(left_out))


def _judged_rows(part, rules, sample):
    """Yields what is kept of each pair, and puts some of the pairs into a sample."""
    every = 1
    for number, (_, fields) in enumerate(part.rows()):
        texts = checked(fields)[0]
        if number % every == 0 and None not in texts:
            sample.append(texts)
        if len(sample) > _SAMPLE:
            del sample[::2]
            every *= 2
        yield _judged(texts, rules)


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
        return _BAD, 0, (0, 0), (0, 0), False, 0, (False, False)
    mended = tuple(map(_mended, texts)) if "entities" in rules else texts
    sides = [" ".join(text.split()) for text in mended]
    both = "\n".join(sides)
    broken = {
        "entities": mended != texts,
        "empty": not all(sides),
        "control": any(map(_CONTROL.search, mended)),
        "mojibake": not both.isascii() and _MOJIBAKE.search(both),
    }
    is_same = sides[0] == sides[1]
    return (
        max((_RULES.index(name) for name in rules if broken.get(name)), default=0),
        int.from_bytes(hashlib.blake2b(both.encode(), digest_size=8).digest()),
        [len(_ADDRESS.sub("", side)) for side in sides],
        [*map(_script, sides)],
        is_same,
        # A list of names may be the same in two languages.
        len(_WORD.findall(sides[0])) if is_same and not sides[0].istitle() else 0,
        [side.rstrip(_CLOSING).endswith(_END_MARKS) for side in sides],
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


def _compare(pairs, rules, are_two):
    """Notes what breaks the rules by which pairs are compared with all others."""
    if np.all(pairs["rule"] > _MENDED):
        return

    def leave_out(rule, which):
        if rule in rules:
            which = which & (pairs["rule"] <= _MENDED)
            pairs["rule"][which] = _RULES.index(rule)

    leave_out("identical", (pairs["words"] >= _COPIED) & are_two)
    lengths = pairs["lengths"].astype(np.float32)
    for side in range(2):
        scripts = pairs["scripts"][:, side]
        names, counts = np.unique(scripts[scripts > 0], return_counts=True)
        if len(names) and counts.max() >= _ONE_SCRIPT * counts.sum():
            long = np.where(scripts == _LATIN, _LONG_LATIN, _LONG_OTHER)
            is_other = (scripts > 0) & (scripts != names[counts.argmax()])
            is_other &= (lengths[:, side] >= long) & ~pairs["same"]
            leave_out("script", is_other)
    longer = lengths.max(axis=1)
    away, deviations = _deviations(lengths, pairs["rule"] <= _MENDED)
    is_odd = (np.abs(away) > np.log(_FACTOR)) & (np.abs(deviations) > _DEVIATIONS)
    leave_out("ratio", is_odd & (longer >= _LONG))
    lacking = pairs["ended"] @ [1, -1]  # The target, or with -1 the source.
    shortness = -deviations * lacking
    leave_out("cut", (shortness > _least_cut(shortness)) & (longer >= _SHORT))
    kept = np.flatnonzero(pairs["rule"] <= _MENDED)
    _, firsts, times = np.unique(pairs["digest"][kept], True, return_counts=True)
    again = np.ones(len(pairs), bool)
    again[kept[firsts]] = False
    # Where every pair comes again, somebody meant it.
    leave_out("duplicates", again & np.any(times == 1))


def _deviations(lengths, which):
    """Returns how much longer than in some pairs a target is for its source.

    That is the logarithm of a factor, and a number of deviations.
    """
    ratios = np.log((lengths[:, 1] + 5) / (lengths[:, 0] + 5))
    away = np.zeros_like(ratios)
    deviations = np.zeros_like(ratios)
    order = np.argsort(lengths.sum(axis=1))
    order = order[which[order]]
    for alike in np.array_split(order, min(_GROUPS, 1 + len(order) // _ALIKE)):
        away[alike] = ratios[alike] - np.median(ratios[alike])
        deviation = 1.48 * np.median(np.abs(away[alike]))
        deviations[alike] = away[alike] / max(_NARROW, deviation)
    return away, deviations


def _least_cut(shortness):
    """Returns how many deviations too short a side without a mark was cut.

    A normal distribution would have no more pairs beyond it by chance, nor has the file
    among the longer sides without a mark.
    """
    chance = _BY_CHANCE * len(shortness)
    usual = np.sum(shortness < -1) + 0.5
    normal = np.sqrt(1 + 2 * np.log(max(1, usual / 2 / chance)))
    return _MARGIN * max(normal, -np.sort(shortness)[int(chance)])
