"""Draws two clauses, one of them the reason, obstacle or condition of the other."""

from __future__ import annotations

from keras_transformer.quickstart.grammar.clauses import Clauses
from keras_transformer.quickstart.grammar.lexicon import Noun, Situation
from keras_transformer.quickstart.grammar.plan import Clause, NounPhrase, Sentence

# Verbs whose reason may lie in the thing: "is selling the car because it is old".
_JUDGED = frozenset(
    "buy sell repair read wash clean carry need understand admire".split()
)
_OBSTACLES = frozenset("tired sick busy sad worried nervous disappointed".split())


class Reasons(Clauses):
    """Draws sentences with because, even though and if."""

    def reason(self) -> Sentence:
        """Two clauses: because, even though, if."""
        kind = self.pick(("because", "because", "even though", "if"))
        tense = "future" if kind == "if" else self.pick(("past", "past", "present"))
        main = self.clause(tense, rich=True)
        main.negated = main.negated and kind != "because"
        if main.modal == "can" and main.tense == "past":
            main.modal = ""
        second_first = kind == "if" or self.chance(0.15)
        if second_first:
            main.front = ""
        draw = self._random()
        if kind == "if" or draw < 0.3:
            second = self._situation(kind)
        elif draw < 0.75 or kind != "because":
            second = self._mood(main, kind)
        elif draw < 0.9 and self._quality(main) is not None:
            second = self._quality(main)
        else:
            second = self._wish(main)
        if not isinstance(second, Situation):
            # A pronoun needs its noun before it.
            second_first = False
        return Sentence(main, "", kind, second, second_first)

    def _situation(self, kind: str) -> Situation:
        """Returns a background clause, an unpleasant one after "even though"."""
        situations = self.lexicon.situations
        if kind == "even though":
            situations = [
                item for item in situations if item.english_subject in ("it", "there")
            ]
        return self.pick(situations)

    def _coreferent(self, phrase: NounPhrase) -> NounPhrase:
        """Returns the pronoun for a phrase named before."""
        if phrase.head is None:
            return phrase
        person = "3p" if phrase.plural else "3s"
        noun = phrase.head if isinstance(phrase.head, Noun) else None
        gender = noun.french_gender if noun is not None else phrase.gender
        return NounPhrase(
            person=person,
            gender=gender,
            plural=phrase.plural,
            determiner="none",
            antecedent=noun,
        )

    def _mood(self, main: Clause, kind: str) -> Clause | Situation:
        """Returns "he was tired" about the subject."""
        subject = main.subject
        noun = subject.head
        if isinstance(noun, Noun) and "person" not in noun.tags:
            return self._situation(kind)
        moods = self.vocabulary.moods
        if kind != "because":
            moods = [word for word in moods if word.english in _OBSTACLES]
        adjective = self.pick(moods)
        tense = "past" if main.tense == "past" else "present"
        return Clause(self._coreferent(subject), None, tense, adjective=adjective)

    def _quality(self, main: Clause) -> Clause | None:
        """Returns "it is old" about the object, or `None` if it has no quality."""
        theme, subject = main.theme, main.subject
        if theme is None or not theme.definite or theme.head is None or theme.plural:
            return None
        if not isinstance(theme.head, Noun) or main.verb.key not in _JUDGED:
            return None
        named = isinstance(subject.head, Noun) and "person" not in subject.head.tags
        if named or main.place is not None:
            return None
        fitting = [
            word
            for word in self.vocabulary.adjectives[theme.head]
            if word.kind == "quality"
        ]
        if theme.adjective in fitting or not fitting:
            return None
        theme.possessor = None
        tense = "past" if main.tense == "past" else "present"
        adjective = self.pick(fitting)
        return Clause(self._coreferent(theme), None, tense, adjective=adjective)

    def _wish(self, main: Clause) -> Clause | Situation:
        """Returns "he wants to repair the car" about the subject."""
        subject = self._coreferent(main.subject)
        noun = main.subject.head
        if isinstance(noun, Noun) and "person" not in noun.tags:
            return self._situation("because")
        clause = self.deed(subject)
        clause.tense = "past" if main.tense == "past" else "present"
        clause.modal = "want" if clause.tense == "past" else self.pick(("want", "must"))
        return clause
