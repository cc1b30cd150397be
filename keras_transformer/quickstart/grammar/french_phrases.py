"""French noun phrases: article, adjective and noun, contracted and elided, pronouns."""

from __future__ import annotations

from keras_transformer.quickstart.grammar import french_forms as forms
from keras_transformer.quickstart.grammar.lexicon import Noun
from keras_transformer.quickstart.grammar.plan import NounPhrase

_NUMBERS = {
    "two": "deux",
    "three": "trois",
    "four": "quatre",
    "five": "cinq",
    "six": "six",
    "seven": "sept",
    "eight": "huit",
    "nine": "neuf",
    "ten": "dix",
}

# Masculine singular, feminine singular, plural.
_POSSESSIVES = {
    "my": ("mon", "ma", "mes"),
    "your": ("ton", "ta", "tes"),
    "his": ("son", "sa", "ses"),
    "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"),
    "their": ("leur", "leur", "leurs"),
}

_STRESSED = {"1s": "moi", "2s": "toi", "1p": "nous"}


def noun_phrase(phrase: NounPhrase, negative: bool = False) -> str:
    """Returns a noun or a name without a relative clause."""
    if not isinstance(phrase.head, Noun):
        return phrase.head.french
    text, article = _noun_and_adjective(phrase), _article(phrase)
    if article is not None:
        text = forms.elide(article, text)
    elif negative and phrase.determiner in ("a", "none"):
        text = forms.elide("de", text)
    elif phrase.determiner == "none":
        text = _partitive(phrase, text)
    elif phrase.determiner == "a":
        text = f"{'une' if is_feminine(phrase) else 'un'} {text}"
    elif phrase.determiner in _NUMBERS:
        text = f"{_NUMBERS[phrase.determiner]} {text}"
    else:
        text = f"{_possessive(phrase, text)} {text}"
    return text + _owner(phrase)


def prepositional(preposition: str, phrase: NounPhrase) -> str:
    """Returns preposition and phrase: "au boulanger", "d'Anna", "avec elle"."""
    if phrase.head is None:
        stressed = _STRESSED.get(phrase.person)
        if stressed is None and phrase.person == "3p":
            stressed = "elles" if is_feminine(phrase) else "eux"
        elif stressed is None:
            stressed = "elle" if is_feminine(phrase) else "lui"
        return forms.elide(preposition, stressed)
    if not isinstance(phrase.head, Noun):
        return forms.elide(preposition, phrase.head.french)
    article = _article(phrase)
    if article is not None:
        return contract(preposition, article, _noun_and_adjective(phrase)) + _owner(
            phrase
        )
    if phrase.determiner == "none" and preposition == "de":
        return forms.elide("de", _noun_and_adjective(phrase))
    return forms.elide(preposition, noun_phrase(phrase))


def _article(phrase: NounPhrase) -> str | None:
    """Returns "le", "la" or "les" of a phrase that has one."""
    is_definite = phrase.determiner in ("the", "instrument")
    if phrase.possessor is None and not is_definite:
        return None
    if phrase.plural:
        return "les"
    return "la" if is_feminine(phrase) else "le"


def contract(preposition: str, article: str, text: str) -> str:
    """Returns "au marché", "du pain", "des", "à l'école", "dans la cuisine"."""
    vowel = forms.starts_with_vowel(text)
    joined = {"de": {"le": "du", "les": "des"}, "à": {"le": "au", "les": "aux"}}
    contracted = joined.get(preposition, {}).get(article)
    if contracted and (article == "les" or not vowel):
        return f"{contracted} {text}"
    return f"{preposition} {forms.elide(article, text)}".strip()


def _partitive(phrase: NounPhrase, text: str) -> str:
    if not phrase.plural:
        return contract("de", "la" if is_feminine(phrase) else "le", text)
    # "Des fleurs", but "de belles fleurs".
    if phrase.adjective is not None and phrase.adjective.french_position == "pre":
        return forms.elide("de", text)
    return f"des {text}"


def _possessive(phrase: NounPhrase, text: str) -> str:
    masculine, feminine, plural = _POSSESSIVES[phrase.determiner]
    if phrase.plural:
        return plural
    use_feminine = is_feminine(phrase) and not forms.starts_with_vowel(text)
    return feminine if use_feminine else masculine


def _owner(phrase: NounPhrase) -> str:
    if phrase.possessor is None:
        return ""
    return " " + prepositional("de", phrase.possessor)


def _noun_and_adjective(phrase: NounPhrase) -> str:
    noun = forms.noun(phrase.head, phrase.plural)
    if phrase.adjective is None:
        return noun
    before = phrase.adjective.french_position == "pre"
    form = forms.adjective(
        phrase.adjective,
        is_feminine(phrase),
        phrase.plural,
        noun if before else "",
    )
    return f"{form} {noun}" if before else f"{noun} {form}"


def is_feminine(phrase: NounPhrase) -> bool:
    """Whether what agrees with the phrase is feminine."""
    if phrase.head is None:
        noun = phrase.antecedent
        return (noun.french_gender if noun is not None else phrase.gender) == "f"
    head = phrase.head
    return (head.french_gender if isinstance(head, Noun) else head.gender) == "f"
