"""French word forms: conjugation, agreement, elision."""

from __future__ import annotations

import functools

from keras_transformer.quickstart.grammar.lexicon import Adjective, Noun, Verb
from keras_transformer.quickstart.grammar.plan import PERSONS

# "huit" begins with an aspirated h: "le huit", "de huit".
_NO_ELISION = ("huit",)
_VOWELS = frozenset("aàâeéèêëiîïoôœuùûyhAÀÂEÉÈÊIÎOÔUYH")
_AVOIR = ("ai", "as", "a", "avons", "ont")
_ETRE = ("suis", "es", "est", "sommes", "sont")
_PRESENTS = {
    "avoir": _AVOIR,
    "être": _ETRE,
    "can": ("peux", "peux", "peut", "pouvons", "peuvent"),
    "must": ("dois", "dois", "doit", "devons", "doivent"),
    "want": ("veux", "veux", "veut", "voulons", "veulent"),
    "should": ("devrais", "devrais", "devrait", "devrions", "devraient"),
    "would like": ("voudrais", "voudrais", "voudrait", "voudrions", "voudraient"),
}
_IMPERFECT_STEMS = {"avoir": "av", "être": "ét", "want": "voul"}
_FUTURE_STEMS = {"avoir": "aur", "être": "ser"}
_IMPERFECT = ("ais", "ais", "ait", "ions", "aient")
_FUTURE = ("ai", "as", "a", "ons", "ont")
_ENDINGS = {
    "er": ("e", "es", "e", "ons", "ent"),
    "ir": ("is", "is", "it", "issons", "issent"),
    "re": ("s", "s", "", "ons", "ent"),
}
_PARTICIPLES = {"er": "é", "ir": "i", "re": "u"}


def starts_with_vowel(text: str) -> bool:
    """Whether a word before `text` loses its last vowel."""
    return text[0] in _VOWELS and not text.startswith(_NO_ELISION)


def elide(word: str, text: str) -> str:
    """Returns "l'eau" for "le" or "la" and "eau", and "le pain" for "le" and "pain"."""
    if starts_with_vowel(text):
        if word in ("le", "la", "de", "ne", "je", "me", "te", "se", "que"):
            return f"{word[:-1]}'{text}"
        if word in ("si", "même si") and text.startswith(("il ", "ils ")):
            return f"{word[:-1]}'{text}"
        for ending in ("parce que", "est-ce que"):
            if word.endswith(ending):
                return f"{word[:-1]}'{text}"
    return f"{word} {text}"


def noun(word: Noun, plural: bool) -> str:
    """Returns the singular or the plural."""
    return word.french if not plural else word.french_plural or word.french + "s"


def adjective(word: Adjective, feminine: bool, plural: bool, before: str = "") -> str:
    """Returns the agreeing form; `before` is the noun that follows it, if any."""
    if feminine:
        return word.french_feminine + "s" * plural
    if plural:
        return word.french_plural or word.french_masculine + "s"
    if before and word.french_before_vowel and starts_with_vowel(before):
        return word.french_before_vowel
    return word.french_masculine


def agree(participle: str, feminine: bool, plural: bool) -> str:
    """Returns a participle with its endings: "allé", "allée", "allés", "allées"."""
    form = participle + "e" * feminine
    # "compris" has its s already.
    return form + ("s" if plural and not form.endswith("s") else "")


@functools.cache
def parts(verb: Verb) -> tuple[bool, str, str]:
    """Returns whether the verb is pronominal, its infinitive and what follows it."""
    name = verb.french
    pronominal = name.startswith(("se ", "s'"))
    name = name[2:].strip() if name.startswith("s'") else name.removeprefix("se ")
    head, _, rest = name.partition(" ")
    return pronominal, head, rest


@functools.cache
def participle(verb: Verb) -> str:
    """Returns the masculine singular of the past participle."""
    head = parts(verb)[1]
    return verb.french_participle or head[:-2] + _PARTICIPLES[head[-2:]]


@functools.cache
def verb_present(verb: Verb, person: str) -> str:
    """Returns the present."""
    index = PERSONS.index(person)
    if verb.french_present:
        return verb.french_present.split(",")[index]
    head = parts(verb)[1]
    stem, ending = head[:-2], _ENDINGS[head[-2:]][index]
    if head.endswith("er"):
        stem = _nous_stem(stem) if person == "1p" else _silent_stem(stem)
    return stem + ending


def _nous_stem(stem: str) -> str:
    if stem.endswith("g"):
        return stem + "e"
    return stem[:-1] + "ç" if stem.endswith("c") else stem


def _silent_stem(stem: str) -> str:
    """Returns the stem before a silent ending: "achèt", "appell", "nettoi"."""
    if stem.endswith(("oy", "uy", "ay")):
        return stem[:-1] + "i"
    if stem.endswith(("appel", "jet")):
        return stem + stem[-1]
    if len(stem) > 2 and stem[-1] not in "aeiouyé" and stem[-2] in "eé":
        return stem[:-2] + "è" + stem[-1]
    return stem


@functools.cache
def verb_imperfect(verb: Verb, person: str) -> str:
    """Returns the imparfait, from the "nous" form of the present."""
    index = PERSONS.index(person)
    stem = verb_present(verb, "1p").removesuffix("ons")
    if person == "1p" and stem.endswith("ge"):
        stem = stem[:-1]
    return stem + _IMPERFECT[index]


@functools.cache
def verb_future(verb: Verb, person: str) -> str:
    """Returns the futur simple."""
    stem, head = verb.french_future, parts(verb)[1]
    if not stem and head.endswith("er"):
        silent = _silent_stem(head[:-2])
        # The future keeps é ("espérera") where the present changes it ("espère").
        stem = (head[:-2] if "é" in head[-4:-2] else silent) + "er"
    elif not stem:
        stem = head[:-1] if head.endswith("re") else head
    return stem + _FUTURE[PERSONS.index(person)]


def present(name: str, person: str) -> str:
    """Returns the present (or conditional) of an auxiliary or a modal."""
    return _PRESENTS[name][PERSONS.index(person)]


def imperfect(name: str, person: str) -> str:
    """Returns the imparfait of an auxiliary or a modal."""
    return _IMPERFECT_STEMS[name] + _IMPERFECT[PERSONS.index(person)]


def future(name: str, person: str) -> str:
    """Returns the futur simple of an auxiliary."""
    return _FUTURE_STEMS[name] + _FUTURE[PERSONS.index(person)]
