"""Draws clauses: a verb, whom and what it takes, how, where and when."""

from __future__ import annotations

from collections.abc import Sequence

from keras_transformer.quickstart.grammar.lexicon import Verb
from keras_transformer.quickstart.grammar.phrases import Phrases
from keras_transformer.quickstart.grammar.plan import Clause, NounPhrase

_ACTING = ("transitive", "dative", "ditransitive", "intransitive", "prepositional")
FINITE = (*_ACTING, "transitive", "transitive", "motion")
_MODALS = {
    "past": ("want", "must", "can"),
    "present": ("can", "must", "want", "should", "would like"),
}
# What nobody does again and again.
_ONCE = frozenset("break faint steal arrest solve move build".split())
_MAKING = frozenset(("buy", "bake", "build", "solve"))


class Clauses(Phrases):
    """Draws clauses."""

    def clause(
        self, tense: str = "", frames: Sequence[str] = FINITE, rich: bool = True
    ) -> Clause:
        """Returns a finite clause; `rich` allows adverbs, places and negation."""
        tense = tense or self.pick(("past", "past", "present", "habitual", "future"))
        verb = self._verb(self.pick(frames), tense)
        while tense == "future" and verb.german_preterite:
            verb = self._verb(self.pick(frames), tense)
        clause = Clause(self._subject(verb), verb, tense)
        # "Plays the piano every day" needs the day: bare habits sound unfinished.
        if verb.aspect == "state" and tense == "habitual":
            clause.tense = "present"
        if rich and self.chance(0.15) and _takes_modal(verb, tense):
            self._modal(clause)
        self._objects(clause)
        self._modify(clause, rich)
        return clause

    def _verb(self, frame: str, tense: str) -> Verb:
        while True:
            verb = self.pick(self.vocabulary.verbs[frame])
            if tense == "present" and verb.aspect == "event":
                continue
            if tense != "habitual" or verb.key not in _ONCE:
                return verb

    def _subject(self, verb: Verb) -> NounPhrase:
        if "person" in verb.subjects and self.chance(0.85):
            return self.person_phrase(pronouns=0.25)
        phrase = self.noun_phrase(self.vocabulary.subjects[verb])
        if phrase.determiner == "none":
            phrase.determiner = "the"
        return phrase

    def _modal(self, clause: Clause) -> None:
        clause.modal = self.pick(_MODALS[clause.tense])
        if clause.tense == "past" and clause.modal == "can":
            clause.negated = True

    def _objects(self, clause: Clause) -> None:
        verb = clause.verb
        if verb.frame in ("transitive", "dative", "prepositional", "ditransitive"):
            clause.theme = self._theme(clause)
        if verb.frame == "ditransitive":
            clause.recipient = self._known_person(clause.subject)
        if verb.frame in ("motion", "travel", "located"):
            clause.place = self.pick(self.vocabulary.places[verb])

    def _theme(self, clause: Clause) -> NounPhrase:
        verb = clause.verb
        if verb.objects == {"instrument"}:
            nouns = self.vocabulary.objects[verb]
            return NounPhrase(self.pick(nouns), determiner="instrument")
        if "person" in verb.objects and self.chance(0.8):
            return self._known_person(clause.subject)
        phrase = self.noun_phrase(self.vocabulary.objects[verb])
        known = verb.frame in ("dative", "prepositional")
        is_person = "person" in phrase.head.tags
        if known and not phrase.definite or is_person and phrase.determiner == "none":
            phrase.determiner = "the"
        if verb.key in _MAKING and phrase.definite or mentions(phrase, clause.subject):
            phrase.determiner, phrase.possessor = "the", None
        if verb.key in ("bake", "build"):
            phrase.adjective = None
        is_one_time = verb.key in _MAKING or verb.aspect == "event"
        is_one_time &= verb.frame == "transitive" and not is_person
        if clause.tense == "habitual" and (is_one_time or not phrase.definite):
            # A habit is about things in general.
            phrase.possessor = None
            phrase.plural = "mass" not in phrase.head.tags
            phrase.determiner = "none"
        return phrase

    def _known_person(self, subject: NounPhrase) -> NounPhrase:
        while True:
            phrase = self.person_phrase(pronouns=0.25)
            same_pronoun = phrase.head is None and (
                subject.head is None
                and phrase.person == subject.person
                # Nobody says "I help us".
                or subject.head is None
                and phrase.person[0] == subject.person[0] != "3"
            )
            if phrase.head is not subject.head or phrase.head is None:
                if not same_pronoun and phrase.definite:
                    return phrase

    def _modify(self, clause: Clause, rich: bool) -> None:
        verb, theme = clause.verb, clause.theme
        if clause.tense == "habitual" or (rich and self.chance(0.4)):
            self._time(clause)
        if not rich:
            return
        can_negate = clause.modal not in ("must", "would like")
        if theme is not None:
            known = theme.definite or theme.determiner == "none"
            can_negate &= known or theme.determiner == "a"
            # After a preposition "no car" and "not a car" mean different things.
            can_negate &= theme.definite or not verb.link
            can_negate &= theme.definite or theme.adjective is None
        can_negate &= clause.frequency is None and clause.tense != "habitual"
        if can_negate and not clause.negated and self.chance(0.2):
            clause.negated = True
        if clause.negated or verb.frame in ("located", "travel"):
            return
        settled = theme is None or theme.definite
        settled &= clause.tense != "habitual"
        if verb.manners and settled and self.chance(0.3):
            clause.manner = self.pick(self.vocabulary.manners[verb])
        elif verb.places and clause.place is None and self.chance(0.5):
            clause.place = self.pick(self.vocabulary.places[verb])
            if clause.time is None and not clause.frequency and self.chance(0.2):
                clause.front = "place"

    def _time(self, clause: Clause) -> None:
        if clause.verb is not None and clause.verb.aspect == "state":
            return
        if clause.modal and clause.tense == "present":
            tense = "future" if clause.modal != "can" else ""
        else:
            tense = clause.tense
        if not tense:
            return
        # Nobody says "not never" or "had to never".
        plain = clause.negated or clause.modal or clause.passive
        times = self.vocabulary.plain_times if plain else self.vocabulary.times
        adverb = self.pick(times[tense])
        if adverb.kind == "frequency":
            clause.frequency = adverb
            return
        clause.time = adverb
        if clause.tense != "present" and self.chance(0.35):
            clause.front = "time"

    def bare(self, tense: str, subject: NounPhrase, frames: Sequence[str]) -> Clause:
        """Returns a short clause with a given subject: for infinitives, relatives."""
        verb = self._verb(self.pick(frames), tense)
        while "person" not in verb.subjects:
            verb = self._verb(self.pick(frames), tense)
        clause = Clause(subject, verb, tense)
        self._objects(clause)
        return clause

    def deed(self, subject: NounPhrase) -> Clause:
        """Returns an infinitive clause."""
        clause = self.bare("present", subject, ("transitive", "ditransitive", "dative"))
        while clause.verb.aspect == "state" or "person" not in clause.verb.subjects:
            clause = self.bare("present", subject, ("transitive", "transitive"))
        return clause

    def copula(self, tense: str) -> Clause:
        """Returns a clause with an adjective, a third of them comparatives."""
        noun = self.pick(self.vocabulary.described)
        phrase = self.noun_phrase((noun,), rich=False)
        if not phrase.definite or "mass" in noun.tags:
            phrase.determiner = "the"
        adjective = self.pick(self.vocabulary.predicates[noun])
        clause = Clause(phrase, None, tense, adjective=adjective)
        if adjective.german_comparative != "-" and self.chance(0.35):
            others = self.vocabulary.alike[noun]
            clause.standard = self.noun_phrase(others, rich=False)
            other = clause.standard
            if not other.definite:
                other.determiner = "the"
            other.possessor = None
            if other.head is noun:
                clause.standard = None
        clause.negated = clause.standard is None and self.chance(0.2)
        return clause


def mentions(phrase: NounPhrase, other: NounPhrase) -> bool:
    """Whether the phrase or its owner is what `other` names."""
    heads = [phrase.head] + ([phrase.possessor.head] if phrase.possessor else [])
    return other.head is not None and other.head in heads


def _takes_modal(verb: Verb, tense: str) -> bool:
    return tense in _MODALS and verb.aspect == "action"
