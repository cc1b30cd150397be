"""Words of pieces, for each way in which vocabularies mark them."""

from __future__ import annotations

import pytest

from keras_transformer.text.words import labels_of, words_of

CASES = {
    "sentencepiece": (
        ["▁Two", "▁m", "en", "▁don", "'", "t", "▁", "talk", ".", "</s>"],
        ["Two", "men", "don't", "talk", ".", "(end)"],
        [1, 2, 3, 2, 1, 1],
    ),
    "marks": (
        ["▁3", ".", "5", "▁(", "a", ")", ".", "▁b", "!", "?"],
        ["3.5", "(a", ")", ".", "b", "!", "?"],
        [3, 2, 1, 1, 1, 1, 1],
    ),
    "bytes": (
        ["▁B", "<0xC3>", "<0xA4>", "r", "<0xFF>", "</s>"],
        ["Bär\ufffd", "(end)"],
        [5, 1],
    ),
    "language": ([">>fra<<", "▁a", "</s>"], [">>fra<<", "a", "(end)"], [1, 1, 1]),
    "byte level": (["Two", "Ġm", "Ã¤", "n", "Ġ"], ["Two", "män", " "], [1, 3, 1]),
    "word pieces": (
        ["[CLS]", "talk", "##ing", "##s", ".", "[SEP]"],
        ["(start)", "talkings", ".", "(end)"],
        [1, 3, 1, 1],
    ),
    "only an end": (["</s>"], ["(end)"], [1]),
    "nothing": ([], [], []),
}


@pytest.mark.parametrize("name", CASES)
def test_words_are_those_of_a_reader(name):
    pieces, texts, counts = CASES[name]
    assert words_of(pieces) == list(zip(texts, counts, strict=True))
    assert sum(counts) == len(pieces)


def test_labels_of_pieces_have_no_marks():
    pieces = ["<s>", "▁m", "en", "▁", "a_b", "</s>"]
    assert labels_of(pieces) == ["(start)", "m", "en", " ", "a_b", "(end)"]
    assert labels_of(["Two", "Ġm", "Ã¤", "n"]) == ["Two", "m", "ä", "n"]
    assert labels_of(["talk", "##ing", "[SEP]"]) == ["talk", "ing", "(end)"]
