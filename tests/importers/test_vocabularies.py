"""Other systems' pieces by our ids, and the rows of the matrices in our order."""

from __future__ import annotations

import numpy as np
import pytest
import sentencepiece

from keras_transformer.importers.description import Vocabulary
from keras_transformer.importers.vocabularies import tokenizers_of
from keras_transformer.text.sentencepiece_model import cut_pieces, fitted
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.tokenizer_pair import TokenizerPair
from tests.importers import foreign


def vocabulary(**options):
    pieces = ["</s>", "<unk>", "▁the", "▁old", "<pad>", "<s>"]
    return Vocabulary(pieces, **{"end": 0, "unknown": 1} | options)


def rows_of(side):
    model = foreign.sentencepiece_model()
    side.model = model
    pair, rows, _ = tokenizers_of(side, side)
    count = len(side.pieces)
    names = pair.source.pieces(range(pair.source.vocabulary_size))
    return names, rows, count


def test_special_rows_are_found_added_or_copied():
    # Marian: zeros before the first word, no padding.
    names, rows, count = rows_of(vocabulary())
    assert rows.theirs[:6].tolist() == [-1, -1, 0, 1, 2, 3]
    assert rows.banned[:6].tolist() == [True, True, False, False, False, False]
    assert names[:4] == ["<pad>_", "<s>_", "</s>", "<unk>"]
    # Hugging Face: the start is padding, which keeps its share of the probability.
    names, rows, _ = rows_of(vocabulary(start=4, pad=4))
    assert rows.theirs[:5].tolist() == [4, 4, 0, 1, 2]
    assert rows.banned[:4].tolist() == [False, True, False, False]
    # CTranslate2: all four are there.
    names, rows, _ = rows_of(vocabulary(start=5, pad=4))
    assert rows.theirs[:4].tolist() == [4, 5, 0, 1] and not rows.banned[:4].any()
    assert names[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    # A start that is the end is never produced, the end is.
    _, rows, _ = rows_of(vocabulary(start=0))
    assert rows.theirs[:4].tolist() == [-1, 0, 0, 1]
    assert rows.banned[:4].tolist() == [True, True, False, False]


def test_pieces_that_the_vocabulary_lacks_have_the_row_of_the_unknown_one():
    side = vocabulary()
    names, rows, count = rows_of(side)
    cut = [p for p in cut_pieces(foreign.sentencepiece_model()) if p not in side.pieces]
    assert names[-len(cut) :] == cut
    assert (rows.theirs[-len(cut) :] == 1).all() and rows.banned[-len(cut) :].all()
    assert len(names) == count + 2 + len(cut)


def test_two_models_with_one_vocabulary_are_joint(tmp_path):
    models = foreign.opus_models()
    pieces = foreign.opus_pieces(models)
    sides = [Vocabulary(pieces, 0, 1, model=model) for model in models.values()]
    pair, source, target = tokenizers_of(*sides)
    assert pair.config.joint_vocabulary and pair.source is not pair.target
    np.testing.assert_array_equal(source.theirs, target.theirs)
    pair.save(tmp_path)
    loaded = TokenizerPair.load(tmp_path)
    assert loaded.same_as(pair) and loaded.source is not loaded.target
    for side, model in zip((pair.source, pair.target), models.values(), strict=True):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        for text in foreign.TEXTS:
            expected = processor.encode(text, out_type=str)
            found = side.pieces(side.tokenize([text])[0].numpy())
            known = set(foreign.pieces_of(model)[3:])
            assert [p for p in found if p in known] == [
                p for p in expected if p in known
            ]
        ids = side.tokenize(foreign.TEXTS)
        drawn = side.sample(foreign.TEXTS, 0.999)
        assert len(drawn) == len(foreign.TEXTS) and ids.shape[0] == len(drawn)


def test_unknown_characters_that_spell_an_added_piece_are_that_piece():
    model = foreign.opus_models()["source"]
    names = ["<pad>", "<s>", "</s>", "<unk>", *cut_pieces(model), "жж", "ж"]
    tokenizer = Tokenizer(fitted(model, names))
    place = {name: i for i, name in enumerate(names)}
    rows = tokenizer.tokenize(["old жж", "ж", "жжж", "я"]).to_list()
    assert rows[0][-1] == place["жж"]
    assert rows[1][-1] == place["ж"]
    assert rows[2][-1] == 3 and rows[3][-1] == 3  # A run is one piece, as in theirs.
    assert (
        tokenizer.detokenize([[place["жж"], place["ж"]]]).numpy()[0].decode() == "жжж"
    )
    drawn = tokenizer.sample(["old жж", "жжж"], 0.9)
    assert drawn[0][-1] == place["жж"] and drawn[1][-1] == 3


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_added_pieces_do_not_change_how_text_is_cut(algorithm):
    model = foreign.sentencepiece_model(size=70, algorithm=algorithm)
    added = ["qqq", ">>deu<<", "▁neither"]
    names = ["<pad>", "<s>", "</s>", "<unk>", *cut_pieces(model)[::-1], *added]
    tokenizer = Tokenizer(fitted(model, names))
    plain = Tokenizer(model)
    for text in [*foreign.TEXTS, "neither >>deu<<", "the neither"]:
        ids = [t.tokenize([text])[0].numpy() for t in (tokenizer, plain)]
        assert tokenizer.pieces(ids[0]) == plain.pieces(ids[1])


def test_a_piece_that_merges_would_come_by_is_refused():
    model = foreign.sentencepiece_model(size=70, algorithm="bpe")
    pieces = cut_pieces(model)
    two = next(a + b for a in "dog" for b in "xyz!" if a + b not in pieces)
    names = ["<pad>", "<s>", "</s>", "<unk>", *pieces, two]
    with pytest.raises(ValueError, match="merges would come by"):
        fitted(model, names)


def test_a_litert_translator_cuts_text_as_the_graph_does():
    from keras_transformer.lite.translator import _ids_of

    models = foreign.opus_models()
    pieces = foreign.opus_pieces(models)
    sides = [Vocabulary(pieces, 0, 1, model=model) for model in models.values()]
    pair, _, _ = tokenizers_of(*sides)
    assert pair.source.additions
    processor = sentencepiece.SentencePieceProcessor(model_proto=pair.source.content)
    for text in [*foreign.TEXTS, "жж", "the ß!"]:
        expected = pair.source.tokenize([text])[0].numpy().tolist()
        assert _ids_of(processor, text) == expected
