"""A grammar that draws sentences in English and in German from grammar.tsv.

A row there is a sentence, a phrase or a word. `{goods.acc}` in it is the column `acc`
of a row with the tag `goods`, which is drawn once for the whole row, so that its forms
agree. `{verb.{subject.person}}` is the verb's form for the subject's person.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

_SPLITS = {"train": range(90), "valid": range(90, 95), "test": range(95, 100)}


@functools.cache
def rows_by_tag() -> dict[str, list[dict[str, str]]]:
    """Returns the rows of grammar.tsv that have each tag."""
    text = Path(__file__).with_name("grammar.tsv").read_text(encoding="utf-8")
    rows = defaultdict(list)
    for table in text.split("\n\n"):
        for row in csv.DictReader(table.splitlines(), delimiter="\t"):
            for tag in row["tags"].split(", "):
                rows[tag].append(row)
    return rows


def expand(tag: str, pick: Callable[[list], dict]) -> dict[str, str]:
    """Returns a row with a tag, with what it refers to in place of the references."""
    drawn = {}

    def form(reference):
        name, column = reference.groups()
        if name not in drawn:
            drawn[name] = expand(name, pick)
        return drawn[name][column]

    row = {}
    for column, text in pick(rows_by_tag()[tag]).items():
        while "{" in text:  # The innermost ones first.
            text = re.sub(r"{(\w+)\.(\w+)}", form, text)
        row[column] = text
    return row


def draw_pair(pick: Callable[[list], dict]) -> tuple[str, str]:
    """Returns an English sentence and its translation; `pick` picks one of rows."""
    row = expand("sentence", pick)
    english = re.sub(r"\b([Aa])(?= [aeiou])", r"\1n", row["en"])
    return _sentence(english), _sentence(row["de"])


def _sentence(text):
    """Returns a text without the spaces around an empty part, and with a capital."""
    text = re.sub(" +(?=[ .,?])", "", text)
    return text[0].upper() + text[1:]


def generate_pairs(split: str, count: int) -> Iterator[tuple[str, str]]:
    """Yields distinct pairs of a generated English sentence and its translation.

    They are the same on every machine. A hash of the German sentence determines the
    split, 90 of 100 for training, so no sentence is in two splits.
    """
    number = random.Random(1).random
    seen = set()
    while len(seen) < count:
        english, german = draw_pair(lambda rows: rows[int(number() * len(rows))])
        digest = hashlib.sha256(german.casefold().encode("utf-8")).digest()
        is_in_split = int.from_bytes(digest[:4], "big") % 100 in _SPLITS[split]
        # No "nicht ein", for which German says "kein".
        if is_in_split and english not in seen and not re.search("not .*an? ", english):
            seen.add(english)
            yield english, german
