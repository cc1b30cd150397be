"""The example of a language model runs, at a tiny size."""

from __future__ import annotations

import gzip
import math

import numpy as np
import pytest

from tests.test_examples import load

SIZES = ["--epochs", "3", "--context", "16", "--layers", "1", "--width", "16"]


@pytest.fixture(scope="module")
def example():
    return load("language_model")


def test_a_text_is_learned_scored_continued_and_drawn(example, tmp_path, capsys):
    with gzip.open(tmp_path / "text.gz", "wt") as file:
        file.write("abcd" * 4000)
    (tmp_path / "tail.txt").write_text("abcd" * 40 + "?")
    files = ["--text", tmp_path / "text.gz", "--tail", tmp_path / "tail.txt"]
    curve = tmp_path / "curve.png"
    words = [*files, *SIZES, "--prompt", "ab", "--curve", curve]
    nats = example.main(list(map(str, words)))
    assert nats < 0.5 * math.log(4)
    *_, sample, score = capsys.readouterr().out.splitlines()
    assert sample.startswith("abcdabcd") and len(sample) >= 400
    assert score.startswith(f"{nats / math.log(2):.3f} bits")
    assert curve.stat().st_size > 1000


def test_the_built_in_text_is_sentences(example):
    lines = example.read(None).splitlines()
    assert len(lines) == 4000
    assert lines[0].endswith((".", "?"))


def test_rows_begin_with_the_start_id_and_foretell_the_next(example):
    ids_in, ids_out = example.rows_of(np.arange(10, 22), 5, step=3)
    np.testing.assert_array_equal(ids_out[:, 0], [10, 13, 16])
    np.testing.assert_array_equal(ids_in[:, 0], [1, 1, 1])
    np.testing.assert_array_equal(ids_in[:, 1:], ids_out[:, :-1])
