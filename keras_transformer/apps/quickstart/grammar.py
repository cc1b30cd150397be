"""A grammar that draws sentences in English and in German from grammar.tsv.

A pattern stands there in both languages. In it "…" is the object of the verb, and
`{gift.acc}` a word with the tag `gift`: `en` is English, `de`, `acc` and `dat` are the
cases of German. Forms such as `{subject.am}` and `{finite}` agree with the subject.
A noun has its nominative, accusative and dative where they differ, a determiner these
for each gender, with the ending of an adjective behind it.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from keras_transformer.config.options import check_choice

_SPLITS = {"train": range(90), "valid": range(90, 95), "test": range(95, 100)}
# The tags of the words for a role; of other roles it is the role itself.
_TAGS = {"subject": ("pronoun", "person"), "other": ("pronoun", "person")}


@functools.cache
def tables() -> dict[str, list[dict[str, str]]]:
    """Returns the rows of each table of grammar.tsv, by its first column's name."""
    text = Path(__file__).with_name("grammar.tsv").read_text(encoding="utf-8")
    found = {}
    for table in text.split("\n\n"):
        rows = list(csv.DictReader(table.splitlines(), delimiter="\t"))
        found[next(iter(rows[0]))] = rows
    return found


@functools.cache
def words(table: str, *tags: str) -> list[dict[str, str]]:
    """Returns the words of a table that have one of some tags."""
    rows = tables()[table]
    return [row for row in rows if not {*tags}.isdisjoint(row["tags"].split(", "))]


def phrase(english: str, german: list[str], person: str) -> SimpleNamespace:
    """Returns a phrase with its cases, and the forms that agree with it."""
    de, acc, dat = german
    forms = {row["form"]: row[person] for row in tables()["form"]}
    return SimpleNamespace(en=english, de=de, acc=acc, dat=dat, person=person, **forms)


def noun_phrase(noun, determiner, adjective=None) -> SimpleNamespace:
    """Returns a declined noun, with what stands before it."""
    english = determiner["determiner"]
    if adjective:
        english += f" {adjective['adjective']}"
    english = re.sub("^a (?=[aeiou])", "an ", f"{english} {noun['noun']}")
    forms = noun["german"].split(", ")
    german = []
    for case, cell in enumerate(determiner[noun["gender"]].split(", ")):
        said, ending = cell.split("-")
        if adjective:
            said += f"{adjective['stem']}{ending} "
        german.append(said + forms[min(case, len(forms) - 1)])
    return phrase(english, german, "they" if noun["gender"] == "plural" else "he")


def said(pattern, verb, phrases) -> tuple[str, str]:
    """Returns a pattern in English and in German, with a verb and a phrase a role."""
    subject = phrases["subject"]
    given = verb | phrases
    given["finite"] = verb[subject.person]
    given["have"] = getattr(subject, verb["have"])
    given["nicht"] = "nicht" if _is_negated(pattern) else ""
    english = pattern["pattern"].replace("…", verb["object"])
    german = pattern["german"].replace("…", verb["objekt"])
    return _sentence(english.format_map(given)), _sentence(german.format_map(given))


def _is_negated(pattern):
    return "not " in pattern["pattern"]


def _sentence(text):
    """Returns a text without the spaces around an empty part, and with a capital."""
    text = re.sub(" +(?=[ .,?])", "", text)
    return text[0].upper() + text[1:]


class Grammar:
    """Draws sentences; a seed draws the same ones on every machine."""

    def __init__(self, seed: int):
        self._random = random.Random(seed).random

    def pair(self) -> tuple[str, str]:
        """Returns an English sentence and its translation."""
        pattern = self._pick(tables()["pattern"])
        text = pattern["pattern"]
        # Nobody says "I am finding".
        verbs = [x for x in tables()["verb"] if x["doing"] or "{doing}" not in text]
        verb = self._pick(verbs)
        whole = text.replace("…", verb["object"])
        roles = dict.fromkeys(re.findall(r"{(\w+)\.", whole))
        phrases = {role: self._phrase(role, _is_negated(pattern)) for role in roles}
        if len({one.en for one in phrases.values()}) < len(phrases):
            return self.pair()  # Anna would call Anna.
        return said(pattern, verb, phrases)

    def _phrase(self, role, negated):
        tags = _TAGS.get(role, (role,))
        word = self._pick(words("fixed", *tags) + words("noun", *tags))
        if "fixed" in word:
            return phrase(word["fixed"], [word["german"]] * 3, word["person"])
        # No "nicht ein", for which German says "kein".
        determiners = [
            row
            for row in tables()["determiner"]
            if row[word["gender"]] and not (negated and row["determiner"] == "a")
        ]
        # The first tag of a noun says what it is, the others what is done with it.
        adjectives = words("adjective", word["tags"].split(", ")[0])
        has_adjective = adjectives and self._random() < 0.35
        adjective = self._pick(adjectives) if has_adjective else None
        return noun_phrase(word, self._pick(determiners), adjective)

    def _pick(self, rows):
        return rows[int(self._random() * len(rows))]


def generate_pairs(split: str, count: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yields distinct pairs of a generated English sentence and its translation.

    A hash of the German sentence determines the split, 90 of 100 for training, so no
    sentence is in two splits, whatever the seed.

    Raises:
        ValueError: If `split` is not "train", "valid" or "test".
    """
    check_choice("split", split, _SPLITS)
    grammar = Grammar(seed)
    seen = set()
    while len(seen) < count:
        english, german = grammar.pair()
        digest = hashlib.sha256(german.casefold().encode("utf-8")).digest()
        bucket = int.from_bytes(digest[:4], "big") % 100
        if english not in seen and bucket in _SPLITS[split]:
            seen.add(english)
            yield english, german
