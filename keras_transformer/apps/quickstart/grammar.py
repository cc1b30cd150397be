"""A grammar that draws sentences from a lexicon, in English and in German.

German is a function of English: "you" is "du", and the simple past becomes the perfect.
The columns of lexicon.tsv: `english_forms` are the plural of a noun, the past and -ing
form of a verb, the rest of a modal, or the direction of a place; `german_forms` are
gender, plural and genitive of a noun, second and third person, participle and auxiliary
of a verb, three persons of a modal, or the direction of a place; `tags` are properties
or tenses; `objects` and `places` are the tags of fitting words.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import random
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

from keras_transformer.config.options import check_choice

# Subject and object in English; nominative, accusative and dative in German; the
# verb's person: 0 to 3 for "I", "you", "he", "they".
_PRONOUNS = {
    "I": ("I", "me", "ich", "mich", "mir", 0),
    "you": ("you", "you", "du", "dich", "dir", 1),
    "m": ("he", "him", "er", "ihn", "ihm", 2),
    "f": ("she", "her", "sie", "sie", "ihr", 2),
    "n": ("it", "it", "es", "es", "ihm", 2),
    "we": ("we", "us", "wir", "uns", "uns", 3),
    "p": ("they", "them", "sie", "sie", "ihnen", 3),
    "who": ("who", "whom", "wer", "wen", "wem", 2),
}
_SPEAKERS = ("I", "you", "we")
_THIRD = ("m", "f", "p")
_POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr"}
_POSSESSIVES |= {"our": "unser", "their": "ihr"}
_EIN_WORDS = {**_POSSESSIVES, "a": "ein", "": ""}
# Nominative, accusative, dative, genitive by gender; "p" is the plural. An adjective
# has the strong ending where no article shows the case: "ein alter", but "der alte".
_DER = {"m": ("der", "den", "dem", "des"), "f": ("die", "die", "der", "der")}
_DER |= {"n": ("das", "das", "dem", "des"), "p": ("die", "die", "den", "der")}
_EIN = {"m": ("", "en", "em", "es"), "f": ("e", "e", "er", "er")}
_EIN |= {"n": ("", "", "em", "es"), "p": ("e", "e", "en", "er")}
_WEAK = {"m": ("e", "en", "en", "en"), "f": ("e", "e", "en", "en")}
_WEAK |= {"n": ("e", "e", "en", "en"), "p": ("en", "en", "en", "en")}
_STRONG = {"m": ("er", "en", "em", "en"), "f": ("e", "e", "er", "er")}
_STRONG |= {"n": ("es", "es", "em", "en"), "p": ("e", "e", "en", "er")}
_QUESTIONS = {"why": "warum", "when": "wann", "yes": ""}

_SPLITS = {"train": range(90), "valid": range(90, 95), "test": range(95, 100)}
_COLUMNS = "kind english german english_forms german_forms tags objects places"
Word = namedtuple("Word", _COLUMNS)
# All forms of a noun, name or pronoun: English as subject and object, German by case.
# `weight` is "pronoun", "known" or "new"; German puts known words before new ones.
Phrase = namedtuple("Phrase", "english german number gender weight word")


@functools.cache
def words(kind: str, tags: tuple[str, ...] = (), column: str = "tags") -> list[Word]:
    """Returns the words of a kind that have one of `tags`, if any, in a column."""
    found = []
    text = Path(__file__).with_name("lexicon.tsv").read_text(encoding="utf-8")
    for line in text.splitlines()[1:]:
        cells = line.split("\t")
        lists = (tuple(filter(None, cell.split(", "))) for cell in cells[3:])
        found.append(Word(*cells[:3], *lists))
    found = [word for word in found if word.kind == kind]
    return [w for w in found if not tags or set(tags) & set(getattr(w, column))]


def pronoun(person: str, is_thing: bool = False) -> Phrase:
    """Returns a pronoun; a thing is "it" in English, in German also "er" or "sie"."""
    *forms, number = _PRONOUNS[person]
    english = _PRONOUNS["n" if is_thing and number == 2 else person][:2]
    return Phrase(english, forms[2:], number, person, "pronoun", None)


def noun_phrase(
    noun, determiner="the", adjective=None, plural=False, negated=False, owner=None
) -> Phrase:
    """Returns a noun phrase; negated, it has "kein" in place of "ein" or nothing."""
    weight = "known" if owner or determiner not in ("", "a") else "new"
    english = [adjective.english] if adjective else []
    english.append(noun.english_forms[0] if plural else noun.english)
    article = "an" if determiner == "a" and english[0][0] in "aeiou" else determiner
    english.insert(0, f"{owner.english[0]}'s" if owner else article)
    stem = "kein" if negated and weight == "new" else _EIN_WORDS.get(determiner)
    gender = "p" if plural else noun.german_forms[0]
    german = []
    for case in range(4):
        said = ""
        ending = _STRONG[gender][case]
        if owner or determiner == "the":
            said = _DER[gender][case]
            ending = _WEAK[gender][case]
        elif stem:
            said = stem + _EIN[gender][case]
            ending = _WEAK[gender][case] if said != stem else ending
        described = adjective.german.removesuffix("e") + ending if adjective else ""
        form = _german_noun(noun, plural, case)
        of_owner = owner and owner.german[3]
        german.append(_join(said, described, form, of_owner))
    english = (_join(*english),) * 2
    return Phrase(english, german, 3 if plural else 2, gender, weight, noun)


def _german_noun(noun, plural, case):
    _, *forms = noun.german_forms
    if plural:
        return forms[0] + "n" if case == 2 and forms[0][-1] not in "ns" else forms[0]
    # "Des Studenten", so "den Studenten"; "des Lehrers", but "den Lehrer".
    if forms[1:] and (case == 3 or case > 0 and forms[1][-1] == "n"):
        return forms[1]
    return noun.german


@dataclasses.dataclass
class Clause:
    """A clause; without a verb it says that the subject is `adjective`."""

    subject: Phrase
    verb: Word | None = None
    tense: str = "present"  # or "past"
    modal: Word | None = None
    negated: bool = False
    theme: Phrase | None = None
    recipient: Phrase | None = None
    adjective: Word | None = None
    place: tuple[str, str] = ("", "")  # English, German
    time: Word | None = None
    front: str = ""  # "time" puts that first; "yes", "why" and "when" make a question

    def english(self) -> str:
        """Returns the clause without a full stop."""
        is_question = self.front not in ("", "time")
        auxiliary, verb = self._english_verb(is_question or self.negated)
        two = [self.subject.english[0], auxiliary]
        is_first = self.front == "time"
        time = self.time.english if self.time else ""
        said = _join(
            f"{time}," if is_first else self.front.removesuffix("yes"),
            *(reversed(two) if is_question else two),
            "not" if self.negated else "",
            verb,
            self.theme.english[1] if self.theme else "",
            f"to {self.recipient.english[1]}" if self.recipient else "",
            self.adjective.english if self.adjective else "",
            self.place[0],
            "" if is_first else time,
        )
        return said.replace("can not ", "cannot ")

    def _english_verb(self, wants_auxiliary):
        """Returns the auxiliary, if any, and the rest."""
        number = self.subject.number
        is_past = self.tense == "past"
        base = self.verb.english if self.verb else "be"
        if self.modal is not None:
            return self.modal.english, _join(*self.modal.english_forms, base)
        be = ("was were was were" if is_past else "am are is are").split()[number]
        if self.verb is None:
            return be, ""
        past, progressive = self.verb.english_forms
        if not is_past and "state" not in self.verb.tags:
            return be, progressive
        if wants_auxiliary:
            return "did" if is_past else "does" if number == 2 else "do", base
        return "", past if is_past else base + "s" if number == 2 else base

    def german(self, last: bool = False, after: bool = False) -> str:
        """Returns the clause with its verb second, `last`, or first `after` another."""
        finite, end = self._german_verb(last)
        pronouns, rest = self._german_middle()
        subject = [self.subject.german[0]]
        if last:
            return _join(*subject, *pronouns, *rest, end, finite)
        if not self.front and not after:
            return _join(*subject, finite, *pronouns, *rest, end)
        first = self.time.german if self.front == "time" else _QUESTIONS.get(self.front)
        # A pronoun precedes a noun: "Gestern hat ihn der Arzt gesehen".
        is_noun = self.subject.word is not None and self.subject.word.kind == "noun"
        two = (pronouns, subject) if is_noun else (subject, pronouns)
        return _join(first, finite, *two[0], *two[1], *rest, end)

    def _german_middle(self):
        """Returns the pronouns, and the rest of the middle field."""
        said = {"pronoun": [], "known": [], "new": []}
        if self.recipient is not None:
            weight = "known" if self.recipient.word else "pronoun"
            said[weight].append(self.recipient.german[2])
        if self.theme is not None:
            preposition = self.verb.german.partition(" ")[2]
            text = self.theme.german[2 if "dative" in self.verb.tags else 1]
            weight = "new" if preposition else self.theme.weight
            said[weight].append(_join(preposition, text))
        has_kein = any("kein" in text for text in said["new"])
        return said["pronoun"], [
            self.time.german if self.time and self.front != "time" else "",
            *said["known"],
            "nicht" if self.negated and not has_kein else "",
            self.place[1],
            *said["new"],
            self.adjective.german if self.adjective else "",
        ]

    def _german_verb(self, last):
        """Returns the finite verb and the end of the clause."""
        number = self.subject.number
        is_past = self.tense == "past"
        verb = self.verb.german.split(" ")[0] if self.verb else "sein"
        *prefix, infinitive = verb.split("|")  # "an|rufen"
        if self.modal is not None:
            forms = *self.modal.german_forms, self.modal.german
            return forms[number], verb.replace("|", "")
        if self.verb is None:
            be = "war warst war waren" if is_past else "bin bist ist sind"
            return be.split()[number], ""
        second, third, participle, auxiliary = self.verb.german_forms
        if is_past:
            have = "bin bist ist sind" if auxiliary == "sein" else "habe hast hat haben"
            return have.split()[number], participle
        finite = (infinitive[:-1], second, third, infinitive)[number]
        return ("".join([*prefix, finite]), "") if last else (finite, *prefix, "")[:2]


def say(main, conjunction=None, second=None, second_first=False) -> tuple[str, str]:
    """Returns the English and the German sentence of one clause or of two."""
    english = main.english()
    german = main.german(after=second_first)
    if second is not None:
        because = f"{conjunction.english} {second.english()}"
        weil = f"{conjunction.german} {second.german(last=True)}"
        english = f"{because}, {english}" if second_first else f"{english} {because}"
        german = f"{weil}, {german}" if second_first else f"{german}, {weil}"
    is_question = main.front not in ("", "time") or main.subject.gender == "who"
    end = "?" if is_question else "."
    return tuple(text[0].upper() + text[1:] + end for text in (english, german))


def _join(*said):
    return " ".join(filter(None, said))


class Grammar:
    """Draws sentences; a seed draws the same ones on every machine."""

    def __init__(self, seed: int):
        self._random = random.Random(seed).random
        self._used: set[Word] = set()

    def pair(self) -> tuple[str, str]:
        """Returns an English and a German sentence of any kind."""
        self._used.clear()
        main = self._clause()
        draw = self._random()
        if draw < 0.25:
            return self._because(main)
        if draw < 0.33:  # "Anna thinks that ...".
            teller = Clause(self._person(), self._pick(words("report")))
            teller.front = "yes" if teller.subject.gender == "you" else ""
            return say(teller, words("conjunction", ("that",))[0], main)
        if draw < 0.39:
            main = self._state(self._person(), self._pick(("present", "past")))
            if self._random() < 0.5:
                main.time = self._pick(words("time", (main.tense,)))
        elif draw < 0.6 and main.subject.word is None and not main.negated:
            main.subject = pronoun("who")
        elif draw < 0.6:
            main.front = self._pick(("why",) if main.negated else tuple(_QUESTIONS))
            main.time = None if main.front == "when" else main.time
        elif main.time is not None and self._random() < 0.5:
            main.front = "time"
        return say(main)

    def _because(self, main):
        theme = main.theme
        draw = self._random()
        reasons = []
        if theme is not None and theme.weight == "known":
            fitting = words("adjective", theme.word.tags, "objects")
            reasons = [w for w in fitting if "reason" in w.tags and w not in self._used]
        if draw < 0.5:
            second = self._clause(main.tense)
        elif draw < 0.7 or main.subject.word in words("noun", ("animal",)):
            why = self._pick(words("weather"))  # "... because it is raining".
            verb, adjective = (why, None) if why.english_forms else (None, why)
            second = Clause(pronoun("n"), verb, main.tense, adjective=adjective)
        elif reasons:  # "... because it is old", in German perhaps "er" or "sie".
            it = pronoun(theme.gender, is_thing=True)
            second = Clause(it, None, main.tense, adjective=self._pick(reasons))
        else:  # "... because she is tired"; a girl is "sie", too.
            gender = main.subject.gender
            second = self._state(pronoun("f" if gender == "n" else gender), main.tense)
        conjunction = self._pick(words("conjunction", ("reason",)))
        return say(main, conjunction, second, second_first=0.3 < draw < 0.6)

    def _state(self, subject, tense):
        adjective = self._pick(words("adjective", ("state",)))
        negated = self._random() < 0.15
        return Clause(subject, None, tense, negated=negated, adjective=adjective)

    def _clause(self, tense=""):
        tense = tense or self._pick(("present", "past", "past", "future"))
        verb = self._pick(words("verb", (tense,)))
        is_animal = "wild" in verb.tags or "both" in verb.tags and self._random() < 0.4
        subject = self._noun(("animal",)) if is_animal else self._person()
        clause = Clause(subject, verb, "past" if tense == "past" else "present")
        if tense == "future" or tense == "past" and self._random() < 0.1:
            clause.modal = self._pick(words("modal", (tense,)))
        is_must = clause.modal in words("modal", ("positive",))
        clause.negated = not is_must and self._random() < 0.15
        # Nobody says "I see me" or "we see me".
        others = _THIRD + (() if subject.gender in _SPEAKERS else _SPEAKERS)
        if "person" in verb.objects and self._random() < 0.7:
            clause.theme = self._person(others, clause.negated)
        elif verb.objects:
            clause.theme = self._noun(verb.objects, clause.negated)
        if "give" in verb.tags:
            clause.recipient = self._person(others)
        is_motion = "motion" in verb.tags
        if verb.places and (is_motion or self._random() < 0.35):
            place = self._pick(words("place", verb.places))
            to = (place.english_forms[0], place.german_forms[0])
            clause.place = to if is_motion else (place.english, place.german)
        if "state" not in verb.tags and self._random() < 0.35:
            clause.time = self._new(words("time", (tense,)))
        return clause

    def _person(self, pronouns=_THIRD + _SPEAKERS, negated=False):
        draw = self._random()
        if draw < 0.3:
            return pronoun(self._pick(pronouns))
        if draw > 0.45:
            return self._noun(("person",), negated)
        name = self._new(words("name"))
        forms = [name.english] * 2, [name.german] * 3
        return Phrase(*forms, 2, *name.tags, "known", name)

    def _noun(self, tags, negated=False):
        noun = self._new(words("noun", tags))
        draw = self._random()
        plural = bool(noun.english_forms) and self._random() < 0.2
        fitting = words("adjective", noun.tags, "objects")
        owner = None
        adjective = self._new(fitting) if self._random() < 0.35 else None
        determiner = "the"
        is_owned = not {"person", "animal", "building", "part"} & set(noun.tags)
        if "kin" in noun.tags or is_owned and draw < 0.15:
            determiner = self._pick(tuple(_POSSESSIVES))
        elif is_owned and draw < 0.3:  # "The doctor's old hat", "my sister's hat".
            owner = self._new(words("noun", ("person",)))
            owner = noun_phrase(owner, "my" if "kin" in owner.tags else "the")
        elif draw < 0.5 and not (plural and not is_owned):
            determiner = "" if plural or not noun.english_forms else "a"
        return noun_phrase(noun, determiner, adjective, plural, negated, owner)

    def _new(self, choice):
        """Picks a word that the sentence does not have yet, if there is one."""
        free = [word for word in choice if word not in self._used]
        word = self._pick(free) if free else None
        self._used.add(word)
        return word

    def _pick(self, items):
        return items[int(self._random() * len(items))]


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
