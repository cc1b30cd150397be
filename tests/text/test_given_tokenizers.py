"""Tokenizers of other libraries cut and join text here as they do there."""

from __future__ import annotations

import json

import keras_hub
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.config import DataConfig
from keras_transformer.text import (
    BytePairTokenizer,
    Corpus,
    PythonTokenizer,
    Tokenizer,
    TokenizerPair,
    WordPieceTokenizer,
)
from keras_transformer.text.byte_pair import byte_characters
from keras_transformer.text.hugging_face import SENTENCES
from tests import tiny_run
from tests.text import foreign_tokenizers as foreign

UNSEEN = (
    "The gold bear's old; I'd say it's a big one!", "3 alte Bären, 4 junge Hunde?",
    "größer – am größten… ", "  spaces  at both ends  ", "ÆØÅ æøå 漢字 🐻‍❄️ e\u0301",
    "x" * 40, "1234567890", "he said: \"don't\" (twice)",
)  # fmt: skip
KINDS = {
    "byte-level BPE": BytePairTokenizer,
    "byte-level BPE with a space": BytePairTokenizer,
    "WordPiece": WordPieceTokenizer,
    "WordPiece in lower case": WordPieceTokenizer,
    "Unigram": Tokenizer,
    "BPE with bytes": Tokenizer,
}


def taken(given):
    return TokenizerPair.of(given).source


def texts_of(tokenizer, rows):
    return [text.decode() for text in tokenizer.detokenize(rows).numpy()]


def check_special(tokenizer):
    ids = tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id, tokenizer.unknown_id
    assert ids == (0, 1, 2, 3)
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    assert len(set(pieces)) == len(pieces)
    return pieces


@pytest.mark.one_case
@pytest.mark.parametrize("name", KINDS)
def test_a_hugging_face_tokenizer_has_its_pieces_in_the_graph(name):
    original = foreign.hugging_face()[name]
    tokenizer = taken(original)
    assert type(tokenizer) is KINDS[name] and tokenizer.graph_problem is None
    pieces = check_special(tokenizer)
    vocabulary = original.get_vocab()
    order = sorted(vocabulary, key=vocabulary.get)
    assert [p for p in pieces[4:] if p in vocabulary] == [
        p for p in order if p not in pieces[:4]
    ]
    texts = [*UNSEEN, *SENTENCES, *foreign.TEXT[:20]]
    if KINDS[name] is Tokenizer:  # SentencePiece drops spaces at both ends.
        texts = [text.strip() for text in texts]
    rows = tokenizer.tokenize(texts)
    assert rows.dtype == tf.int32 and not set(rows.values.numpy()) & {0, 1, 2}
    found = original.encode_batch(texts, add_special_tokens=False)
    assert [tokenizer.pieces(row) for row in rows.to_list()] == [
        [original.id_to_token(id) for id in one.ids] for one in found
    ]
    expected = original.decode_batch(
        [one.ids for one in found], skip_special_tokens=False
    )
    if "space" in name:
        expected = [text.removeprefix(" ") for text in expected]
    # SentencePiece and Hugging Face write an unknown character each in its own way.
    known = slice(-20, None) if name == "Unigram" else slice(None)
    assert texts_of(tokenizer, rows)[known] == expected[known]


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_word_piece_tokenizer_of_keras_hub(lowercase):
    original = foreign.keras_hub_word_pieces(lowercase)
    tokenizer = taken(original)
    assert type(tokenizer) is WordPieceTokenizer
    pieces = check_special(tokenizer)
    assert pieces[:4] == ["[PAD]", "[START]", "[END]", "[UNK]"]
    texts = [*UNSEEN, *SENTENCES, "[PAD] [START] [UNK]"]
    theirs = original.tokenize(tf.constant(texts))
    found = [tokenizer.pieces(row) for row in tokenizer.tokenize(texts).to_list()]
    names = original.get_vocabulary()
    assert found == [[names[id] for id in row] for row in theirs]
    ids = tokenizer.tokenize(["the old man.", "der Hund."])
    expected = ["the old man.", "der hund." if lowercase else "der Hund."]
    assert texts_of(tokenizer, ids) == expected


def test_a_byte_pair_tokenizer_of_keras_hub():
    original = foreign.keras_hub_byte_pairs()
    tokenizer = taken(original)
    assert type(tokenizer) is BytePairTokenizer
    check_special(tokenizer)
    # In a graph, as `tf.data` has it, it cuts as GPT-2 does; it drops U+096C.
    texts = [text.replace("६", "") for text in (*UNSEEN[:3], *SENTENCES[1:9])]
    data = tf.data.Dataset.from_tensors(texts).map(original.tokenize)
    names = {id: piece for piece, id in original.vocabulary.items()}
    expected = [[names[id] for id in row] for row in next(iter(data)).to_list()]
    found = tokenizer.tokenize(texts)
    assert [tokenizer.pieces(row) for row in found.to_list()] == expected
    assert texts_of(tokenizer, found) == texts


def test_a_sentencepiece_tokenizer_of_keras_hub_and_of_its_library():
    model = foreign.sentencepiece_model()
    contents = {
        taken(given).content
        for given in (
            model,
            keras_hub.tokenizers.SentencePieceTokenizer(model),
            sentencepiece.SentencePieceProcessor(model_proto=model),
        )
    }
    assert len(contents) == 1
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    (row,) = taken(model).tokenize(["the old bear"]).to_list()
    assert taken(model).pieces(row) == processor.encode("the old bear", out_type=str)


def test_every_byte_survives_byte_level_bpe():
    tokenizer = taken(foreign.hugging_face()["byte-level BPE"])
    codes = [*range(1, 0x500), 0x96C, 0x2028, 0x3000, 0x1F43B, 0xFFFE]
    texts = ["".join(map(chr, codes)), *map(chr, codes), "a  b\t c\n\n d ", " "]
    assert texts_of(tokenizer, tokenizer.tokenize(texts)) == texts
    ids = tokenizer.tokenize([b"caf\xe9 \xff", b"a\x00b", "a\uffffb"])
    assert texts_of(tokenizer, ids) == ["caf� �", "a�b", "a�b"]
    # Bytes that make no character, which a model may give.
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    odd = [[pieces.index("Ã"), pieces.index("a"), 3]]
    assert texts_of(tokenizer, np.array(odd)) == ["�a"]


def test_characters_that_stand_for_no_byte_are_left_out():
    pieces = [*byte_characters(), "ńŅ漢", "aŃń"]
    tokenizer = BytePairTokenizer({piece: i for i, piece in enumerate(pieces)}, [])
    ours = tokenizer.pieces(range(tokenizer.vocabulary_size))
    row = [ours.index(piece) for piece in ("a", "ńŅ漢", "b", "aŃń")]
    # U+0143, "Ń", is the last character that stands for one: for a soft hyphen's.
    assert byte_characters()[0xAD] == "Ń"
    assert texts_of(tokenizer, np.array([row])) == ["aba�"]


@pytest.mark.slow
def test_a_byte_pair_tokenizer_of_keras_hub_that_would_cut_differently():
    """SentencePiece's operation joins "ab" and "c", which are no merge."""
    pieces = [*byte_characters(), "ab", "bc", "abc"]
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    merges = ["a b", "b c", "a bc"]
    original = keras_hub.tokenizers.BytePairTokenizer(vocabulary, merges)
    tokenizer = taken(original)
    assert type(tokenizer) is PythonTokenizer
    assert "the nearest form there cuts" in tokenizer.graph_problem
    for text, expected in (("abc", ["ab", "c"]), ("é bc", ["Ã", "©", "Ġ", "bc"])):
        (row,) = tokenizer.tokenize([text]).to_list()
        assert tokenizer.pieces(row) == expected
        ids = next(iter(tf.data.Dataset.from_tensors([text]).map(original.tokenize)))
        assert [pieces[id] for id in ids[0].numpy()] == expected
        assert texts_of(tokenizer, tf.ragged.constant([row])) == [text]


def test_what_has_no_form_in_a_graph_stays_in_python():
    original = foreign.whole_words()
    tokenizer = taken(original)
    assert type(tokenizer) is PythonTokenizer
    assert "its kind has no form there" in tokenizer.graph_problem
    pieces = check_special(tokenizer)
    assert pieces[:4] == foreign.SPECIAL
    texts = ["the old man sleeps.", "", "unseen </s> words"]

    @tf.function
    def there_and_back(texts):
        ids = tokenizer.tokenize(texts)
        return ids, tokenizer.detokenize(ids)

    ids, joined = there_and_back(tf.constant(texts))
    assert ids.to_list() == tokenizer.tokenize(texts).to_list()
    tokens = [one.tokens for one in original.encode_batch(texts[:2])]
    assert [tokenizer.pieces(row) for row in ids.to_list()[:2]] == tokens
    assert joined.numpy()[0] == b"the old man sleeps ."
    # The text's "</s>" ends nothing.
    assert not {0, 1, 2} & set(ids.values.numpy())


def other_replacement(spec):
    spec["normalizer"] |= {"pattern": {"String": "ll"}, "content": "l"}


REASONS = {
    "its normalizer or its pre-tokenizer is not BERT's": (
        "WordPiece", lambda spec: spec.update(pre_tokenizer={"type": "Whitespace"})
    ),
    "SentencePiece has no Lowercase": (
        "Unigram", lambda spec: spec.update(normalizer={"type": "Lowercase"})
    ),
    "it normalises text or has options": (
        "byte-level BPE", lambda spec: spec.update(normalizer={"type": "NFC"})
    ),
    "the nearest form there cuts 'Hello, world!' differently": (
        "Unigram", other_replacement
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_a_form_that_would_cut_differently_is_not_taken(tmp_path, reason):
    name, change = REASONS[reason]
    spec = json.loads(foreign.hugging_face()[name].to_str())
    change(spec)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    tokenizer = taken(path)
    assert type(tokenizer) is PythonTokenizer
    assert reason in tokenizer.graph_problem


@pytest.mark.one_case
@pytest.mark.parametrize("name", [*KINDS, "keras_hub", "python", "two"])
def test_tokenizers_are_saved_and_loaded(tmp_path, name):
    others = {
        "keras_hub": (foreign.keras_hub_word_pieces(),),
        "python": (foreign.whole_words(),),
        "two": (foreign.whole_words(), foreign.sentencepiece_model()),
    }
    pair = TokenizerPair.of(*others.get(name) or (foreign.hugging_face()[name],))
    tiny_run.tokenizers().save(tmp_path)  # Another kind was there before.
    pair.save(tmp_path)
    pair.save_digests(tmp_path)
    loaded = TokenizerPair.load(tmp_path)
    assert loaded.same_as(pair) and not loaded.same_as(tiny_run.tokenizers())
    assert loaded.vocabulary_sizes == pair.vocabulary_sizes
    assert loaded.config == pair.config
    for side in ("source", "target"):
        first, again = (getattr(p, side) for p in (pair, loaded))
        assert type(first) is type(again)
        rows = [t.tokenize(UNSEEN).to_list() for t in (first, again)]
        assert rows[0] == rows[1]
    if name != "two":
        assert loaded.source is loaded.target


def test_a_corpus_is_cut_by_any_tokenizer():
    for given in (foreign.keras_hub_word_pieces(), foreign.whole_words()):
        tokenizers = TokenizerPair.of(given)
        corpus = Corpus(tiny_run.TRAIN, tokenizers, DataConfig(batch_tokens=200))
        seen = [
            text.decode()
            for (source, _), _ in corpus.dataset()
            for text in tokenizers.source.detokenize(source).numpy()
        ]
        assert {text.replace(" .", ".") for text in seen} == {
            source for source, _ in tiny_run.TRAIN
        }


def test_only_sentencepiece_samples_its_pieces():
    tokenizers = TokenizerPair.of(foreign.keras_hub_word_pieces())
    corpus = Corpus(tiny_run.TRAIN, tokenizers, DataConfig(subword_sampling=0.1))
    with pytest.raises(ValueError, match="Only a SentencePiece model cuts .* WordPie"):
        next(corpus.epoch(0))


def test_files_that_are_no_tokenizer_are_errors(tmp_path):
    for content, reason in (
        ("text", "is not a SentencePiece model"),
        ("{}", "is not a tokenizer's file: not a tokenizer of Hugging Face"),
        ("{not json", "is not a tokenizer's file: Expecting property name"),
        ('{"byte_pair": {"vocabulary": {"a": 0}, "merges": []}}', "256 bytes and the"),
        ('{"word_piece": {"pieces": []}}', "unexpected keyword argument 'pieces'"),
    ):
        path = tmp_path / "tokenizer.json"
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"tokenizer\.json .*{reason}"):
            TokenizerPair.of(path)
    with pytest.raises(FileNotFoundError):
        TokenizerPair.of(tmp_path / "none.model")
    for other in (5, keras_hub.tokenizers.ByteTokenizer()):
        with pytest.raises(TypeError, match="A tokenizer must be a SentencePiece"):
            TokenizerPair.of(other)
