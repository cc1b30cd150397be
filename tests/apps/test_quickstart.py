"""The quick start: its grammar, the splits, and every part of it at a tiny size."""

import hashlib
import itertools
import re

import pytest
from rich.console import Console

from keras_transformer.apps.quickstart import CONFIG, quickstart
from keras_transformer.apps.quickstart.grammar import (
    Grammar,
    generate_pairs,
    noun_phrase,
    phrase,
    said,
    tables,
)
from keras_transformer.formats import ExportedTranslator


def word(table, text):
    """Returns the row of a word, by the first column of its table."""
    (row,) = (row for row in tables()[table] if row[table] == text)
    return row


def np_(text):
    """Builds "the/red/hat", "my/brother", or a phrase that has one form."""
    if "/" not in text:
        row = word("fixed", text)
        return phrase(text, [row["german"]] * 3, row["person"])
    determiner, *adjectives, noun = text.split("/")
    described = [word("adjective", adjective) for adjective in adjectives]
    return noun_phrase(word("noun", noun), word("determiner", determiner), *described)


# What a pattern begins with, verb, phrases, and the sentences that a native would say.
CASES = [
    # Cases, genders, endings of adjectives.
    ("{subject.en} {subject.am} {doing} ….", "buy",
     {"subject": "I", "goods": "a/red/hat"},
     "I am buying a red hat.", "Ich kaufe einen roten Hut."),
    ("{subject.en} {did} ….", "help", {"subject": "we", "person": "the/young/woman"},
     "We helped the young woman.", "Wir haben der jungen Frau geholfen."),
    ("{subject.en} {did} ….", "invite", {"subject": "you", "person": "the/student"},
     "You invited the student.", "Du hast den Studenten eingeladen."),
    # Order: a recipient before what is given, a verb in two parts around the rest.
    ("{past.en}, {subject.en} {did} ….", "show",
     {"past": "last week", "subject": "the/cook", "text": "a/book",
      "person": "my/girl"},
     "Last week, the cook showed a book to my girl.",
     "Letzte Woche hat der Koch meinem Mädchen ein Buch gezeigt."),
    ("{subject.en} {subject.am} {doing} … {present.en}.", "turn on",
     {"subject": "the/children", "electric": "the/lamp", "present": "now"},
     "The children are turning on the lamp now.",
     "Die Kinder schalten jetzt die Lampe ein."),
    ("{subject.en} {did} … {past.en}.", "go",
     {"subject": "she", "goal": "to Vienna", "past": "on Sunday"},
     "She went to Vienna on Sunday.", "Sie ist am Sonntag nach Wien gegangen."),
    ("{subject.en} would like to {verb} … {future.en}.", "wait for",
     {"subject": "they", "ride": "her/bus", "future": "tonight"},
     "They would like to wait for her bus tonight.",
     "Sie möchten heute Abend auf ihren Bus warten."),
    # "Nicht" stands behind an object and before the rest.
    ("{subject.en} did not {verb} … {past.en}.", "find",
     {"subject": "Anna", "small": "the/key", "place": "in the park",
      "past": "on Sunday"},
     "Anna did not find the key in the park on Sunday.",
     "Anna hat am Sonntag den Schlüssel nicht im Park gefunden."),
    ("{subject.en} cannot {verb} … {future.en}.", "talk to",
     {"subject": "he", "person": "his/friends", "future": "today"},
     "He cannot talk to his friends today.",
     "Er kann heute nicht mit seinen Freunden sprechen."),
    # Questions.
    ("Did {subject.en} {verb} … {past.en}?", "get up",
     {"subject": "the/old/queen", "past": "an hour ago"},
     "Did the old queen get up an hour ago?",
     "Ist die alte Königin vor einer Stunde aufgestanden?"),
    ("Why {subject.am} {subject.en} {doing} …?", "call",
     {"subject": "my/uncle", "person": "the/famous/lawyer"},
     "Why is my uncle calling the famous lawyer?",
     "Warum ruft mein Onkel den berühmten Anwalt an?"),
    # The verb at the end of a clause, and after one.
    ("Because {other.en}", "drink",
     {"other": "Paul", "state": "tired", "subject": "I", "drink": "a/cold/beer"},
     "Because Paul was tired, I drank a cold beer.",
     "Weil Paul müde war, habe ich ein kaltes Bier getrunken."),
    ("{other.en} {other.says} that", "arrive",
     {"other": "you", "subject": "my/aunt", "past": "yesterday"},
     "You say that my aunt arrived yesterday.",
     "Du sagst, dass meine Tante gestern angekommen ist."),
]  # fmt: skip


@pytest.mark.parametrize("start, verb, phrases, english, german", CASES)
def test_a_sentence_is_what_a_native_would_say(start, verb, phrases, english, german):
    pattern = next(
        row for row in tables()["pattern"] if row["pattern"].startswith(start)
    )
    given = {role: np_(text) for role, text in phrases.items()}
    assert said(pattern, word("verb", verb), given) == (english, german)


# Written apart from the package.
DECLINED = {
    "the/small/hat": "der kleine Hut, den kleinen Hut, dem kleinen Hut",
    "a/small/hat": "ein kleiner Hut, einen kleinen Hut, einem kleinen Hut",
    "the/cold/pizza": "die kalte Pizza, die kalte Pizza, der kalten Pizza",
    "a/fresh/egg": "ein frisches Ei, ein frisches Ei, einem frischen Ei",
    "his/old/aunt": "seine alte Tante, seine alte Tante, seiner alten Tante",
    "the/young/student": "der junge Student, den jungen Studenten, "
    "dem jungen Studenten",
    "my/young/brother": "mein junger Bruder, meinen jungen Bruder, "
    "meinem jungen Bruder",
    "the/big/house": "das große Haus, das große Haus, dem großen Haus",
    "her/new/shoes": "ihre neuen Schuhe, ihre neuen Schuhe, ihren neuen Schuhen",
    "the/flowers": "die Blumen, die Blumen, den Blumen",
}


@pytest.mark.parametrize("text, forms", DECLINED.items())
def test_a_noun_phrase_is_declined(text, forms):
    found = np_(text)
    assert [found.de, found.acc, found.dat] == forms.split(", ")


@pytest.fixture(scope="module")
def pairs():
    grammar = Grammar(3)
    return [grammar.pair() for _ in range(6000)]


def test_german_is_a_function_of_english_and_sentences_are_well_formed(pairs):
    loose = re.compile(r"\b(in|an|zu|von) dem\b|\b(in|an) das\b|\bzu der\b", re.I)
    wrong = re.compile(r"\ba [aeiou]|\ban [^aeiouh]|\bnot (a|an)\b", re.I)
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


def test_every_word_has_its_forms():
    for name, rows in tables().items():
        may_be_empty = {"prefix", "object", "plural", "doing"}
        for row in rows:
            empty = {column for column, cell in row.items() if not cell}
            assert empty <= may_be_empty, (name, row)
        words = [row[name] for row in rows]
        assert len(words) == len({*words})


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
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "694ed38cf39e849a"
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
