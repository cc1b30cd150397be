"""Says a plan in English, the source language of the generated corpus."""

from __future__ import annotations

import functools
import re

from keras_transformer.quickstart.grammar.lexicon import Noun, Situation, Verb
from keras_transformer.quickstart.grammar.plan import (
    Clause,
    NounPhrase,
    Relative,
    Sentence,
    person,
)

_SUBJECT = {"1s": "I", "2s": "you", "1p": "we", "3p": "they"}
_OBJECT = {"1s": "me", "2s": "you", "1p": "us", "3p": "them"}
_AN = re.compile("[aeiou]|honest")
_BE = {"1s": "am", "3s": "is"}
_MODALS = {
    ("can", False): "can",
    ("can", True): "could",
    ("must", False): "must",
    ("should", False): "should",
    ("would like", False): "would",
}
_QUESTIONS = {"what": "what", "whom": "whom", "when": "when", "why": "why"}
_QUESTIONS |= {"where": "where", "where to": "where"}


def say(sentence: Sentence) -> str:
    """Returns the English sentence of a plan."""
    if sentence.question:
        words = _question(sentence.main, sentence.question)
        text, end = " ".join(words), "?"
    else:
        text, end = " ".join(clause(sentence.main)), "."
    if sentence.second is not None:
        text = _combine(text, sentence)
    return text[0].upper() + text[1:] + end


def _combine(main: str, sentence: Sentence) -> str:
    second, conjunction = sentence.second, sentence.conjunction
    if isinstance(second, Situation):
        said = f"{second.english_subject} {second.english_present}"
        if sentence.main.tense == "past":
            said = f"{second.english_subject} {second.english_past}"
    elif conjunction == "in order to":
        said = " ".join(infinitive(second))
    else:
        said = " ".join(clause(second))
    if sentence.second_first:
        return f"{conjunction} {said}, {main}"
    comma = "," if conjunction in ("but", "and") else ""
    return f"{main}{comma} {conjunction} {said}"


def clause(plan: Clause) -> list[str]:
    """Returns the words of a statement."""
    auxiliary, rest = _verb_words(plan, person(plan.subject))
    words = [noun_phrase(plan.subject, "subject")]
    if auxiliary:
        words.append(auxiliary)
        words += _negation_and_frequency(plan)
    elif plan.frequency:
        words.append(plan.frequency.english)
    words += [rest, *_tail(plan)]
    fronted = _fronted(plan)
    return ([fronted + ","] if fronted else []) + [word for word in words if word]


def infinitive(plan: Clause) -> list[str]:
    """Returns the words after "to"."""
    return [plan.verb.english, *_tail(plan)]


def _question(plan: Clause, kind: str) -> list[str]:
    if kind == "who":
        auxiliary, rest = _verb_words(plan, "3s")
        words = ["who", auxiliary, *_negation_and_frequency(plan), rest]
        return [word for word in words + _tail(plan) if word]
    auxiliary, rest = _verb_words(plan, person(plan.subject), inverted=True)
    words = [auxiliary, noun_phrase(plan.subject, "subject")]
    words += [*_negation_and_frequency(plan), rest, *_tail(plan)]
    if kind != "yes-no":
        words.insert(0, _QUESTIONS[kind])
    return [word for word in words if word]


def _negation_and_frequency(plan: Clause) -> list[str]:
    words = ["not"] if plan.negated and plan.modal != "can" else []
    if plan.negated and plan.modal == "can":
        words = ["not"] if plan.tense == "past" else []
    return words + ([plan.frequency.english] if plan.frequency else [])


def _tail(plan: Clause) -> list[str]:
    """Returns what follows the verb: objects, manner, place, time, complement."""
    words: list[str] = []
    verb, link = plan.verb, ""
    if verb is not None and verb.link and not plan.passive:
        link = verb.link.split(":")[0]
    if plan.adjective is not None:
        words.append(_predicate(plan))
    if plan.theme is not None:
        if link and verb.frame != "ditransitive":
            words.append(link)
        words.append(noun_phrase(plan.theme, "object"))
    if plan.recipient is not None:
        words += ["to", noun_phrase(plan.recipient, "object")]
    if plan.agent is not None:
        words += ["by", noun_phrase(plan.agent, "object")]
    if plan.manner is not None:
        words.append(plan.manner.english)
    if plan.place is not None and plan.front != "place":
        words.append(place(plan))
    if plan.time is not None and plan.front != "time":
        words.append(plan.time.english)
    if plan.theme is not None and plan.theme.relative is not None:
        words.append(_relative(plan.theme.relative))
    return words + _complement(plan)


def _complement(plan: Clause) -> list[str]:
    if plan.complement is None:
        return []
    if plan.verb.frame == "infinitive":
        return ["to", *infinitive(plan.complement)]
    return [plan.verb.frame, *clause(plan.complement)]


def _predicate(plan: Clause) -> str:
    adjective = plan.adjective
    if plan.standard is None:
        return adjective.english
    compared = adjective.english_comparative or f"more {adjective.english}"
    return f"{compared} than {noun_phrase(plan.standard, 'object')}"


def _relative(relative: Relative) -> str:
    plan = relative.clause
    if relative.role == "object":
        return " ".join(["that", *clause(plan)])
    auxiliary, rest = _verb_words(plan, person(plan.subject))
    words = ["who", auxiliary, *_negation_and_frequency(plan), rest, *_tail(plan)]
    return " ".join(word for word in words if word)


def _fronted(plan: Clause) -> str:
    if plan.front == "time":
        return plan.time.english
    return place(plan) if plan.front == "place" else ""


def place(plan: Clause) -> str:
    """Returns "in the park", "to Berlin"."""
    there = plan.place
    preposition = there.english_to if is_motion(plan.verb) else there.english_at
    article = "" if there.german_gender == "-" else "the "
    return f"{preposition} {article}{there.english}"


def is_motion(verb: Verb) -> bool:
    """Whether the verb's place is where it leads."""
    return verb.frame in ("motion", "travel")


def _verb_words(plan: Clause, who: str, inverted: bool = False) -> tuple[str, str]:
    """Returns the auxiliary (or "") and the rest of the verb."""
    base, past, participle, ing = _forms(plan.verb)
    wants_do = inverted or plan.negated
    be = _BE.get(who, "are") if plan.tense != "past" else _was(who)
    if plan.passive:
        if plan.tense == "future":
            return "will", f"be {participle}"
        return be, participle
    if plan.modal:
        return _modal_words(plan, who, base, wants_do)
    if plan.tense == "future":
        return "will", base
    if plan.tense == "pluperfect":
        return "had", participle
    if plan.verb is None:
        return be, ""
    if plan.tense == "present" and plan.verb.aspect != "state":
        return be, ing
    if plan.tense == "past":
        return ("did", base) if wants_do else ("", past)
    if wants_do:
        return ("does" if who == "3s" else "do"), base
    return "", third_person(base) if who == "3s" else base


def _modal_words(plan: Clause, who: str, base: str, wants_do: bool) -> tuple[str, str]:
    past = plan.tense == "past"
    if plan.modal == "want":
        if wants_do:
            helper = "did" if past else "does" if who == "3s" else "do"
            return helper, f"want to {base}"
        return (
            "",
            f"{'wanted' if past else 'wants' if who == '3s' else 'want'} to {base}",
        )
    if plan.modal == "must" and past:
        return ("did", f"have to {base}") if wants_do else ("", f"had to {base}")
    word = _MODALS[plan.modal, past]
    if plan.modal == "can" and plan.negated and not past:
        word = "cannot"
    return word, f"like to {base}" if plan.modal == "would like" else base


def _was(who: str) -> str:
    return "was" if who in ("1s", "3s") else "were"


@functools.cache
def _forms(verb: Verb | None) -> tuple[str, str, str, str]:
    """Returns base, past, participle and -ing form."""
    if verb is None:
        return "be", "", "been", "being"
    base, given = verb.english, [form for form in verb.english_forms.split(",") if form]
    head, _, particle = base.partition(" ")
    particle = f" {particle}" if particle else ""
    if head.endswith("e"):
        past = head + "d"
    elif head.endswith("y") and head[-2] not in "aeiou":
        past = head[:-1] + "ied"
    else:
        past = head + "ed"
    ing = (head[:-1] if head.endswith("e") else head) + "ing"
    regular = [past + particle, past + particle, ing + particle]
    return base, *(given + regular[len(given) :])


def third_person(base: str) -> str:
    """Returns the third person singular of the present."""
    head, space, particle = base.partition(" ")
    return _add_s(head) + space + particle


@functools.cache
def _add_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")


def noun_phrase(phrase: NounPhrase, role: str) -> str:
    """Returns the phrase as "subject" or "object"."""
    if phrase.head is None:
        return _pronoun(phrase, role)
    if not isinstance(phrase.head, Noun):
        return phrase.head.english
    words = [phrase.adjective.english] if phrase.adjective else []
    words.append(noun_form(phrase.head, phrase.plural))
    if phrase.possessor is not None:
        words.insert(0, noun_phrase(phrase.possessor, "object") + "'s")
    elif phrase.determiner == "a":
        words.insert(0, "an" if _AN.match(words[0]) else "a")
    elif phrase.determiner != "none":
        is_instrument = phrase.determiner == "instrument"
        words.insert(0, "the" if is_instrument else phrase.determiner)
    if phrase.relative is not None and role == "subject":
        words.append(_relative(phrase.relative))
    return " ".join(words)


def noun_form(noun: Noun, plural: bool) -> str:
    """Returns the singular or the plural."""
    if not plural:
        return noun.english
    return noun.english_plural or _add_s(noun.english)


def _pronoun(phrase: NounPhrase, role: str) -> str:
    if phrase.person == "3s":
        if phrase.antecedent is not None and "person" not in phrase.antecedent.tags:
            return "it"
        if role == "subject":
            return "he" if phrase.gender == "m" else "she"
        return "him" if phrase.gender == "m" else "her"
    return (_SUBJECT if role == "subject" else _OBJECT)[phrase.person]
