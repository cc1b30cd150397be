"""What a generated sentence says, before it is put into any language."""

from __future__ import annotations

import dataclasses

from keras_transformer.quickstart.grammar.lexicon import (
    Adjective,
    Adverb,
    Name,
    Noun,
    Place,
    Situation,
    Verb,
)

# First, second (informal, singular) and third person; singular and plural.
PERSONS = ("1s", "2s", "3s", "1p", "3p")


@dataclasses.dataclass(eq=False, slots=True)
class NounPhrase:
    """A noun phrase, a name or a pronoun.

    Attributes:
        head: Noun or name; `None` for a pronoun.
        plural: Whether the noun is plural.
        determiner: "the", "a", "none", "instrument" (the one of "play the piano"), a
            number ("two") or a possessive ("my"); unused when there is a `possessor`.
        adjective: Attribute, or `None`.
        possessor: Owner ("the teacher's", "Anna's"), or `None`.
        relative: Relative clause, or `None`.
        person: One of `PERSONS`, of a pronoun.
        gender: "m" or "f", of a pronoun for a person.
        antecedent: Noun that a pronoun stands for, where the sentence names it.
    """

    head: Noun | Name | None = None
    plural: bool = False
    determiner: str = "the"
    adjective: Adjective | None = None
    possessor: NounPhrase | None = None
    relative: Relative | None = None
    person: str = "3s"
    gender: str = "m"
    antecedent: Noun | None = None

    @property
    def definite(self) -> bool:
        """Whether the hearer knows which one: it moves German objects to the left."""
        if isinstance(self.head, Noun) and self.possessor is None:
            return self.determiner in DEFINITE
        return True


DEFINITE = frozenset(("the", "my", "your", "his", "her", "our", "their"))


def person(phrase: NounPhrase) -> str:
    """Returns the person that the verb agrees with."""
    if phrase.head is None:
        return phrase.person
    return "3p" if phrase.plural else "3s"


@dataclasses.dataclass(eq=False, slots=True)
class Clause:
    """A clause.

    Attributes:
        subject: Subject; unused in an infinitive clause except for its person.
        verb: Verb, or `None` for "to be" with an `adjective`.
        tense: "present", "habitual", "past", "pluperfect" or "future".
        modal: "can", "must", "want", "should", "would like" or "".
        negated: Whether the clause is negated.
        passive: Whether the object is the subject; `agent` may name who acts.
        theme: Direct object, German dative object or prepositional object.
        recipient: To whom something is given or said, of a ditransitive verb.
        standard: What a comparative compares with.
        front: "time", "place" or "": the phrase before the subject.
        complement: Clause that the verb takes ("that ...", "whether ...", "to ...").
    """

    subject: NounPhrase
    verb: Verb | None = None
    tense: str = "past"
    modal: str = ""
    negated: bool = False
    passive: bool = False
    agent: NounPhrase | None = None
    theme: NounPhrase | None = None
    recipient: NounPhrase | None = None
    adjective: Adjective | None = None
    standard: NounPhrase | None = None
    time: Adverb | None = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    place: Place | None = None
    front: str = ""
    complement: Clause | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Relative:
    """A relative clause; `role` is its head's part in it: "subject" or "object"."""

    clause: Clause
    role: str


@dataclasses.dataclass(eq=False, slots=True)
class Sentence:
    """A whole sentence.

    Attributes:
        main: Main clause.
        question: "" for a statement, "yes-no", or one of "who", "what", "whom",
            "where", "where to", "when", "why": the part asked for is missing.
        conjunction: "because", "even though", "if", "but", "and", "in order to" or "".
        second: The clause or situation that `conjunction` adds, or `None`.
        second_first: Whether the subordinate clause comes before the main clause.
    """

    main: Clause
    question: str = ""
    conjunction: str = ""
    second: Clause | Situation | None = None
    second_first: bool = False
