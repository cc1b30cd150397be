"""The quick start: its grammar, the splits, and every part of it at a tiny size."""

import hashlib
import itertools
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from keras_transformer.apps.quickstart import CONFIG, quickstart
from keras_transformer.apps.quickstart.grammar import (
    Clause,
    Grammar,
    generate_pairs,
    noun_phrase,
    pronoun,
    say,
    words,
)
from keras_transformer.formats import ExportedTranslator

KINDS = ("noun", "name", "verb", "modal", "adjective", "time", "conjunction", "weather")
W = SimpleNamespace(
    **{kind: {word.english: word for word in words(kind)} for kind in KINDS}
)


def np_(text, **options):
    """Builds "the/red/car", "my/brother", "she", a pronoun by its English subject."""
    person = {"he": "m", "she": "f", "they": "p"}.get(text, text)
    if "/" not in text:
        return pronoun(person)
    determiner, *adjective, noun = text.split("/")
    given = W.adjective[adjective[0]] if adjective else None
    return noun_phrase(W.noun[noun], determiner, given, **options)


def clause(subject, verb=None, **options):
    phrases = {
        name: np_(options[name])
        for name in ("theme", "recipient")
        if isinstance(options.get(name), str)
    }
    kinds = {
        name: getattr(W, name)[options[name]]
        for name in ("time", "modal", "adjective")
        if name in options
    }
    subject = np_(subject) if isinstance(subject, str) else subject
    verb = W.verb[verb] if verb else None
    return Clause(subject, verb, **{**options, **phrases, **kinds})


def two(main, second, word="because", first=False):
    return main, W.conjunction[word], second, first


PAST, IN_THE_GARDEN = {"tense": "past"}, ("in the garden", "im Garten")
HAT, IT = W.noun["hat"], pronoun("m", is_thing=True)
CASES = [
    # Cases, genders, adjective endings.
    ("I am buying a red car.", "Ich kaufe ein rotes Auto.",
     clause("I", "buy", theme="a/red/car")),
    ("She is washing the old hat.", "Sie wäscht den alten Hut.",
     clause("she", "wash", theme="the/old/hat")),
    ("We helped the young woman.", "Wir haben der jungen Frau geholfen.",
     clause("we", "help", theme="the/young/woman", **PAST)),
    ("They lost the teacher's hat.", "Sie haben den Hut des Lehrers verloren.",
     clause("they", "lose", theme=noun_phrase(HAT, owner=np_("the/teacher")), **PAST)),
    ("You see the sick student.", "Du siehst den kranken Studenten.",
     clause("you", "see", theme="the/sick/student")),
    # Order: a recipient before what is given, a pronoun before a noun.
    ("The cook showed a photo to the girl.",
     "Der Koch hat dem Mädchen ein Foto gezeigt.",
     clause("the/cook", "show", theme="a/photo", recipient="the/girl", **PAST)),
    ("He gave the key to her yesterday.", "Er hat ihr gestern den Schlüssel gegeben.",
     clause("he", "give", theme="the/key", recipient="she", time="yesterday", **PAST)),
    ("Yesterday, the doctor called him.", "Gestern hat ihn der Arzt angerufen.",
     clause("the/doctor", "call", theme="he", time="yesterday", front="time", **PAST)),
    ("She is waiting for a bus today.", "Sie wartet heute auf einen Bus.",
     clause("she", "wait for", theme="a/bus", time="today")),
    # Verbs in two parts, perfect with "sein", modals.
    ("The boy is turning on the lamp.", "Der Junge schaltet die Lampe ein.",
     clause("the/boy", "turn on", theme="the/lamp")),
    ("My brother got up.", "Mein Bruder ist aufgestanden.",
     clause("my/brother", "get up", **PAST)),
    ("They would like to invite her tonight.", "Sie möchten sie heute Abend einladen.",
     clause("they", "invite", theme="she", modal="would", time="tonight")),
    ("I ran to the park.", "Ich bin in den Park gelaufen.",
     clause("I", "run", place=("to the park", "in den Park"), **PAST)),
    # Negation.
    ("He is not buying a red car.", "Er kauft kein rotes Auto.",
     clause("he", "buy", theme=np_("a/red/car", negated=True), negated=True)),
    ("He cannot sell the car.", "Er kann das Auto nicht verkaufen.",
     clause("he", "sell", theme="the/car", modal="can", negated=True)),
    ("The dog did not sleep in the garden.", "Der Hund hat nicht im Garten geschlafen.",
     clause("the/dog", "sleep", negated=True, place=IN_THE_GARDEN, **PAST)),
    ("She is not tired.", "Sie ist nicht müde.",
     clause("she", adjective="tired", negated=True)),
    # Questions.
    ("Does the woman need an umbrella?", "Braucht die Frau einen Regenschirm?",
     clause("the/woman", "need", theme="a/umbrella", front="yes")),
    ("Why did the queen laugh?", "Warum hat die Königin gelacht?",
     clause("the/queen", "laugh", front="why", **PAST)),
    ("Who is baking a cake?", "Wer backt einen Kuchen?",
     clause("who", "bake", theme="a/cake")),
    # The verb at the end of a clause, and after one.
    ("She is washing the hat because it is dirty.",
     "Sie wäscht den Hut, weil er schmutzig ist.",
     two(clause("she", "wash", theme="the/hat"), clause(IT, adjective="dirty"))),
    ("Because the boy called me, I got up.",
     "Weil der Junge mich angerufen hat, bin ich aufgestanden.",
     two(clause("I", "get up", **PAST), clause("the/boy", "call", theme="I", **PAST),
         first=True)),
    ("The boy is singing although they are trying on hats.",
     "Der Junge singt, obwohl sie Hüte anprobieren.",
     two(clause("the/boy", "sing"),
         clause("they", "try on", theme=noun_phrase(HAT, "", plural=True)),
         "although")),
]  # fmt: skip


@pytest.mark.parametrize("english, german, plan", CASES)
def test_a_plan_is_said_as_a_native_would(english, german, plan):
    assert say(*(plan if isinstance(plan, tuple) else (plan,))) == (english, german)
    its = [pronoun(gender, is_thing=True) for gender in "mfn"]
    assert [(it.english[0], it.german[0]) for it in its] == [
        ("it", "er"), ("it", "sie"), ("it", "es"),
    ]  # fmt: skip


# Written apart from the package. Of each gender and the plural, in the four cases.
DETERMINED = {
    "the/small/hat": "der kleine Hut, den kleinen Hut, dem kleinen Hut",
    "a/small/hat": "ein kleiner Hut, einen kleinen Hut, einem kleinen Hut",
    "the/fresh/milk": "die frische Milch, die frische Milch, der frischen Milch",
    "/fresh/milk": "frische Milch, frische Milch, frischer Milch",
    "/fresh/cheese": "frischer Käse, frischen Käse, frischem Käse",
    "/fresh/bread": "frisches Brot, frisches Brot, frischem Brot",
    "my/red/dress": "mein rotes Kleid, mein rotes Kleid, meinem roten Kleid",
    "our/old/aunt": "unsere alte Tante, unsere alte Tante, unserer alten Tante",
    "the/old/aunt": ", , , der alten Tante",
    "the/young/student": "der junge Student, den jungen Studenten, "
    "dem jungen Studenten, des jungen Studenten",
    "my/young/brother": "mein junger Bruder, meinen jungen Bruder, "
    "meinem jungen Bruder, meines jungen Bruders",
    "a/happy/girl": ", , , eines glücklichen Mädchens",
}
PLURALS = {
    "the/tired/teacher": "die müden Lehrer, die müden Lehrer, den müden Lehrern",
    "my/old/aunt": "meine alten Tanten, meine alten Tanten, meinen alten Tanten",
    "/new/car": "neue Autos, neue Autos, neuen Autos",
}
NEGATED = {
    "a/small/hat": "kein kleiner Hut, keinen kleinen Hut, keinem kleinen Hut",
    "/fresh/milk": "keine frische Milch, keine frische Milch, keiner frischen Milch",
    "the/small/hat": "der kleine Hut",
}
TABLE = [
    *((text, {}, forms) for text, forms in DETERMINED.items()),
    *((text, {"plural": True}, forms) for text, forms in PLURALS.items()),
    *((text, {"negated": True}, forms) for text, forms in NEGATED.items()),
]


@pytest.mark.parametrize("text, options, forms", TABLE)
def test_a_noun_phrase_is_declined(text, options, forms):
    found = np_(text, **options).german
    for case, form in enumerate(forms.split(", ")):
        assert form in ("", found[case])


@pytest.fixture(scope="module")
def pairs():
    grammar = Grammar(3)
    return [grammar.pair() for _ in range(6000)]


def test_german_is_a_function_of_english_and_sentences_are_well_formed(pairs):
    loose = re.compile(r"\b(in|an|zu|von) dem\b|\b(in|an) das\b|\bzu der\b", re.I)
    wrong = re.compile(r"\ba [aeiou]|\ban [^aeiouh]|\b(am|are|is) not not")
    seen = {}
    for english, german in pairs:
        assert seen.setdefault(english, german) == german
        assert english[-1] == german[-1] and german[-1] in ".?"
        for sentence in (english, german):
            assert re.fullmatch(r"[A-ZÄÖÜ]([\w'-]+|, | )+[.?]|I [\w', ]+[.?]", sentence)
            assert "  " not in sentence and "None" not in sentence
        assert not loose.search(german) and not wrong.search(english)
    # The birthday estimate: n draws of N equal sentences repeat about n^2 / 2N times.
    # There are far more sentences than a quick start needs.
    repeats = len(pairs) - len(dict(pairs))
    assert repeats < len(pairs) ** 2 / (2 * 100_000)


def test_the_lexicon_is_whole_and_english_forms_mean_one_thing():
    for kind, index in (("noun", 1), ("verb", 2)):
        forms = [(word.english, *word.english_forms) for word in words(kind)]
        flat = [form for some in forms for form in dict.fromkeys(some)]
        assert len(flat) == len(set(flat))
        assert all(len(some) <= 1 + index for some in forms)
    nouns = words("noun")
    tags = {tag for noun in nouns for tag in noun.tags}
    places = {tag for place in words("place") for tag in place.tags}
    for verb in words("verb"):
        assert set(verb.objects) <= tags and set(verb.places) <= places, verb
        assert set(verb.tags) & {"present", "past", "future"}, verb
        assert len(verb.german_forms) == 4 and len(verb.english_forms) == 2, verb
        assert verb.german_forms[3] in ("haben", "sein"), verb
    for word in words("adjective"):
        assert set(word.objects) <= tags, word
    for noun in nouns:
        assert noun.german[0].isupper() and noun.german_forms[0] in "mfn", noun
        # Only people own things: they have a genitive, where it differs.
        is_owner = "person" in noun.tags and noun.german_forms[0] != "f"
        assert len(noun.german_forms) >= 2 + is_owner or not noun.english_forms, noun


def test_no_sentence_is_in_two_splits():
    drawn = {
        name: list(generate_pairs(name, 300, seed))
        for seed, name in enumerate(("train", "valid", "test"))
    }
    for one, other in itertools.combinations(drawn.values(), 2):
        for side in (0, 1):
            assert not {pair[side] for pair in one} & {pair[side] for pair in other}
    assert all(len({pair[0] for pair in some}) == 300 for some in drawn.values())
    # As the documentation says: of 100 German sentences 90 are for training.
    for name, buckets in {"valid": range(90, 95), "test": range(95, 100)}.items():
        for _, german in drawn[name]:
            digest = hashlib.sha256(german.casefold().encode("utf-8")).digest()
            assert int.from_bytes(digest[:4], "big") % 100 in buckets


def test_pairs_are_the_same_everywhere():
    text = "".join(f"{a}\t{b}\n" for a, b in generate_pairs("train", 200, seed=1))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "21c3057f87b284b6"
    assert list(generate_pairs("test", 9, seed=1)) != list(generate_pairs("test", 9, 2))


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="`split` must be one of train, valid, test"):
        next(generate_pairs("dev", 1))


def test_quickstart_trains_exports_and_scores(tmp_path, capsys):
    config = CONFIG.with_options(
        num_encoder_layers=1,
        num_decoder_layers=1,
        d_model=16,
        d_ff=16,
        num_heads=2,
        vocabulary_size=400,
        epochs=1,
        max_updates=3,
        beam_size=1,
        max_extra_length=0,
    )
    given = {"console": Console(width=100), "config": config}
    given["sizes"] = {"train": 300, "valid": 20, "test": 10}
    scores = quickstart(tmp_path / "run", tmp_path / "saved_models", **given)
    assert scores.sentences == 10
    assert 0 <= scores.bleu <= 100
    printed = capsys.readouterr().out
    assert f"generated test sentences:\nBLEU {scores.bleu:.2f}" in printed
    assert printed.count("    right") + printed.count("    not ") == 6
    lines = (tmp_path / "run" / "test.translations.txt").read_text().splitlines()
    exported = ExportedTranslator(tmp_path / "saved_models" / "quickstart-en-de")
    assert exported.path.name == "1"
    assert len(lines) == 10
    card = (exported.path / "README.md").read_text("utf-8")
    assert f"| generated test sentences | 10 | {scores.bleu:.2f} |" in card
    assert '\nlanguage: ["en", "de"]\n' in card and "# quickstart-en-de\n" in card
