"""Other systems' pieces by our ids, and the rows of the matrices in our order."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import sentencepiece

from keras_transformer.importers.vocabulary import Vocabulary, tokenizers_of
from keras_transformer.lite.translator import _ids_of
from keras_transformer.text.sentencepiece_model import cut_pieces, fitted
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.tokenizer_pair import TokenizerPair
from tests.importers import foreign

PIECES = ["</s>", "<unk>", "▁the", "▁old", "<pad>", "<s>"]


@pytest.mark.parametrize(
    ("special", "theirs", "banned", "names"),
    [
        # Marian: zeros before the first word, no padding.
        ({}, [-1, -1, 0, 1, 2, 3], [True, True, False, False], ["<pad>_", "<s>_"]),
        # Hugging Face: the start is padding, which keeps its share of the probability.
        (dict(start=4, pad=4), [4, 4, 0, 1, 2], [False, True, False, False],
         ["<pad>", "<s>_"]),
        (dict(start=4, pad=4, banned=(4,)), [4, 4, 0, 1, 2],
         [True, True, False, False], ["<pad>", "<s>_"]),
        # All four are there.
        (dict(start=5, pad=4), [4, 5, 0, 1, 2], [False] * 4, ["<pad>", "<s>"]),
        # A start that is the end is never produced, the end is.
        (dict(start=0), [-1, 0, 0, 1, 2], [True, True, False, False],
         ["<pad>_", "<s>_"]),
    ],
)  # fmt: skip
def test_special_rows_are_found_added_or_copied(special, theirs, banned, names):
    model = foreign.sentencepiece_model()
    side = Vocabulary(PIECES, model, end=0, unknown=1, **special)
    pair, rows, _ = tokenizers_of(side, side)
    assert rows.theirs[: len(theirs)].tolist() == theirs
    assert rows.banned[:4].tolist() == banned
    found = pair.source.pieces(range(pair.source.vocabulary_size))
    assert found[:4] == [*names, "</s>", "<unk>"]
    # Pieces that the vocabulary lacks come last, with the row of the unknown one.
    cut = [piece for piece in cut_pieces(model) if piece not in PIECES]
    assert found[-len(cut) :] == cut
    assert (rows.theirs[-len(cut) :] == 1).all() and rows.banned[-len(cut) :].all()


@pytest.fixture(scope="module")
def opus():
    """Two SentencePiece models with one vocabulary, as tokenizers."""
    models = foreign.opus_models()
    pieces = foreign.opus_pieces(models)
    sides = [Vocabulary(pieces, model, 0, 1) for model in models.values()]
    return tokenizers_of(*sides)


def test_two_models_with_one_vocabulary_are_joint(opus, tmp_path):
    pair, source, target = opus
    assert pair.config.joint_vocabulary and pair.source is not pair.target
    np.testing.assert_array_equal(source.theirs, target.theirs)
    pair.save(tmp_path)
    loaded = TokenizerPair.load(tmp_path)
    assert loaded.same_as(pair) and loaded.source is not loaded.target
    models = foreign.opus_models().values()
    for side, model in zip((pair.source, pair.target), models, strict=True):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        known = set(foreign.pieces_of(model)[3:])
        for text in foreign.TEXTS:
            found = side.pieces(side.tokenize([text])[0].numpy())
            expected = processor.encode(text, out_type=str)
            assert [p for p in found if p in known] == [
                p for p in expected if p in known
            ]


def test_a_litert_translator_cuts_text_as_the_graph_does(opus):
    source = opus[0].source
    assert source.additions
    processor = sentencepiece.SentencePieceProcessor(model_proto=source.content)
    for text in [*foreign.TEXTS, "жж", "the ß!"]:
        expected = source.tokenize([text])[0].numpy().tolist()
        assert _ids_of(processor, text) == expected


SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def test_unknown_characters_that_spell_an_added_piece_are_that_piece():
    model = foreign.opus_models()["source"]
    names = [*SPECIAL, *cut_pieces(model), "жж", "ж"]
    tokenizer = Tokenizer(fitted(model, names))
    two, one = len(names) - 2, len(names) - 1
    for seed in range(2):
        rows = tokenizer.tokenize(["old жж", "ж", "жжж", "я"]).to_list()
        # A run is one piece, as in theirs.
        assert [row[-1] for row in rows] == [two, one, 3, 3]
        keras.utils.set_random_seed(seed)  # TensorFlow drops its cached kernels.
    assert tokenizer.detokenize([[two, one]]).numpy()[0].decode() == "жжж"
    drawn = tokenizer.sample([rows[0], rows[2]], 0.9, seed=1)
    assert drawn[0][-1] == two and drawn[1][-1] == 3


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_added_pieces_do_not_change_how_text_is_cut(algorithm):
    model = foreign.sentencepiece_model(size=70, algorithm=algorithm)
    pieces = cut_pieces(model)
    names = [*SPECIAL, *pieces[::-1], "qqq", ">>deu<<", "▁neither"]
    tokenizer, plain = Tokenizer(fitted(model, names)), Tokenizer(model)
    for text in [*foreign.TEXTS, "neither >>deu<<", "the neither"]:
        ids = [t.tokenize([text])[0].numpy() for t in (tokenizer, plain)]
        assert tokenizer.pieces(ids[0]) == plain.pieces(ids[1])
    if algorithm == "bpe":
        # Merges would come by it.
        two = next(a + b for a in "dog" for b in "xyz!" if a + b not in pieces)
        with pytest.raises(ValueError, match=two):
            fitted(model, [*SPECIAL, *pieces, two])
