"""Says a plan in French.

Questions use "est-ce que"; one plain space stands before a question mark. Participles
agree with the subject after "être" and with a direct object that comes before.
"""

from __future__ import annotations

from keras_transformer.quickstart.grammar import french_forms as forms
from keras_transformer.quickstart.grammar.french_phrases import (
    contract,
    is_feminine,
    noun_phrase,
    prepositional,
)
from keras_transformer.quickstart.grammar.lexicon import Situation
from keras_transformer.quickstart.grammar.plan import (
    Clause,
    NounPhrase,
    Relative,
    Sentence,
    person,
)

_CONJUNCTIONS = {"because": "parce que", "even though": "même si", "if": "si"}

_QUESTIONS = {
    "yes-no": "est-ce que",
    "what": "qu'est-ce que",
    "whom": "qui est-ce que",
    "where": "où est-ce que",
    "where to": "où est-ce que",
    "when": "quand est-ce que",
    "why": "pourquoi est-ce que",
}

_SUBJECTS = {"1s": "je", "2s": "tu", "1p": "nous"}

_REFLEXIVES = {"1s": "me", "2s": "te", "3s": "se", "1p": "nous", "3p": "se"}

_CLITICS = {"1s": "me", "2s": "te", "1p": "nous"}


def say(sentence: Sentence) -> str:
    """Returns the French sentence of a plan."""
    main, end = sentence.main, "."
    if sentence.question == "who":
        text, end = f"qui {_predicate(main, '3s', main.subject)}", " ?"
    elif sentence.question:
        text, end = forms.elide(_QUESTIONS[sentence.question], clause(main)), " ?"
    else:
        text = clause(main)
    if sentence.second is not None:
        text = _combine(text, sentence)
    return text[0].upper() + text[1:] + end


def _combine(main: str, sentence: Sentence) -> str:
    second, conjunction = sentence.second, sentence.conjunction
    if conjunction == "in order to":
        return f"{main} pour {infinitive(second)}"
    if conjunction == "but":
        return f"{main}, mais {clause(second)}"
    if conjunction == "and":
        return f"{main} et {clause(second)}"
    if isinstance(second, Situation):
        past = sentence.main.tense == "past"
        verb = second.french_past if past else second.french_present
        said = f"{second.french_subject} {verb} {second.french_rest}".strip()
    else:
        said = clause(second)
    said = forms.elide(_CONJUNCTIONS[conjunction], said)
    return f"{said}, {main}" if sentence.second_first else f"{main} {said}"


def clause(plan: Clause) -> str:
    """Returns a statement."""
    predicate = _predicate(plan, person(plan.subject), plan.subject)
    text = _with_subject(plan.subject, predicate)
    if plan.front == "time":
        return f"{plan.time.french}, {text}"
    return f"{_place(plan)}, {text}" if plan.front == "place" else text


def _with_subject(subject: NounPhrase, predicate: str) -> str:
    if subject.head is not None:
        return f"{_with_relative(subject, noun_phrase(subject))} {predicate}"
    word = _SUBJECTS.get(subject.person)
    if word is None:
        word = "elle" if is_feminine(subject) else "il"
        word += "s" * (subject.person == "3p")
    return forms.elide(word, predicate)


def _with_relative(phrase: NounPhrase, text: str) -> str:
    if phrase.relative is None:
        return text
    return f"{text} {_relative(phrase, phrase.relative)}"


def infinitive(plan: Clause) -> str:
    """Returns "acheter du pain", "la voir"."""
    _, head, rest = forms.parts(plan.verb)
    return _join([_attach(_clitic(plan, "3s"), head), rest, *_tail(plan)])


def _predicate(
    plan: Clause, who: str, subject: NounPhrase, before: NounPhrase | None = None
) -> str:
    """Returns the clause after its subject; `before` is a direct object before it."""
    clitic = _clitic(plan, who)
    finite, middle, after = _verb_words(plan, who)
    negative = "pas" if plan.negated else ""
    adverb = plan.frequency.french if plan.frequency else ""
    if adverb == "jamais":
        negative, adverb = adverb, ""
    if plan.modal:
        group, after = finite, [*middle, _attach(clitic, after[0])]
    else:
        group, after = _attach(clitic, finite), [*middle, *after]
    if negative:
        group = forms.elide("ne", group)
    if _is_compound(plan):
        after[-1] = _agreement(plan, after[-1], subject, before)
    rest = forms.parts(plan.verb)[2] if plan.verb and not plan.passive else ""
    return _join([group, negative, adverb, *after, rest, *_tail(plan)])


def _is_compound(plan: Clause) -> bool:
    if plan.verb is None or plan.modal:
        return False
    simple_past = plan.tense == "past" and bool(plan.verb.german_preterite)
    return plan.passive or plan.tense in ("past", "pluperfect") and not simple_past


def _agreement(
    plan: Clause, participle: str, subject: NounPhrase, before: NounPhrase | None
) -> str:
    controller = None
    if plan.passive or plan.verb.french_auxiliary == "être":
        controller = subject
    elif before is not None:
        controller = before
    elif _is_direct_clitic(plan):
        controller = plan.theme
    if controller is None:
        return participle
    return forms.agree(participle, is_feminine(controller), controller.plural)


def _verb_words(plan: Clause, who: str) -> tuple[str, list[str], list[str]]:
    """Returns the finite verb, and the words after it; a participle is the last."""
    verb, tense = plan.verb, plan.tense
    if plan.modal:
        name = forms.parts(verb)[1]
        if tense == "past" and plan.modal != "want":
            done = {"must": "dû", "can": "pu"}[plan.modal]
            return forms.present("avoir", who), [done], [name]
        conjugate = forms.imperfect if tense == "past" else forms.present
        return conjugate(plan.modal, who), [], [name]
    if plan.passive:
        participle = [forms.participle(verb)]
        if tense == "future":
            return forms.future("être", who), [], participle
        return forms.present("avoir", who), ["été"], participle
    if verb is None:
        if tense == "future":
            return forms.future("être", who), [], []
        conjugate = forms.imperfect if tense == "past" else forms.present
        return conjugate("être", who), [], []
    if tense == "future":
        return forms.verb_future(verb, who), [], []
    if _is_compound(plan):
        conjugate = forms.imperfect if tense == "pluperfect" else forms.present
        finite = conjugate(verb.french_auxiliary, who)
        return finite, [], [forms.participle(verb)]
    if tense == "past":
        return forms.verb_imperfect(verb, who), [], []
    return forms.verb_present(verb, who), [], []


def _preposition(plan: Clause) -> str:
    link = plan.verb.link if plan.verb is not None and not plan.passive else ""
    return link.split(":")[2] if link else ""


def _is_direct_clitic(plan: Clause) -> bool:
    theme = plan.theme
    if theme is None or theme.head is not None:
        return False
    return plan.verb.frame == "ditransitive" or not _preposition(plan)


def _is_indirect_clitic(plan: Clause) -> bool:
    theme = plan.theme
    if plan.verb is None or plan.verb.frame == "ditransitive":
        return plan.recipient is not None and plan.recipient.head is None
    # "Penser à" keeps its preposition: "je pense à lui".
    is_dative = _preposition(plan) == "à" and plan.verb.frame != "prepositional"
    return theme is not None and theme.head is None and is_dative


def _clitic(plan: Clause, who: str) -> str:
    if plan.verb is not None and forms.parts(plan.verb)[0]:
        return _REFLEXIVES[who]
    if _is_direct_clitic(plan):
        phrase = plan.theme
        if phrase.person in _CLITICS:
            return _CLITICS[phrase.person]
        if phrase.person == "3p":
            return "les"
        return "la" if is_feminine(phrase) else "le"
    if _is_indirect_clitic(plan):
        is_recipient = plan.verb.frame == "ditransitive"
        phrase = plan.recipient if is_recipient else plan.theme
        lui = "leur" if phrase.person == "3p" else "lui"
        return _CLITICS.get(phrase.person, lui)
    return ""


def _attach(clitic: str, verb: str) -> str:
    return forms.elide(clitic, verb) if clitic else verb


def _tail(plan: Clause) -> list[str]:
    """Returns what follows the verb."""
    words: list[str] = [plan.manner.french] if plan.manner else []
    if plan.adjective is not None:
        words.append(_adjective(plan))
    direct, indirect = _is_direct_clitic(plan), _is_indirect_clitic(plan)
    is_ditransitive = plan.verb is not None and plan.verb.frame == "ditransitive"
    if plan.theme is not None and not direct and (not indirect or is_ditransitive):
        preposition = "" if is_ditransitive else _preposition(plan)
        words.append(_theme(plan, preposition))
    if plan.recipient is not None and not indirect:
        words.append(prepositional("à", plan.recipient))
    if plan.agent is not None:
        words.append(prepositional("par", plan.agent))
    if plan.place is not None and plan.front != "place":
        words.append(_place(plan))
    if plan.time is not None and plan.front != "time":
        words.append(plan.time.french)
    return words + _complement(plan)


def _theme(plan: Clause, preposition: str) -> str:
    theme = plan.theme
    if preposition:
        return _with_relative(theme, prepositional(preposition, theme))
    never = plan.frequency is not None and plan.frequency.french == "jamais"
    text = noun_phrase(theme, negative=plan.negated or never)
    return _with_relative(theme, text)


def _complement(plan: Clause) -> list[str]:
    if plan.complement is None:
        return []
    if plan.verb.frame == "infinitive":
        said, preposition = infinitive(plan.complement), _preposition(plan)
        return [forms.elide(preposition, said) if preposition else said]
    conjunction = "que" if plan.verb.frame == "that" else "si"
    return [forms.elide(conjunction, clause(plan.complement))]


def _adjective(plan: Clause) -> str:
    subject = plan.subject
    form = forms.adjective(plan.adjective, is_feminine(subject), subject.plural)
    if plan.standard is None:
        return form
    return f"plus {form} {forms.elide('que', noun_phrase(plan.standard))}"


def _place(plan: Clause) -> str:
    there = plan.place
    directed = plan.verb.frame in ("motion", "travel")
    preposition = there.french_to if directed else there.french_at
    if there.french_gender == "-":
        return f"{preposition} {there.french}"
    article = "la" if there.french_gender == "f" else "le"
    return contract(preposition, article, there.french)


def _relative(phrase: NounPhrase, relative: Relative) -> str:
    plan = relative.clause
    if relative.role == "subject":
        return f"qui {_predicate(plan, person(phrase), phrase)}"
    who = person(plan.subject)
    predicate = _predicate(plan, who, plan.subject, before=phrase)
    return forms.elide("que", _with_subject(plan.subject, predicate))


def _join(words: list[str]) -> str:
    return " ".join(word for word in words if word)
