"""The words of the generated corpus: one TSV file per word class, read and checked.

Each file's first line names its columns, which are the fields of the class below.
An empty cell means "regular"; a form that does not exist is written "-".
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GENDERS = frozenset("mfn")
FRAMES = frozenset(
    "intransitive transitive dative prepositional ditransitive motion travel located "
    "that whether infinitive".split()
)


@dataclasses.dataclass(frozen=True, eq=False)
class Noun:
    """A noun; `tags` are its semantic classes, "mass" among them."""

    english: str
    english_plural: str
    tags: frozenset[str]
    german_gender: str
    german: str
    german_plural: str
    german_genitive: str
    german_oblique: str
    french_gender: str
    french: str
    french_plural: str


@dataclasses.dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; `nouns` are the semantic classes that it may describe."""

    english: str
    english_comparative: str
    nouns: frozenset[str]
    kind: str
    german: str
    german_stem: str
    german_comparative: str
    french_masculine: str
    french_feminine: str
    french_plural: str
    french_position: str
    french_before_vowel: str


@dataclasses.dataclass(frozen=True, eq=False)
class Verb:
    """A verb with its frame.

    `german` marks a separable prefix with "|"; `german_preterite` is filled for verbs
    that describe a state, whose past is also the French imparfait; `link` is
    "English preposition:German preposition and case:French preposition".
    """

    key: str
    english: str
    english_forms: str
    frame: str
    subjects: frozenset[str]
    objects: frozenset[str]
    aspect: str
    manners: frozenset[str]
    places: frozenset[str]
    german: str
    german_present: str
    german_participle: str
    german_auxiliary: str
    german_preterite: str
    french: str
    french_present: str
    french_participle: str
    french_auxiliary: str
    french_future: str
    link: str


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """A place with the prepositions for being there ("at") and going there ("to")."""

    english: str
    tags: frozenset[str]
    english_at: str
    english_to: str
    german_gender: str
    german: str
    german_at: str
    german_to: str
    french_gender: str
    french: str
    french_at: str
    french_to: str


@dataclasses.dataclass(frozen=True, eq=False)
class Name:
    """A first name."""

    english: str
    gender: str
    german: str
    french: str


@dataclasses.dataclass(frozen=True, eq=False)
class Adverb:
    """An adverb or a fixed time phrase; `kind` is time, frequency or manner."""

    english: str
    kind: str
    tenses: frozenset[str]
    german: str
    french: str


@dataclasses.dataclass(frozen=True, eq=False)
class Situation:
    """A fixed background clause: the weather, a closed shop."""

    english_subject: str
    english_present: str
    english_past: str
    german_subject: str
    german_rest: str
    german_present: str
    german_past: str
    french_subject: str
    french_present: str
    french_past: str
    french_rest: str


@dataclasses.dataclass(frozen=True, eq=False)
class Lexicon:
    """Every word of the corpus, in file order."""

    nouns: tuple[Noun, ...]
    adjectives: tuple[Adjective, ...]
    verbs: tuple[Verb, ...]
    places: tuple[Place, ...]
    names: tuple[Name, ...]
    adverbs: tuple[Adverb, ...]
    situations: tuple[Situation, ...]


def _in(allowed: Iterable[str]):
    return lambda value: value in allowed


def _filled(value: str) -> bool:
    return bool(value)


def _persons(value: str) -> bool:
    return not value or len(value.split(",")) == 5


def _link(value: str) -> bool:
    return not value or len(value.split(":")) == 3


# Column -> (what its cells must satisfy, the rule in words).
_RULES: dict[str, tuple[Any, str]] = {
    "english": (_filled, "not empty"),
    "german": (_filled, "not empty"),
    "french": (_filled, "not empty"),
    "german_gender": (_in(GENDERS | {"-"}), "m, f, n or -"),
    "french_gender": (_in("mf-"), "m, f or -"),
    "gender": (_in("mf"), "m or f"),
    "frame": (_in(FRAMES), f"one of {', '.join(sorted(FRAMES))}"),
    "aspect": (_in(("action", "event", "state")), "action, event or state"),
    "german_auxiliary": (_in(("haben", "sein")), "haben or sein"),
    "french_auxiliary": (_in(("avoir", "être")), "avoir or être"),
    "french_position": (_in(("pre", "post")), "pre or post"),
    "french_present": (_persons, "empty or five forms: je, tu, il, nous, ils"),
    "link": (_link, "empty or three prepositions separated by colons"),
}
# A situation gives whole forms, not a list for each person.
_SITUATION_RULES: dict[str, tuple[Any, str]] = {
    "french_present": (_filled, "not empty")
}


def read_entries(path: str | Path, entry: type) -> tuple[Any, ...]:
    """Reads one TSV file of the lexicon.

    Args:
        path: The file; its first line names the fields of `entry` in order.
        entry: Dataclass of one line.

    Returns:
        One `entry` per line.

    Raises:
        ValueError: If a line is wrong; the message names the file and the line.
    """
    path = Path(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    fields = [field.name for field in dataclasses.fields(entry)]
    if not lines or lines[0].split("\t") != fields:
        raise ValueError(f"{path}:1: the columns must be {', '.join(fields)}")
    entries: list[Any] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines[1:], start=2):
        cells = line.split("\t")
        if len(cells) != len(fields):
            raise ValueError(
                f"{path}:{number}: expected {len(fields)} columns. "
                f"Received: {len(cells)}"
            )
        _check_cells(f"{path}:{number}", dict(zip(fields, cells, strict=True)), entry)
        identity = line if entry is Situation else cells[0]
        if identity in seen:
            raise ValueError(
                f"{path}:{number}: {identity!r} is already on line {seen[identity]}"
            )
        seen[identity] = number
        entries.append(_build(entry, fields, cells))
    return tuple(entries)


def _check_cells(origin: str, cells: dict[str, str], entry: type) -> None:
    rules = _SITUATION_RULES if entry is Situation else _RULES
    for name, value in cells.items():
        if value != value.strip() or "  " in value:
            raise ValueError(f"{origin}: `{name}` has stray spaces: {value!r}")
        if name in rules and not rules[name][0](value):
            raise ValueError(
                f"{origin}: `{name}` must be {rules[name][1]}. Received: {value!r}"
            )


def _build(entry: type, fields: list[str], cells: list[str]) -> Any:
    kinds = {field.name: field.type for field in dataclasses.fields(entry)}
    return entry(
        *(
            frozenset(cell.split()) if kinds[name] == "frozenset[str]" else cell
            for name, cell in zip(fields, cells, strict=True)
        )
    )


@functools.cache
def load_lexicon() -> Lexicon:
    """Returns the corpus's own lexicon, read once per process."""
    folder = Path(__file__).parent
    entries = {
        "nouns": Noun,
        "adjectives": Adjective,
        "verbs": Verb,
        "places": Place,
        "names": Name,
        "adverbs": Adverb,
        "situations": Situation,
    }
    return Lexicon(
        **{
            name: read_entries(folder / f"lexicon_{name}.tsv", entry)
            for name, entry in entries.items()
        }
    )
