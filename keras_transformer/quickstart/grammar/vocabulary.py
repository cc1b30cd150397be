"""What goes with what: which nouns a verb takes, which adjectives a noun."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from keras_transformer.quickstart.grammar.lexicon import Adjective, Lexicon, Noun

# Nobody says "the coat was tried on by" or "my bread was baked".
_NO_PASSIVE = frozenset(("meet", "look at", "look for", "watch", "wear", "try on"))
_NO_PASSIVE |= {"drive", "carry", "play", "find"}
# What nobody says of a child.
_ADULT = frozenset("old experienced strict famous generous".split())
# What a relative clause says was done to a thing before.
_DONE_BEFORE = frozenset(
    "buy sell find lose hide steal borrow write bake repair wash clean paint build "
    "translate pack photograph forget break carry open close read".split()
)


class Vocabulary:
    """What goes with what, worked out once for a lexicon."""

    def __init__(self, lexicon: Lexicon):
        nouns, verbs = lexicon.nouns, lexicon.verbs
        self.people = select(nouns, {"person"})
        self.strangers = [noun for noun in self.people if "kin" not in noun.tags]
        self.verbs = {
            frame: [verb for verb in verbs if verb.frame == frame]
            for frame in {verb.frame for verb in verbs}
        }
        self.subjects = {verb: select(nouns, verb.subjects) for verb in verbs}
        self.objects = {verb: select(nouns, verb.objects) for verb in verbs}
        self.passive = [
            verb
            for verb in self.verbs["transitive"]
            if verb.aspect != "state"
            and not verb.link
            and "person" in verb.subjects
            and verb.key not in _NO_PASSIVE
        ]
        self.done_before = {
            noun: [
                verb
                for verb in self.passive
                if verb.key in _DONE_BEFORE and noun in self.objects[verb]
            ]
            for noun in nouns
        }
        self._describe(lexicon)
        self._modify(lexicon)

    def _describe(self, lexicon: Lexicon) -> None:
        words, nouns = lexicon.adjectives, lexicon.nouns
        self.adjectives = {
            noun: [
                word
                for word in words
                if _suits(word, noun) and word.kind != "predicate"
            ]
            for noun in nouns
        }
        self.predicates = {
            noun: [
                word
                for word in words
                if _suits(word, noun) and word.kind != "attribute"
            ]
            for noun in nouns
        }
        self.described = [noun for noun in nouns if self.predicates[noun]]
        self.alike = {
            noun: [
                other
                for other in nouns
                if other is not noun and _kind(other) == _kind(noun)
            ]
            or [noun]
            for noun in nouns
        }
        self.moods = [
            word
            for word in words
            if word.kind in ("state", "predicate")
            and "person" in word.nouns
            and word.english not in ("injured", "calm")
        ]

    def _modify(self, lexicon: Lexicon) -> None:
        self.places = {
            verb: [
                place
                for place in lexicon.places
                if place.tags & verb.places or place.english in verb.places
            ]
            for verb in lexicon.verbs
        }
        adverbs = lexicon.adverbs
        self.manners = {
            verb: [word for word in adverbs if word.english in verb.manners]
            for verb in lexicon.verbs
        }
        self.times = {
            tense: [word for word in adverbs if tense in word.tenses]
            for tense in ("past", "present", "habitual", "future")
        }
        self.plain_times = {
            tense: [word for word in words if word.kind == "time"]
            for tense, words in self.times.items()
        }


@functools.cache
def vocabulary_of(lexicon: Lexicon) -> Vocabulary:
    """Returns the vocabulary of a lexicon, worked out once per process."""
    return Vocabulary(lexicon)


def select(nouns: Sequence[Noun], tags: frozenset[str] | set[str]) -> list[Noun]:
    """Returns the nouns that have one of the tags or are named by one."""
    return [noun for noun in nouns if noun.tags & tags or noun.english in tags]


def _suits(word: Adjective, noun: Noun) -> bool:
    if "young" in noun.tags and word.english in _ADULT:
        return False
    return bool(word.nouns & noun.tags) or noun.english in word.nouns


def _kind(noun: Noun) -> str:
    """Returns the class within which things are compared."""
    kinds = "person animal vehicle garment furniture device container tool building "
    for kind in (kinds + "text food edible drink dish toy art plant idea").split():
        if kind in noun.tags:
            return kind
    return noun.english
