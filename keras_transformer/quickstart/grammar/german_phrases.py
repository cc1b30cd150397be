"""German noun phrases: determiner, adjective and noun in their case, pronouns."""

from __future__ import annotations

from keras_transformer.quickstart.grammar import german_forms as forms
from keras_transformer.quickstart.grammar.lexicon import Noun
from keras_transformer.quickstart.grammar.plan import NounPhrase

_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("in", "das"): "ins",
    ("an", "das"): "ans",
}


def gender(phrase: NounPhrase) -> str:
    """Returns "m", "f", "n", or "p" for a plural."""
    if phrase.plural:
        return "p"
    if phrase.head is None:
        # A girl is "sie" although "Mädchen" is neuter: a person keeps her own gender.
        noun = phrase.antecedent
        is_thing = noun is not None and "person" not in noun.tags
        return noun.german_gender if is_thing else phrase.gender
    return (
        phrase.head.german_gender
        if isinstance(phrase.head, Noun)
        else phrase.head.gender
    )


def noun_phrase(phrase: NounPhrase, case: str, negative: bool = False) -> str:
    """Returns the phrase without its relative clause.

    `negative` turns "ein" or no article into "kein".
    """
    if phrase.head is None:
        return forms.pronoun(phrase.person, gender(phrase), case)
    if not isinstance(phrase.head, Noun):
        return phrase.head.german
    word, after = phrase.determiner, ""
    if phrase.possessor is not None:
        if not isinstance(phrase.possessor.head, Noun):
            word, after = "possessor", ""
        else:
            word, after = "the", " " + noun_phrase(phrase.possessor, "gen")
    elif negative and word in ("a", "none"):
        word = "no"
    word_gender = gender(phrase)
    words = [forms.determiner(word, word_gender, case)]
    if word == "possessor":
        words = [phrase.possessor.head.german + "s"]
    if phrase.adjective is not None:
        words.append(forms.adjective(phrase.adjective, word, word_gender, case))
    words.append(forms.noun(phrase.head, phrase.plural, case) + after)
    return " ".join(word for word in words if word)


def prepositional(preposition: str, phrase: NounPhrase, case: str) -> str:
    """Returns preposition and phrase, contracted: "vom Mechaniker"."""
    text = noun_phrase(phrase, case)
    first, _, rest = text.partition(" ")
    if rest:
        return f"{contract(preposition, first)} {rest}"
    return f"{preposition} {text}"


def contract(preposition: str, article: str) -> str:
    """Returns "im" for "in dem", or both words."""
    return _CONTRACTIONS.get((preposition, article), f"{preposition} {article}")
