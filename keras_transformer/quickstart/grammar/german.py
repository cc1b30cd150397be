"""Says a plan in German.

The order of the middle field, from the left: pronouns, time, frequency, nouns that the
hearer knows (dative before accusative), "nicht", manner, place, new nouns, then what
belongs closest to the verb (prepositional object, direction, predicate).
"""

from __future__ import annotations

from keras_transformer.quickstart.grammar import german_forms as forms
from keras_transformer.quickstart.grammar.german_phrases import (
    contract,
    gender,
    noun_phrase,
    prepositional,
)
from keras_transformer.quickstart.grammar.lexicon import Noun, Situation
from keras_transformer.quickstart.grammar.plan import (
    Clause,
    NounPhrase,
    Relative,
    Sentence,
    person,
)

_CONJUNCTIONS = {"because": "weil", "even though": "obwohl", "if": "wenn"}

_COORDINATORS = {"but": "aber", "and": "und"}

_QUESTIONS = {
    "who": "wer",
    "what": "was",
    "whom": "wen",
    "where": "wo",
    "where to": "wohin",
    "when": "wann",
    "why": "warum",
}

_CASE_AT = "dat"

_CASES_TO = {"in": "acc", "an": "acc", "auf": "acc", "zu": "dat", "nach": "dat"}


def say(sentence: Sentence) -> str:
    """Returns the German sentence of a plan."""
    if sentence.question:
        text, end = _question(sentence.main, sentence.question), "?"
    else:
        text, end = main_clause(sentence.main, after=sentence.second_first), "."
    if sentence.second is not None:
        text = _combine(text, sentence)
    return text[0].upper() + text[1:] + end


def _combine(main: str, sentence: Sentence) -> str:
    second, conjunction = sentence.second, sentence.conjunction
    if conjunction == "in order to":
        return f"{main}, um {infinitive_clause(second)}"
    if conjunction in _COORDINATORS:
        comma = "," if conjunction == "but" else ""
        return f"{main}{comma} {_COORDINATORS[conjunction]} {main_clause(second)}"
    if isinstance(second, Situation):
        past = sentence.main.tense == "past"
        verb = second.german_past if past else second.german_present
        said = f"{second.german_subject} {second.german_rest} {verb}".replace("  ", " ")
    else:
        said = subordinate_clause(second)
    said = f"{_CONJUNCTIONS[conjunction]} {said}"
    return f"{said}, {main}" if sentence.second_first else f"{main}, {said}"


def main_clause(plan: Clause, after: bool = False) -> str:
    """Returns a clause with the verb second, or first if it comes `after` another."""
    finite, end = _verb_words(plan, person(plan.subject))
    subject = _subject(plan.subject)
    middle = _middle(plan)
    if after:
        words = [finite, *_inverted(plan, subject, middle)]
    elif plan.front:
        words = [_fronted(plan), finite, *_inverted(plan, subject, middle)]
    else:
        words = [subject, finite, *middle]
    return _join(words + end) + _after_field(plan)


def subordinate_clause(plan: Clause) -> str:
    """Returns a clause with the verb last."""
    subject = _subject(plan.subject)
    return _verb_last([subject, *_middle(plan)], plan, person(plan.subject))


def infinitive_clause(plan: Clause) -> str:
    """Returns "das Auto zu reparieren"."""
    words = _middle(plan)
    words.append(forms.infinitive(plan.verb, zu=True))
    return _join(words)


def _verb_last(words: list[str], plan: Clause, who: str) -> str:
    finite, end = _verb_words(plan, who, last=True)
    return _join([*words, *end, finite]) + _after_field(plan)


def _subject(phrase: NounPhrase) -> str:
    """Returns a subject; a relative clause in it ends with a comma."""
    text = noun_phrase(phrase, "nom")
    return text + relative(phrase, phrase.relative) + "," if phrase.relative else text


def _question(plan: Clause, kind: str) -> str:
    if kind == "who":
        finite, end = _verb_words(plan, "3s")
        return _join(["wer", finite, *_middle(plan), *end])
    finite, end = _verb_words(plan, person(plan.subject))
    subject = _subject(plan.subject)
    words = [finite, *_inverted(plan, subject, _middle(plan)), *end]
    if kind != "yes-no":
        words.insert(0, _QUESTIONS[kind])
    return _join(words) + _after_field(plan)


def _inverted(plan: Clause, subject: str, middle: list[str]) -> list[str]:
    """Returns the subject and the middle field after the finite verb.

    A pronoun goes before a subject that is a noun: "Gestern hat ihn der Arzt gesehen".
    """
    objects = (plan.theme, plan.recipient)
    count = _reflexive(plan) + sum(
        phrase is not None and phrase.head is None
        for phrase in objects
        if plan.verb is not None and plan.verb.frame != "prepositional"
    )
    if not isinstance(plan.subject.head, Noun):
        count = 0
    return [*middle[:count], subject, *middle[count:]]


def _middle(plan: Clause) -> list[str]:
    """Returns the middle field without the subject."""
    verb, theme = plan.verb, plan.theme
    case = "dat" if verb is not None and verb.frame == "dative" else "acc"
    is_prepositional = verb is not None and verb.frame == "prepositional"
    theme_text, theme_place = "", "new"
    if theme is not None:
        negative = plan.negated and not is_prepositional
        theme_text = _theme(plan, case, negative)
        theme_place = "close" if is_prepositional else _field(theme, case)
    recipient = plan.recipient
    recipient_text = noun_phrase(recipient, "dat") if recipient else ""
    frequency = plan.frequency.german if plan.frequency else ""
    words = [
        forms.REFLEXIVES[person(plan.subject)] if _reflexive(plan) else "",
        theme_text if theme_place == "pronoun" else "",
        recipient_text if recipient and recipient.head is None else "",
        plan.time.german if plan.time and plan.front != "time" else "",
        frequency if frequency != "nie" else "",
        recipient_text if recipient and recipient.head is not None else "",
        theme_text if theme_place == "known" else "",
        "nicht" if plan.negated and not _has_kein(plan) else "",
        frequency if frequency == "nie" else "",
        _agent(plan),
        plan.manner.german if plan.manner else "",
        _place(plan) if plan.front != "place" and not _directed(plan) else "",
        theme_text if theme_place == "new" else "",
        theme_text if theme_place == "close" else "",
        _place(plan) if plan.front != "place" and _directed(plan) else "",
        _predicate(plan),
    ]
    return [word for word in words if word]


def _theme(plan: Clause, case: str, negative: bool) -> str:
    theme = plan.theme
    if plan.verb.frame == "prepositional":
        preposition, case = plan.verb.link.split(":")[1].split()
        return prepositional(preposition, theme, case)
    return noun_phrase(theme, case, negative=negative)


def _field(theme: NounPhrase, case: str) -> str:
    if theme.head is None:
        return "pronoun"
    return "known" if theme.definite or case == "dat" else "new"


def _has_kein(plan: Clause) -> bool:
    theme = plan.theme
    if theme is None or plan.verb.frame == "prepositional":
        return False
    return not theme.definite and theme.determiner in ("a", "none")


def _reflexive(plan: Clause) -> bool:
    return plan.verb is not None and forms.parts(plan.verb)[0]


def _agent(plan: Clause) -> str:
    return prepositional("von", plan.agent, "dat") if plan.agent else ""


def _directed(plan: Clause) -> bool:
    return plan.verb is not None and plan.verb.frame in ("motion", "travel")


def _place(plan: Clause) -> str:
    there = plan.place
    if there is None:
        return ""
    directed = _directed(plan)
    preposition = there.german_to if directed else there.german_at
    if there.german_gender == "-":
        return f"{preposition} {there.german}"
    case = _CASES_TO[preposition] if directed else _CASE_AT
    article = forms.determiner("the", there.german_gender, case)
    return f"{contract(preposition, article)} {there.german}"


def _predicate(plan: Clause) -> str:
    if plan.adjective is None:
        return ""
    if plan.standard is None:
        return plan.adjective.german
    return plan.adjective.german_comparative


def _fronted(plan: Clause) -> str:
    return plan.time.german if plan.front == "time" else _place(plan)


def _after_field(plan: Clause) -> str:
    """Returns what follows the end of the clause, with its comma."""
    text = ""
    if plan.standard is not None:
        text = f" als {noun_phrase(plan.standard, 'nom')}"
    if plan.theme is not None and plan.theme.relative is not None:
        text += relative(plan.theme, plan.theme.relative)
    if plan.complement is None:
        return text
    if plan.verb.frame == "infinitive":
        return f"{text}, {infinitive_clause(plan.complement)}"
    conjunction = "dass" if plan.verb.frame == "that" else "ob"
    return f"{text}, {conjunction} {subordinate_clause(plan.complement)}"


def relative(phrase: NounPhrase, clause: Relative) -> str:
    """Returns ", der das Auto repariert" without the closing comma."""
    plan = clause.clause
    word_gender = gender(phrase)
    if clause.role == "subject":
        pronoun = forms.relative_pronoun(word_gender, "nom")
        return ", " + _verb_last([pronoun, *_middle(plan)], plan, person(phrase))
    case = "dat" if plan.verb.frame == "dative" else "acc"
    pronoun = forms.relative_pronoun(word_gender, case)
    words = [pronoun, _subject(plan.subject), *_middle(plan)]
    return ", " + _verb_last(words, plan, person(plan.subject))


def _verb_words(plan: Clause, who: str, last: bool = False) -> tuple[str, list[str]]:
    """Returns the finite verb and the words at the end of the clause."""
    verb, tense = plan.verb, plan.tense
    if verb is None:
        return _copula(tense, who)
    participle = verb.german_participle
    if plan.passive:
        if tense == "future":
            return forms.present("werden", who), [participle, "werden"]
        return forms.preterite("werden", who), [participle]
    if plan.modal:
        conjugate = forms.preterite if tense == "past" else forms.present
        return conjugate(plan.modal, who), [forms.infinitive(verb)]
    if tense == "future":
        return forms.present("werden", who), [forms.infinitive(verb)]
    if tense == "pluperfect":
        return forms.preterite(verb.german_auxiliary, who), [participle]
    if tense == "past":
        if verb.german_preterite:
            return forms.preterite(verb.german_preterite, who), []
        return forms.present(verb.german_auxiliary, who), [participle]
    prefix, finite = forms.parts(verb)[1], forms.verb_present(verb, who)
    if last:
        return prefix + finite, []
    return finite, [prefix.strip()] if prefix else []


def _copula(tense: str, who: str) -> tuple[str, list[str]]:
    if tense == "future":
        return forms.present("werden", who), ["sein"]
    conjugate = forms.preterite if tense == "past" else forms.present
    return conjugate("sein", who), []


def _join(words: list[str]) -> str:
    return " ".join(word for word in words if word)
