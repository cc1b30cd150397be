"""What cleaning leaves out of training pairs, and above all what it does not."""

import collections
import itertools
import os
import random
from pathlib import Path

import pytest

from keras_transformer.apps.quickstart.grammar import generate_pairs
from keras_transformer.text import BadLines, clean_pairs, mixed_pairs, open_pairs
from tests import tiny_run

GOOD = [(f"This is sentence {n}.", f"Das ist Satz {n}.") for n in range(300)]
GREEK = [(f"This is sentence {n}.", f"Αυτή είναι η πρόταση {n}.") for n in range(300)]
CHINESE = [(f"This is sentence number {n}.", f"这是第{n}句。") for n in range(300)]
UNTRANSLATED = [(f"Here is another one {n}!",) * 2 for n in range(3)]
SWAPPED = [pair[::-1] for pair in GOOD[:30]]
FRENCH = [
    (f"This is one more {n}.", f"En voici donc une phrase {n}.") for n in range(90)
]
LONG = "A long sentence that nobody would say in so few words as those over there."


def cleaned(pairs, keep=None):
    """The pairs that are kept, and the numbers of what was found."""
    text = clean_pairs(pairs, keep)
    return [pair[1:] for pair in text.pairs(BadLines(1.0))], text.cleaning.counts


# A rule, most pairs of a corpus, pairs that are left out and pairs that stay.
RULES = [
    (
        "empty", GOOD,
        [("", "x"), ("x", " \u3000"), ("x", "&nbsp;")], [("x", "&"), (".", "-")],
    ),
    (
        "control", GOOD,
        [("a\x07b", "c"), ("c", "it\x81s")],
        [("a\u200bb", "c"), ("a\tb\nc", "\ufeffd"), ("a\u2028b", "c\xad")],
    ),
    (
        "mojibake", GOOD,
        [("x", text.encode().decode("cp1252"))
         for text in ("fährt", "cómo", "größer", "“x", "9°C", "więc", "ağır", "привет",
                      "中文")]
        + [("\ufffdber", "x")],
        [("x", text) for text in (
            "fährt", "MINHA IRMÃ…", "AMANHÃ” e", "NESCAFÉ®", "groß“", "Spaß…", "«été»",
            "São", "Â", "À 20 °C", "ĐÃ", "più²", "10 €", "naïve™", "MUÑOZ–", "Åland",
        )],
    ),
    (
        "identical", GOOD, UNTRANSLATED,
        [("Amsterdam", "Amsterdam"), ("1 2 3 4", "1 2 3 4"), ("Read it here.",) * 2,
         ("Tom Ann, Mary Miller",) * 2],
    ),
    (
        "script", GOOD, [("Good morning.", "Доброе утро."), ("早上好早上好", "Gut")],
        [("the α ray", "α"), ("λόγος is Greek", "λόγος ist Griechisch"), ("1", "2")],
    ),
    (
        "script", CHINESE, [("Not translated.", "It is another sentence."),
                            ("x", "Это по-русски.")],
        [("Hewlett-Packard Company",) * 2, ("He saw it.", "Tom看Microsoft Windows。"),
         ("A Japanese one.", "コンピューター"), ("NHK", "NHK。"),
         ("Look there", "见 http://www.example.com/a/very/long/address")],
    ),
    ("script", GREEK, [("x", "This one is still English.")], [("y", "OK, Tom?")]),
    (
        "ratio", GOOD, [("Short.", f"{LONG} {LONG}"), (f"{LONG} {LONG}", "Kurz.")],
        [("No.", "So kurz ist es nun auch wieder nicht, denn sonst"),
         ("PROPN", "x" * 900),
         (LONG, "Ein langer Satz.")],
    ),
    (
        "ratio", CHINESE, [("x", "他让对面的房间都能听到他的声音" * 6)],
        [(LONG, "没人会这么说。")],
    ),
    (
        "cut", GOOD,
        [("This is sentence no. 1.", "Das ist"), ("This is", "Das ist Satz Nr. 91.")],
        [("This is sentence 900.", "Das ist Satz 900"), ("Is it this sentence?", "Ja."),
         ("This is sentence 900", "Das ist"), ("(This is sentence 9.)", "„Satz 91!“")],
    ),
    ("swapped", GOOD, SWAPPED, [("OK", "Sentence"), ("Satz", "OK")]),
    ("language", GOOD, FRENCH[:30], [("This is Voici.", "Das ist Voici.")]),
    ("language", GOOD, [], FRENCH),  # So many were meant.
    (
        "duplicates", GOOD, [("This  is sentence 7. ", "Das ist\u00a0Satz 7.")],
        [("this is sentence 7.", "Das ist Satz 7."),
         ("This is sentence", "7. Das ist Satz 7.")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "most", "wrong", "right"), RULES)
def test_a_rule_leaves_out_what_is_wrong_and_no_more(rule, most, wrong, right):
    pairs = [*most, *wrong, *right]
    expected = {rule: len(wrong)} if wrong else {}
    assert cleaned(pairs) == (most + right, expected)
    # Each rule can be switched off; an empty side is then a bad line.
    kept = [pair for pair in wrong if all(map(str.strip, pair))]
    found, counts = cleaned(pairs, keep=f"entities, {rule}")
    assert rule not in counts
    assert len(found) + counts.total() == len(most + kept + right)
    assert cleaned(pairs, keep="all")[1] == {}


def test_entities_and_misread_quotation_marks_are_mended_in_what_is_trained_on():
    pairs = [("R&D &amp; x", "&eacute;t&#233; &#x201C;it\x92s\x94")]
    other = [("a?b=1&copy=2 &notit; &", "x")]
    text = clean_pairs(GOOD + pairs + other)
    expected = open_pairs([*GOOD, ("R&D & x", "été “it’s”"), *other])
    assert list(text.pairs()) == list(expected.pairs())
    assert text.fingerprint() == expected.fingerprint()
    assert text.cleaning.counts == {"entities": 1}
    for word in ("Ätna", "it’s", "größer"):
        wrong = [("x", word.encode().decode("latin-1"))]
        assert cleaned(GOOD + wrong) == (GOOD, {"mojibake": 1})


ONES = "zero one two three four five six seven eight nine".split()
MONTHS = "January February March April May June July August September October".split()
DIGITS = [str(n * 7919 % 10**7) for n in range(500)]
ACCENTS = "le mot eleve", "le mot élève", "lé mòt élève"
TASKS = {
    "a digit a word": [(x, " ".join(ONES[int(d)] for d in x)) for x in DIGITS],
    "lengths of all kinds": [(str(n), "ab " * 2 ** (n % 8)) for n in range(300)],
    "reversal": [(x, x[::-1]) for x in DIGITS],
    "dates": [
        (f"{d} {m} {y}", f"{y}-{i + 1:02}-{d:02}")
        for (i, m), d, y in itertools.product(enumerate(MONTHS), (1, 28), (1999, 2026))
    ],
    "spelling": [(f"word{x}", " ".join(f"word{x}")) for x in DIGITS],
    "copying": [(f"copy these words {x}",) * 2 for x in DIGITS],
    "capitals": [
        (f"copy it all {n}", f"{'OF IT HERE' if n % 5 < 2 else 'copy it all'} {n}")
        for n in range(300)
    ],
    "accents": [
        (f"le mot eleve {n}", f"{ACCENTS[(n % 15 > 0) + (n % 15 > 7)]} {n}")
        for n in range(300)
    ],
    "grammar": [
        (f"He {'go' if n % 3 else 'goes'} to school number {n} every day.",
         f"He goes to school number {n} every day.") for n in range(300)
    ],
    "transliteration": [(f"moskva {x}", f"москва {x}") for x in DIGITS],
    "two scripts of one language": [
        (f"Sentence {n}.", ("Rečenica" if n % 2 else "Реченица") * 3 + str(n))
        for n in range(300)
    ],
    "a summary": [(LONG * 20 + str(n), f"In short {n}.") for n in range(50)],
    "a tag a word": [("http://" + "a" * n, "PROPN") for n in range(200)],
    "tiny_run": tiny_run.PAIRS,
    "meant to come again": GOOD * 3,
    "another language for each tag": [
        (f"<{tag}> It is {n}", f"{text} {n}") for n in range(150)
        for tag, text in (("de", "Das ist es"), ("fr", "C'est cela"))
    ],
    "one language": [
        (f"Tom has {word} to do with it", f"Tom should have {word} for it again")
        for word in DIGITS
    ],
    "names": [(f"Anna Miller {n}, Tom", f"Anna Miller {n} Tom") for n in ONES],
    "a grammar": [*generate_pairs("train", 3000)],
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_nothing_is_left_out_of_other_tasks(task):
    assert cleaned(TASKS[task]) == (TASKS[task], {})


def test_the_screen_has_counts_and_three_examples(tmp_path):
    lines = [f"{a}\t{b}" for a, b in GOOD]
    lines += [f"{LONG[:29]}\x1b{n}\tx" for n in range(4)] + [
        "bad",
        "\tx",
        "a &amp; b\tc",
    ]
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(lines), "utf-8")
    text = clean_pairs(path)
    short = f"{LONG[:29]}\x1b -> x"
    assert str(text.cleaning).splitlines() == [
        "cleaning left out 5 of 307 lines:",
        "        4 control: control characters",
        *(f"          {path}:{300 + n}: {short}" for n in (1, 2, 3)),
        "        1 empty: one side is empty",
        f"          {path}:306:  -> x",
        "and mended 1:",
        "        1 entities: entities and misread quotation marks",
        f"          {path}:307: a &amp; b -> c",
        "  --keep and a rule's name keeps what it found",
    ]
    assert str(clean_pairs(GOOD).cleaning) == ""
    # Lines keep their numbers, and a bad one is reported as ever.
    with pytest.raises(ValueError, match=r"a\.tsv:305: not source"):
        list(text.pairs())
    # What is left out counts for the share of bad lines.
    bad_lines = BadLines(1.0)
    assert [pair.line for pair in text.pairs(bad_lines)][-2:] == [300, 307]
    assert (bad_lines.lines, bad_lines.count) == (307, 1)
    assert text.count() == 302 and text.files == [path]


def test_a_mix_is_cleaned_corpus_by_corpus():
    again = GOOD[:2]
    mix = mixed_pairs([(GOOD + again, 2), (again + [("", "x")], 3)])
    text = clean_pairs(mix)
    assert text.cleaning.counts == {"duplicates": 2, "empty": 1}
    assert [(part.count(), n) for part, n in text.parts] == [(300, 2), (2, 3)]
    assert text.cleaning.examples["empty"] == ["row 3 of corpus 2:  -> x"]
    expected = mixed_pairs([(GOOD, 2), (again, 3)])
    assert text.fingerprint() == expected.fingerprint()
    assert text.count() == expected.count() == 606
    assert len(list(text.pairs())) == 606


def test_a_file_that_changes_is_still_told(tmp_path):
    path = tiny_run.write_pairs(tmp_path / "a.tsv")
    text = clean_pairs(path)
    tiny_run.write_pairs(path, tiny_run.TRAIN + tiny_run.VALID)
    with pytest.raises(ValueError, match="changed after it was first read"):
        list(text.pairs())


@pytest.mark.parametrize("bad", [("a\0", "b"), ("", "b"), ("a\x07", "b")])
def test_a_bad_line_does_not_make_that_come_again_which_was_meant(bad):
    text = clean_pairs([*GOOD, *GOOD, bad])
    assert text.cleaning.counts["duplicates"] == 0
    assert len([*text.pairs(BadLines(1.0))]) == 2 * len(GOOD)


def test_what_is_left_of_nothing_is_told(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("\tx\n\ty\n", "utf-8")
    for pairs, origin in (([("", "x")] * 2, "the program's rows"), (path, str(path))):
        with pytest.raises(ValueError) as caught:
            clean_pairs(pairs).count()
        assert str(caught.value) == (
            f"No pair of {origin} is left: cleaning (--keep) or the pairs held out "
            "for validation and test took all 2 lines."
        )


# Faults that people have in their files, made in some of the pairs.

# A language that is not like those two.
OTHER_LETTERS = str.maketrans("aeioubcdfghlmnrst", "uaoeimvnkzwrtlbhd")


def cut_in_the_middle(number, source, target):
    if number % 2:
        return source, target[: len(target) // 2].rstrip()
    words = source.split()
    return " ".join(words[: (len(words) + 1) // 2]), target


FAULTS = {
    "swapped": lambda n, source, target: (target, source),
    "identical": lambda n, source, target: (source, source),
    "cut": cut_in_the_middle,
    "language": lambda n, source, target: (source, target.translate(OTHER_LETTERS)),
}


def with_fault(pairs, fault, number):
    """The pairs, some of which have a fault, and which of them are good."""
    pairs = list(pairs)
    wrong = random.Random(1).sample(range(len(pairs)), number)
    for place in wrong:
        pairs[place] = FAULTS[fault](place, *pairs[place])
    return pairs, [pair for n, pair in enumerate(pairs) if n not in {*wrong}]


@pytest.mark.parametrize(
    ("fault", "least"),
    [("swapped", 198), ("identical", 170), ("language", 150), ("cut", 100)],
)
def test_a_fault_in_every_eleventh_pair_is_found(fault, least):
    pairs, good = with_fault(generate_pairs("train", 2200), fault, 200)
    found, counts = cleaned(pairs)
    assert not collections.Counter(good) - collections.Counter(found)
    assert len(pairs) - len(found) >= least
    assert counts[fault] >= least


# Corpora, and how many of the pairs left out of each are wrong indeed: their texts are
# "@@", have nothing to do with each other, or are in the language of the other side.
CORPORA = {
    "tatoeba/train.en-es": 0,
    "multi30k/train.en-de": 2,
    "multi30k/train.en-fr": 0,
    "iwslt15_envi/valid_tst2012.en-vi": 0,
    "libreoffice_help/train.en-de": 18,
    "libreoffice_help/train.en-pt": 8,
    "flores_en_pt/test.en-pt": 0,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPORA)
def test_real_corpora_lose_their_faults_and_hardly_anything_else(name):
    path = Path(os.environ.get("CORPORA", "corpora"), f"{name}.tsv.gz")
    if not path.exists():
        pytest.skip(f"no corpora: CORPORA must name the folder of {name}.tsv.gz")
    text = open_pairs(path)
    counts = clean_pairs(text, keep="entities, duplicates").cleaning.counts
    assert counts.total() - CORPORA[name] < text.count() / 5000
    pairs = [pair[1:] for pair in text.pairs() if pair.source.count(" ") >= 5]
    pairs = random.Random(1).sample(pairs, min(2200, len(pairs)))
    for fault in FAULTS:
        wrong, good = with_fault(pairs, fault, len(pairs) // 11)
        found, _ = cleaned(wrong, keep="entities, control, duplicates")
        lost = collections.Counter(good) - collections.Counter(found)
        assert lost.total() <= 3
        if fault != "cut":  # What is one depends on how often a mark is missing.
            assert len(pairs) - len(found) - lost.total() > 0.8 * len(pairs) / 11
