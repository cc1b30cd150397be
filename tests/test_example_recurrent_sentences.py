"""The example of the book's recurrent translator, at a tiny size."""

import pytest

from tests import tiny_run
from tests.test_examples import load


@pytest.mark.slow
def test_four_sentences_are_translated_scored_and_drawn(tmp_path, capsys):
    example = load("recurrent_sentences")
    picture = tmp_path / "four.png"
    words = ["--count", "40", "--epochs", "1", "--plot", str(picture), "--cell", "lstm"]
    scores = example.main(words)
    assert len(scores) == 4 and all(0 <= score <= 1 for score in scores)
    assert capsys.readouterr().out.count("BLEU with k = 2") == 4
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_what_it_is_trained_on_it_learns(tmp_path):
    example = load("recurrent_sentences")
    pairs = [*example.FOUR.items(), *tiny_run.TRAIN[:60]]
    text = tiny_run.write_pairs(tmp_path / "pairs.tsv", pairs)
    words = ["--pairs", str(text), "--epochs", "60", "--layers", "1"]
    assert sum(example.main(words)) > 3


def test_the_sentences_are_cut_into_the_books_words():
    example = load("recurrent_sentences")
    assert example.words_of("J’ai perdu.") == ["j'ai", "perdu", "."]
    assert example.words_of("Va !") == example.words_of("va!") == ["va", "!"]
    ids = example.ids_of([["va", "!"], ["?"]], [*example.SPECIAL, "!", "va"])
    assert ids.tolist() == [[5, 4, 2], [3, 2, 0]]
