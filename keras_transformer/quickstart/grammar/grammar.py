"""Draws sentence plans that make sense: who does what, to what, where, when and why.

The draw decides only what English shows; each language then says the plan by rule, so
that a target sentence is a function of the English one.
"""

from __future__ import annotations

from keras_transformer.quickstart.grammar.clauses import FINITE, mentions
from keras_transformer.quickstart.grammar.lexicon import Verb
from keras_transformer.quickstart.grammar.plan import (
    Clause,
    NounPhrase,
    Relative,
    Sentence,
)
from keras_transformer.quickstart.grammar.reasons import Reasons

_ASKED = {
    "what": ("transitive", "ditransitive"),
    "whom": ("transitive",),
    "where": ("transitive", "intransitive", "located"),
    "where to": ("motion", "travel"),
}


class Grammar(Reasons):
    """Draws sentence plans of every kind.

    Example:
        >>> english.say(Grammar(seed=1).sentence())
    """

    def sentence(self) -> Sentence:
        """Returns a plan of any kind."""
        return self.pick(_KINDS)(self)

    def simple(self) -> Sentence:
        """One clause."""
        return Sentence(self.clause())

    def predicate(self) -> Sentence:
        """ "The dog is tired", "the house was bigger than the church"."""
        return Sentence(self.copula(self.pick(("present", "past"))))

    def passive(self) -> Sentence:
        """ "The car was repaired by the mechanic"."""
        verb = self.pick(self.vocabulary.passive)
        subject = self.noun_phrase(self.vocabulary.objects[verb])
        if subject.determiner == "none" and subject.possessor is None:
            subject.determiner = "the"
        tense = self.pick(("past", "past", "future"))
        clause = Clause(subject, verb, tense, passive=True)
        if self.chance(0.6):
            clause.agent = self.person_phrase()
            if mentions(subject, clause.agent):
                clause.agent = None
        if self.chance(0.4):
            self._time(clause)
        if clause.agent is None and self.chance(0.25):
            clause.negated = True
        return Sentence(clause)

    def question(self) -> Sentence:
        """A question that is answered by yes or no."""
        clause = self.clause()
        clause.front = ""
        clause.negated = False
        if clause.modal == "can" and clause.tense == "past":
            clause.modal = ""
        if clause.frequency and clause.frequency.english == "never":
            clause.frequency = None
            clause.time = self.pick(self.vocabulary.plain_times["habitual"])
        return Sentence(clause, "yes-no")

    def asked(self) -> Sentence:
        """A question with a question word."""
        kind = self.pick(("who", "what", "whom", "where", "where to", "when", "why"))
        tense = self.pick(("past", "past", "future"))
        frames = _ASKED.get(kind, FINITE)
        clause = self.clause(tense, frames, rich=False)
        while kind in ("where", "what") and not _can_ask(clause, kind):
            clause = self.clause(tense, frames, rich=False)
        while kind == "whom" and "person" not in clause.verb.objects:
            clause = self.clause(tense, frames, rich=False)
        while kind == "who" and "person" not in clause.verb.subjects:
            clause = self.clause(tense, frames, rich=False)
        if clause.subject.determiner == "a":
            clause.subject.determiner = "the"
        if kind in ("what", "whom"):
            clause.theme = None
        elif kind in ("where", "where to"):
            clause.place = None
        elif kind == "who":
            # The verb agrees with "who".
            clause.subject = NounPhrase(person="3s", determiner="none")
        if kind not in ("when", "where") and self.chance(0.4):
            clause.time = self.pick(self.vocabulary.plain_times[tense])
        return Sentence(clause, kind)

    def reported(self) -> Sentence:
        """ "The teacher said that ...", "I do not know whether ..."."""
        verbs = self.vocabulary.verbs
        verb = self.pick(verbs["that"] + verbs["whether"])
        past = verb.aspect == "event" or self.chance(0.4)
        if verb.key == "hope":
            past = False
        subject = self.person_phrase(pronouns=0.4)
        clause = Clause(subject, verb, "past" if past else "present")
        clause.negated = verb.key == "know%whether"
        if past:
            inner = self._reported_past(verb)
        elif verb.key != "hope" and self.chance(0.3):
            inner = self.copula("present")
        else:
            inner = self.clause(self.pick(("past", "future", "present")))
            inner.front = ""
            if (inner.modal, inner.tense) == ("can", "past") or verb.key == "hope":
                inner.modal = ""
        if mentions(inner.subject, subject):
            inner.subject = self.pronoun()
        inner.negated = False
        clause.complement = inner
        return Sentence(clause)

    def _reported_past(self, verb: Verb) -> Clause:
        if verb.key != "notice" and self.chance(0.3):
            return self.copula("past")
        frames = tuple(frame for frame in FINITE if frame != "located")
        clause = self.clause("past", frames, rich=False)
        while clause.verb.german_preterite:
            clause = self.clause("past", frames, rich=False)
        clause.tense, clause.front, clause.time = "pluperfect", "", None
        return clause

    def undertaking(self) -> Sentence:
        """ "The baker forgot to open the door"."""
        verb = self.pick(self.vocabulary.verbs["infinitive"])
        tense = "past"
        if verb.aspect == "state":
            tense = "present"
        elif verb.key == "try" and self.chance(0.4):
            tense = "present"
        clause = Clause(self.person_phrase(pronouns=0.3), verb, tense)
        clause.complement = self.deed(clause.subject)
        if tense == "past" and self.chance(0.3):
            clause.time = self.pick(self.vocabulary.plain_times["past"])
            clause.front = "time"
        return Sentence(clause)

    def purpose(self) -> Sentence:
        """ "She went to the market in order to buy bread"."""
        clause = self.clause(
            self.pick(("past", "past", "future", "present")), ("motion",)
        )
        clause.negated = False
        if clause.modal == "can":
            clause.modal = ""
        return Sentence(clause, "", "in order to", self.deed(clause.subject))

    def coordination(self) -> Sentence:
        """ "The baker is sleeping, but the children are singing"."""
        tense = self.pick(("past", "present", "future"))
        main = self.clause(tense, rich=False)
        second = self.clause(tense, rich=False)
        if self.chance(0.5):
            main = self.clause(tense, rich=True)
        second.front = ""
        return Sentence(main, "", self.pick(("but", "and")), second)

    def described_subject(self) -> Sentence:
        """ "The man who bought the car is sleeping"."""
        clause = self.clause(rich=False)
        clause.front = ""
        while "person" not in clause.verb.subjects:
            clause = self.clause(rich=False)
        clause.subject = self._plain_person()
        self._relate(clause)
        return Sentence(clause)

    def described_object(self) -> Sentence:
        """ "The girl is reading the book that my sister bought"."""
        tense = self.pick(("past", "present"))
        clause = self.clause(tense, ("transitive",), rich=False)
        while not _takes_known_thing(clause.verb):
            clause = self.clause("past", ("transitive",), rich=False)
        noun = self.pick(self.vocabulary.objects[clause.verb])
        clause.theme = NounPhrase(noun, "mass" not in noun.tags and self.chance(0.3))
        clause.time, clause.frequency, clause.front = None, None, ""
        known = self.vocabulary.done_before[noun]
        verbs = [verb for verb in known if verb is not clause.verb]
        if not verbs:
            return Sentence(clause)
        verb = self.pick(verbs)
        subject = self.person_phrase(pronouns=0.4, rich=False)
        while subject.head is not None and subject.head is clause.subject.head:
            subject = self.person_phrase(pronouns=0.4, rich=False)
        inner = Clause(subject, verb, _before(clause.tense))
        clause.theme.relative = Relative(inner, "object")
        return Sentence(clause)

    def _plain_person(self) -> NounPhrase:
        noun = self.pick(self.vocabulary.strangers)
        return NounPhrase(noun, plural=self.chance(0.2))

    def _relate(self, main: Clause) -> None:
        phrase = main.subject
        tense = self.pick(("past", "past", "present"))
        frames = ("transitive", "transitive", "intransitive", "dative", "prepositional")
        clause = self.bare(tense, phrase, frames)
        while clause.theme is not None and clause.theme.head is phrase.head:
            clause = self.bare(tense, phrase, frames)
        if tense == "past" and not clause.verb.german_preterite:
            clause.tense = _before(main.tense)
        phrase.relative = Relative(clause, "subject")


# Drawn as often as they are listed.
_KINDS = (
    *[Grammar.simple] * 7,
    Grammar.predicate,
    *[Grammar.passive] * 2,
    *[Grammar.question] * 2,
    *[Grammar.asked] * 2,
    *[Grammar.reported] * 3,
    *[Grammar.undertaking] * 2,
    *[Grammar.purpose] * 2,
    *[Grammar.reason] * 5,
    *[Grammar.coordination] * 2,
    *[Grammar.described_subject] * 2,
    *[Grammar.described_object] * 2,
)


def _before(tense: str) -> str:
    """Returns the tense of what happened before a main clause in `tense`."""
    return "pluperfect" if tense == "past" else "past"


def _takes_known_thing(verb: Verb) -> bool:
    """Whether the object existed before; a cake does not before it is baked."""
    is_made = verb.key in ("bake", "build", "write")
    return not (is_made or verb.link or "person" in verb.objects)


def _can_ask(clause: Clause, kind: str) -> bool:
    if kind == "where":
        return bool(clause.verb.places)
    return "person" not in clause.verb.objects and not clause.verb.link.startswith(":")
