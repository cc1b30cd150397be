"""Doubts about translations: by hand, and alike in Python, TensorFlow, JavaScript."""

import functools
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.formats import web
from keras_transformer.text import in_graph
from keras_transformer.text.doubts import (
    DOUBTS,
    doubt_at,
    doubts_of,
    faults_of,
    has_letters,
    is_foreign,
)

SIXTEEN = " ".join("abcdefghijklmnop")
FOUND = {
    ("A good day.", "Ein guter Tag."): "",
    ("", ""): "",
    (" \t", " "): "",
    ("A", " \n"): "empty",
    ("Peter Paul Meier", "peter PAUL Meier"): "copy",
    ("Peter Meier", "Peter Meier"): "",
    ("我爱你", "我爱你"): "copy",
    ("ÄH ΣΑΣ xß", "äh σας xß"): "copy",
    ("Very good.", "sehr sehr gut"): "",
    ("Very good.", "sehr sehr sehr gut"): "loop",
    ("no no no", "nein nein nein nein"): "",
    ("a b", "so x y x y x z"): "",
    ("a b", "so x y x y x y"): "loop",
    ("a b", f"{SIXTEEN} {SIXTEEN} {SIXTEEN}"): "loop",
    ("a b", f"{SIXTEEN} q {SIXTEEN} q {SIXTEEN} q"): "",
    ("It costs 1,000,000!", "花费花费1000000！！！！"): "",
    ("Good.", "很好很好很好"): "loop",
    ("Good.", "とても良い、とても良い、とても良い、"): "loop",
}


@pytest.mark.parametrize("source, translation", FOUND)
def test_a_translation_gets_the_doubts_that_it_deserves(source, translation):
    assert " ".join(doubts_of(source, translation)) == FOUND[source, translation]


STEPS = [[-7.5, 0.875], [-1.25, 0.375], [-0.5, 0.0]]


def test_a_doubt_is_the_share_of_the_step_of_a_score():
    scores = [-np.inf, -7.5, -1.26, -1.25, -0.51, -0.5, 0.0]
    expected = [0.875, 0.875, 0.875, 0.375, 0.375, 0.0, 0.0]
    assert [doubt_at(score, STEPS) for score in scores] == expected
    found = in_graph.doubt_at(tf.constant(scores), STEPS)
    assert found.numpy().tolist() == expected
    assert doubt_at(-9.0, None) == in_graph.doubt_at(tf.constant([-9.0]), None) == 0
    assert doubts_of("a b c", "", is_unlikely=True) == ("empty", "score")

    outputs = {
        "doubt": tf.constant([[0.3, 0.31]]),
        "doubts": tf.constant([["copy score script", "loop script"]]),
    }
    limited = in_graph.with_limit(outputs, 0.3)["doubts"]
    assert limited.numpy().tolist() == [[b"copy script", b"loop score script"]]
    assert in_graph.with_limit(outputs, None) is outputs
    del outputs["doubt"]
    assert in_graph.with_limit(outputs, 0.1) is outputs


# Texts and their pieces, for a vocabulary of "ab", "!", "7", a span and bytes.
UNREADABLE = {
    "жук": ["▁", "<0xD0>", "<0xB6>", "<unk>", "</s>"],
    "7 我!": ["▁", "7", "▁", "<0xE6>", "<0x88>", "<0x91>", "!", "</s>"],
    "\ufde0 क": [">>fra<<", "\ufde0", "▁", "<unk>", "</s>", "<pad>"],
}
READABLE = {
    "": ["</s>"],
    "!": ["▁", "!", "</s>"],
    "2026 😀 🇪🇸": ["▁", "<0xF0>", "<unk>", "</s>"],
    "жук ab": ["▁", "<0xD0>", "<0xB6>", "▁ab", "</s>"],
    "\ufde0": ["▁", "\ufde0", "</s>"],
}


def test_a_text_whose_letters_no_piece_has_is_in_a_foreign_script():
    texts = READABLE | UNREADABLE
    expected = [text in UNREADABLE for text in texts]
    assert [is_foreign(*row) for row in texts.items()] == expected
    vocabulary = sorted({piece for pieces in texts.values() for piece in pieces})
    ids = tf.ragged.constant([[*map(vocabulary.index, row)] for row in texts.values()])
    padded = ids.to_tensor(vocabulary.index("<pad>"))
    letters = np.array([*map(has_letters, vocabulary)])
    found = in_graph.are_foreign(tf.constant([*texts]), padded, letters)
    assert found.numpy().tolist() == expected
    assert doubts_of("x", "y", is_unreadable=True) == ("script",)


def test_what_lost_a_span_is_better_than_what_loops_and_worse_than_all_else():
    worse_and_worse = [("copy", "score"), ("lost",), ("loop",), ("empty", "lost")]
    faults = list(map(faults_of, worse_and_worse))
    assert faults == sorted({*faults})


@functools.cache
def rows_and_doubts():
    """2,000 rows of few words, and what Python makes of them."""
    draw = random.Random(54)
    words = [*"abAB", "中", "中文", "あ", "\u00a0", "ß", "", "\t", "!", "é"]
    rows = list(FOUND)
    for _ in range(2000):
        few = draw.choices(words, k=3)
        source, target = (draw.choices(few, k=draw.randrange(12)) for _ in range(2))
        if draw.randrange(8) == 0:
            target = [word.upper() for word in source]
        target *= draw.choice([1, 1, 2, 3])
        rows.append((draw.choice(" _").join(source), draw.choice(" _").join(target)))
    pieces = [*UNREADABLE.values(), *READABLE.values()]
    rows = [
        (*row, draw.choice([-0.5, -1.25, -1.5]), draw.choice(pieces)) for row in rows
    ]
    found = [
        doubts_of(
            source, target, doubt_at(score, STEPS) > 0.5, is_foreign(source, pieces)
        )
        for source, target, score, pieces in rows
    ]
    assert all(sum(doubt in row for row in found) > 30 for doubt in DOUBTS)
    places = []
    for source, target, *_ in rows:
        doubts = [doubts_of(source, x) for x in (target, "well", source)]
        doubts[1] += ("lost",)
        places.append(min(range(3), key=lambda place: faults_of(doubts[place])))
    return rows, found, places


def test_tensorflow_finds_what_python_does():
    rows, doubts, _ = rows_and_doubts()
    sources, translations, scores, pieces = zip(*rows, strict=True)

    @tf.function(autograph=False)
    def call(sources, translations, scores, ids):
        are_unlikely = in_graph.doubt_at(scores, STEPS) > 0.5
        are_foreign = in_graph.are_foreign(sources, ids, letters)
        return in_graph.doubts_of(sources, translations, are_unlikely, are_foreign)

    vocabulary = sorted({"<pad>"}.union(*pieces))
    letters = np.array([*map(has_letters, vocabulary)])
    ids = tf.ragged.constant([[*map(vocabulary.index, row)] for row in pieces])
    given = map(tf.constant, (sources, translations, scores))
    found = call(*given, ids.to_tensor(vocabulary.index("<pad>"))).numpy()
    assert [tuple(names.decode().split()) for names in found] == doubts
    united = in_graph.united_doubts(tf.constant(["score loop score ", "copy", ""]))
    assert united.numpy().tolist() == [b"loop score", b"copy", b""]


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_javascript_finds_what_python_does():
    rows, doubts, places = rows_and_doubts()
    script = Path(__file__).with_name("doubts.mjs")
    done = subprocess.run(
        ["node", str(script)],
        input=json.dumps(
            {"module": str(web.PAGE / "doubts.js"), "rows": rows, "steps": STEPS}
        ),
        capture_output=True,
        check=True,
        text=True,
    )
    expected = [[list(row), place] for row, place in zip(doubts, places, strict=True)]
    assert json.loads(done.stdout) == expected
