"""German word forms: conjugation, determiners, adjective endings, pronouns.

Cases are "nom", "acc", "dat", "gen"; genders are "m", "f", "n" and "p" for the plural,
where the three genders have the same forms.
"""

from __future__ import annotations

import functools

from keras_transformer.quickstart.grammar.lexicon import Adjective, Noun, Verb
from keras_transformer.quickstart.grammar.plan import PERSONS

# Rows: m, f, n, p; columns: nom, acc, dat, gen.
_CASES = ("nom", "acc", "dat", "gen")
_DEFINITE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
_MIXED = {  # ein, kein, mein: what follows the stem
    "m": ("", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("", "", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
_STRONG = {
    "m": ("er", "en", "em", "en"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "en"),
    "p": ("e", "e", "en", "er"),
}
_RELATIVE = _DEFINITE | {"p": ("die", "die", "denen", "deren")}
_POSSESSIVES = {
    "my": "mein",
    "your": "dein",
    "his": "sein",
    "her": "ihr",
    "our": "unser",
    "their": "ihr",
    "a": "ein",
    "no": "kein",
}
_NUMBERS = {
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "nine": "neun",
    "ten": "zehn",
}
_PRONOUNS = {
    "1s": ("ich", "mich", "mir"),
    "2s": ("du", "dich", "dir"),
    "1p": ("wir", "uns", "uns"),
    "3p": ("sie", "sie", "ihnen"),
    "m": ("er", "ihn", "ihm"),
    "f": ("sie", "sie", "ihr"),
    "n": ("es", "es", "ihm"),
}
REFLEXIVES = {"1s": "mich", "2s": "dich", "3s": "sich", "1p": "uns", "3p": "sich"}

_IRREGULAR = {
    "sein": ("bin", "bist", "ist", "sind", "sind"),
    "haben": ("habe", "hast", "hat", "haben", "haben"),
    "werden": ("werde", "wirst", "wird", "werden", "werden"),
    "can": ("kann", "kannst", "kann", "können", "können"),
    "must": ("muss", "musst", "muss", "müssen", "müssen"),
    "want": ("will", "willst", "will", "wollen", "wollen"),
    "should": ("sollte", "solltest", "sollte", "sollten", "sollten"),
    "would like": ("möchte", "möchtest", "möchte", "möchten", "möchten"),
}
_PRETERITES = {
    "sein": "war",
    "haben": "hatte",
    "werden": "wurde",
    "can": "konnte",
    "must": "musste",
    "want": "wollte",
}


def determiner(word: str, gender: str, case: str) -> str:
    """Returns "der", "einem", "keine", "unser", "zwei" or "" (no determiner)."""
    column = _CASES.index(case)
    if word == "the":
        return _DEFINITE[gender][column]
    if word in _NUMBERS:
        return _NUMBERS[word]
    if word not in _POSSESSIVES:
        return ""
    ending = _MIXED[gender][column]
    if word == "our" and ending:
        return "unser" + ending
    return _POSSESSIVES[word] + ending


def adjective(word: Adjective, determined_by: str, gender: str, case: str) -> str:
    """Returns an attribute with its ending after the determiner `determined_by`."""
    column = _CASES.index(case)
    if determined_by == "the":
        unmarked = case == "nom" and gender != "p" or case == "acc" and gender in "fn"
        ending = "e" if unmarked else "en"
    elif determined_by in _POSSESSIVES:
        bare = not _MIXED[gender][column]
        weak = "en" if gender == "p" or case in ("dat", "gen") else "e"
        if gender == "m" and case == "acc":
            weak = "en"
        ending = _STRONG[gender][column] if bare else weak
    else:
        ending = _STRONG[gender][column]
    stem = word.german_stem or word.german
    return stem + (ending[1:] if stem.endswith("e") else ending)


def noun(word: Noun, plural: bool, case: str) -> str:
    """Returns a noun in its number and case."""
    if plural:
        form = word.german_plural
        return form if case != "dat" or form[-1] in "ns" else form + "n"
    if case == "gen":
        return word.german_genitive or word.german
    if case in ("acc", "dat") and word.german_oblique:
        return word.german_oblique
    return word.german


def relative_pronoun(gender: str, case: str) -> str:
    """Returns "der", "die", "das", "denen", ..."""
    return _RELATIVE[gender][_CASES.index(case)]


def pronoun(person: str, gender: str, case: str) -> str:
    """Returns a personal pronoun; `gender` matters in the third person singular."""
    return _PRONOUNS[gender if person == "3s" else person][_CASES.index(case)]


def present(name: str, person: str) -> str:
    """Returns the present of an auxiliary or a modal."""
    return _IRREGULAR[name][PERSONS.index(person)]


def preterite(name: str, person: str) -> str:
    """Returns the preterite of an auxiliary, a modal, or of a given 3s form."""
    form = _PRETERITES.get(name, name)
    if person in ("1s", "3s"):
        return form
    if person == "2s":
        return form + "st"
    return form + ("n" if form.endswith("e") else "en")


@functools.cache
def parts(verb: Verb) -> tuple[bool, str, str]:
    """Returns whether the verb is reflexive, its separable prefix and its base."""
    name = verb.german.removeprefix("sich ")
    prefix, _, base = name.rpartition("|")
    return verb.german.startswith("sich "), prefix, base


def infinitive(verb: Verb, zu: bool = False) -> str:
    """Returns "anrufen", or "anzurufen" with `zu`."""
    _, prefix, base = parts(verb)
    return prefix + ("zu " if zu and prefix[-1:] in ("", " ") else "zu" * zu) + base


@functools.cache
def verb_present(verb: Verb, person: str) -> str:
    """Returns the present without the separable prefix."""
    base = parts(verb)[2]
    if person in ("1p", "3p"):
        return base
    stem = base[:-2] if base.endswith("en") else base[:-1]
    given = verb.german_present.split(",")
    if person == "1s" and base == "wissen":
        return given[1]
    if person == "1s":
        return (base[:-3] + "le") if base.endswith("eln") else stem + "e"
    if verb.german_present:
        return given[0 if person == "2s" else 1]
    link = "e" if stem[-1] in "td" or stem.endswith(("ffn", "chn")) else ""
    if person == "3s":
        return stem + link + "t"
    return stem + ("t" if stem[-1] in "szßx" else link + "st")
