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
from keras_transformer.text.doubts import DOUBTS, doubts_of, faults_of

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
    assert " ".join(doubts_of(source, translation, -9.0)) == FOUND[source, translation]


def test_a_low_score_is_a_doubt():
    assert doubts_of("a", "b", -1.5, -1.25) == ("score",)
    assert doubts_of("a", "b", -1.25, -1.25) == ()
    assert doubts_of("a b c", "", -np.inf, -1.25) == ("empty", "score")


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
    rows = [(*row, draw.choice([-0.5, -1.5]), -1.0) for row in rows]
    found = [doubts_of(*row) for row in rows]
    assert all(sum(doubt in row for row in found) > 30 for doubt in DOUBTS)
    places = []
    for source, target, *_ in rows:
        doubts = [doubts_of(source, x) for x in (target, "well", source)]
        doubts[1] += ("lost",)
        places.append(min(range(3), key=lambda place: faults_of(doubts[place])))
    return rows, found, places


def test_tensorflow_finds_what_python_does():
    rows, doubts, _ = rows_and_doubts()
    sources, translations, scores, _ = zip(*rows, strict=True)
    call = tf.function(in_graph.doubts_of, autograph=False)
    given = map(tf.constant, (sources, translations, scores))
    found = call(*given, -1.0).numpy()
    assert [tuple(names.decode().split()) for names in found] == doubts
    nothing = call(tf.constant([""]), tf.constant([""]), tf.constant([-np.inf]))
    assert nothing.numpy().tolist() == [b""]
    united = in_graph.united_doubts(tf.constant(["score loop score ", "copy", ""]))
    assert united.numpy().tolist() == [b"loop score", b"copy", b""]


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_javascript_finds_what_python_does():
    rows, doubts, places = rows_and_doubts()
    script = Path(__file__).with_name("doubts.mjs")
    done = subprocess.run(
        ["node", str(script)],
        input=json.dumps({"module": str(web.PAGE / "doubts.js"), "rows": rows}),
        capture_output=True,
        check=True,
        text=True,
    )
    expected = [[list(row), place] for row, place in zip(doubts, places, strict=True)]
    assert json.loads(done.stdout) == expected
