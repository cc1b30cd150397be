"""Draws noun phrases."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from keras_transformer.quickstart.grammar.lexicon import (
    Adjective,
    Lexicon,
    Noun,
    load_lexicon,
)
from keras_transformer.quickstart.grammar.plan import NounPhrase
from keras_transformer.quickstart.grammar.vocabulary import vocabulary_of

Item = TypeVar("Item")

_NUMBERS = "two three four five six seven eight nine ten".split()
_POSSESSIVES = "my your his her our their".split()
_OWNABLE = frozenset(
    "thing pet text device container garment vehicle tool building".split()
)


class Phrases:
    """Draws words and noun phrases with one random generator.

    Args:
        seed: Seed of the draw.
        lexicon: Words to draw from; the corpus's own by default.
    """

    def __init__(self, seed: int | str, lexicon: Lexicon | None = None):
        # Only `random()` is used: its stream is the same in every Python version.
        self._random = random.Random(seed).random
        self.lexicon = lexicon or load_lexicon()
        self.vocabulary = vocabulary_of(self.lexicon)

    def pick(self, items: Sequence[Item]) -> Item:
        """Returns one of `items`."""
        return items[int(self._random() * len(items))]

    def chance(self, probability: float) -> bool:
        """Returns whether an event of this probability happens."""
        return self._random() < probability

    def person_phrase(self, pronouns: float = 0.0, rich: bool = True) -> NounPhrase:
        """Returns a phrase for people: a pronoun, a name or a noun."""
        if self.chance(pronouns):
            return self.pronoun()
        if self.chance(0.15):
            name = self.pick(self.lexicon.names)
            return NounPhrase(name, gender=name.gender)
        return self.noun_phrase(self.vocabulary.people, rich=rich)

    def pronoun(self) -> NounPhrase:
        """Returns "I", "you", "he", "she", "we" or "they"."""
        who = self.pick(("1s", "2s", "3s", "3s", "3s", "1p", "3p"))
        gender = "f" if who == "3s" and self.chance(0.5) else "m"
        return NounPhrase(
            person=who, gender=gender, determiner="none", plural=who[1] == "p"
        )

    def noun_phrase(self, nouns: Sequence[Noun], rich: bool = True) -> NounPhrase:
        """Returns a definite, indefinite, possessed or counted noun."""
        noun = self.pick(nouns)
        is_person = "person" in noun.tags
        phrase = NounPhrase(noun)
        if "mass" in noun.tags:
            phrase.determiner = "the" if self.chance(0.3) else "none"
        elif "kin" in noun.tags:
            phrase.determiner = self.pick(_POSSESSIVES)
            phrase.plural = "one" not in noun.tags and self.chance(0.15)
        else:
            phrase.plural = self.chance(0.2)
            self._determine(phrase, noun, is_person)
        if rich and self.chance(0.4) and "kin" not in noun.tags:
            phrase.adjective = self._adjective(noun)
        return phrase

    def _determine(self, phrase: NounPhrase, noun: Noun, is_person: bool) -> None:
        draw = self._random()
        ownable = noun.tags & _OWNABLE
        if draw < 0.5 or is_person and draw < 0.8:
            phrase.determiner = "the"
        elif draw < 0.65 and ownable:
            phrase.determiner = self.pick(_POSSESSIVES)
        elif draw < 0.75 and ownable:
            phrase.possessor = self._possessor()
        elif draw < 0.85 and phrase.plural and not is_person:
            phrase.determiner = "none"
        elif phrase.plural:
            phrase.determiner = self.pick(_NUMBERS[: 2 if is_person else 9])
        else:
            phrase.determiner = "a"

    def _possessor(self) -> NounPhrase:
        if self.chance(0.4):
            name = self.pick(self.lexicon.names)
            return NounPhrase(name, gender=name.gender)
        noun = self.pick(self.vocabulary.people)
        determiner = self.pick(_POSSESSIVES) if "kin" in noun.tags else "the"
        return NounPhrase(noun, determiner=determiner)

    def _adjective(self, noun: Noun) -> Adjective | None:
        fitting = self.vocabulary.adjectives[noun]
        return self.pick(fitting) if fitting else None
