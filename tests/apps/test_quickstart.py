"""The quick start: its grammar, the splits, and every part of it at a tiny size."""

import hashlib
import itertools
import random
import re

import pytest
from rich.console import Console

from keras_transformer.apps.quickstart import CONFIG, quickstart
from keras_transformer.apps.quickstart.grammar import (
    draw_pair,
    expand,
    generate_pairs,
    rows_by_tag,
)
from keras_transformer.formats import ExportedTranslator


def picker(*beginnings):
    """Picks rows by what their English begins with, a noun's after its determiner."""
    remaining = iter(beginnings)

    def pick(rows):
        if len(rows) == 1:
            return rows[0]
        beginning = next(remaining)
        texts = [re.sub("^{[mfnp].en} ", "", row["en"]) for row in rows]
        return next(
            row
            for text, row in zip(texts, rows, strict=True)
            if text.startswith(beginning)
        )

    return pick


WITH = " {adjective.en}"
# What is picked, and the sentences that a native would say.
CASES = [
    # Cases, genders, endings of adjectives.
    (["{subject.en}", "I", "buy", "hat", "a" + WITH, "big"],
     "I am buying a big hat.", "Ich kaufe einen großen Hut."),
    (["{subject.en} {verb.did}", "we", "help", "woman", "the" + WITH, "famous"],
     "We helped the famous woman.", "Wir haben der berühmten Frau geholfen."),
    (["{subject.en} {verb.did}", "you", "invite", "student", "the"],
     "You invited the student.", "Du hast den Studenten eingeladen."),
    # Order: a recipient before what is given, a verb in two parts around the rest.
    (["{past.en}", "last week", "cook", "the", "show", "book", "a", "girl", "my"],
     "Last week, the cook showed a book to my girl.",
     "Letzte Woche hat der Koch meinem Mädchen ein Buch gezeigt."),
    (["{subject.en} {am.{subject.person}} {verb.doing} {verb.object} {present",
      "children", "the", "turn on", "lamp", "the", "now"],
     "The children are turning on the lamp now.",
     "Die Kinder schalten jetzt die Lampe ein."),
    (["{subject.en} {verb.did} {verb.object} {past", "she", "go", "to Vienna", "on S"],
     "She went to Vienna on Sunday.", "Sie ist am Sonntag nach Wien gegangen."),
    (["{subject.en} would", "they", "wait for", "bus", "her", "tonight"],
     "They would like to wait for her bus tonight.",
     "Sie möchten heute Abend auf ihren Bus warten."),
    # "Nicht" stands behind an object and before the rest.
    (["{subject.en} did not", "Anna", "find", "key", "the", "in the park", "on Sunday"],
     "Anna did not find the key in the park on Sunday.",
     "Anna hat am Sonntag den Schlüssel nicht im Park gefunden."),
    (["{subject.en} cannot", "he", "talk to", "friends", "his", "on Sunday"],
     "He cannot talk to his friends on Sunday.",
     "Er kann am Sonntag nicht mit seinen Freunden sprechen."),
    # Questions.
    (["Did", "queen", "the" + WITH, "old", "get up", "two hours"],
     "Did the old queen get up two hours ago?",
     "Ist die alte Königin vor zwei Stunden aufgestanden?"),
    (["Why", "uncle", "my", "call", "lawyer", "a" + WITH, "old"],
     "Why is my uncle calling an old lawyer?",
     "Warum ruft mein Onkel einen alten Anwalt an?"),
    # The verb at the end of a clause, and after one.
    (["Because", "Paul", "tired", "I", "drink", "beer", "a" + WITH, "good"],
     "Because Paul was tired, I drank a good beer.",
     "Weil Paul müde war, habe ich ein gutes Bier getrunken."),
    (["{other.en} {says", "you", "aunt", "my", "arrive", "yesterday"],
     "You say that my aunt arrived yesterday.",
     "Du sagst, dass meine Tante gestern angekommen ist."),
]  # fmt: skip


@pytest.mark.parametrize("picked, english, german", CASES)
def test_a_sentence_is_what_a_native_would_say(picked, english, german):
    assert draw_pair(picker(*picked)) == (english, german)


# Written apart from the package.
DECLINED = [
    ("garment", "hat", "the", "small",
     "der kleine Hut, den kleinen Hut, dem kleinen Hut"),
    ("garment", "hat", "a", "small",
     "ein kleiner Hut, einen kleinen Hut, einem kleinen Hut"),
    ("food", "pizza", "the", "good",
     "die gute Pizza, die gute Pizza, der guten Pizza"),
    ("food", "egg", "a", "good", "ein gutes Ei, ein gutes Ei, einem guten Ei"),
    ("person", "aunt", "my", "old",
     "meine alte Tante, meine alte Tante, meiner alten Tante"),
    ("person", "student", "the", "new",
     "der neue Student, den neuen Studenten, dem neuen Studenten"),
    ("person", "brother", "my", "new",
     "mein neuer Bruder, meinen neuen Bruder, meinem neuen Bruder"),
    ("building", "house", "the", "big",
     "das große Haus, das große Haus, dem großen Haus"),
    ("garment", "shoes", "my", "new",
     "meine neuen Schuhe, meine neuen Schuhe, meinen neuen Schuhen"),
    ("person", "neighbor", "his", None,
     "sein Nachbar, seinen Nachbarn, seinem Nachbarn"),
]  # fmt: skip


@pytest.mark.parametrize("tag, noun, determiner, adjective, forms", DECLINED)
def test_a_noun_phrase_is_declined(tag, noun, determiner, adjective, forms):
    picked = noun, determiner + (WITH if adjective else ""), adjective
    row = expand(tag, picker(*picked))
    assert [row[case] for case in ("nom", "acc", "dat")] == forms.split(", ")


def test_german_is_a_function_of_english_and_sentences_are_well_formed():
    choice = random.Random(3).choice
    drawn = [draw_pair(choice) for _ in range(6000)]
    loose = re.compile(r"\b(in|an|zu|von) dem\b|\b(in|an) das\b|\bzu der\b", re.I)
    wrong = re.compile(r"\ba [aeiou]|\ban [^aeiouh]", re.I)
    seen = {}
    for english, german in drawn:
        assert seen.setdefault(english, german) == german
        assert english[-1] == german[-1] and german[-1] in ".?"
        for sentence in (english, german):
            assert re.fullmatch(r"[A-ZÄÖÜ]([\w'-]+|, | )+[.?]|I [\w', ]+[.?]", sentence)
            assert "  " not in sentence and "None" not in sentence
        assert not loose.search(german) and not wrong.search(english)
    # The birthday estimate: n draws of N equal sentences repeat about n^2 / 2N times.
    # There are far more sentences than a quick start needs.
    repeats = len(drawn) - len(seen)
    assert repeats < len(drawn) ** 2 / (2 * 100_000)


def test_every_word_has_its_forms():
    may_be_empty = {"prefix", "object", "objekt", "rest"}
    for tag, rows in rows_by_tag().items():
        for row in rows:
            empty = {column for column, cell in row.items() if not cell}
            assert empty <= may_be_empty, row
        words = [row.get("en") for row in rows]
        assert len(words) == len({*words}), tag


def test_no_sentence_is_in_two_splits():
    drawn = {name: [*generate_pairs(name, 300)] for name in ("train", "valid", "test")}
    for one, other in itertools.combinations(drawn.values(), 2):
        for side in (0, 1):
            assert not {pair[side] for pair in one} & {pair[side] for pair in other}
    assert all(len({pair[0] for pair in some}) == 300 for some in drawn.values())
    # As the documentation says: of 100 German sentences 90 are for training.
    for name, buckets in {"valid": range(90, 95), "test": range(95, 100)}.items():
        for _, german in drawn[name]:
            digest = hashlib.sha256(german.casefold().encode("utf-8")).digest()
            assert int.from_bytes(digest[:4], "big") % 100 in buckets


def test_pairs_are_the_same_everywhere_and_none_says_nicht_ein():
    pairs = [*generate_pairs("train", 200)]
    text = "".join(f"{a}\t{b}\n" for a, b in pairs)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "7b5e1c7b1c7fef24"
    assert not any(re.search(r"not .*\ban? ", english) for english, _ in pairs)


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
