"""Random pieces for training: which, how often, and always the same from a seed."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from math import exp

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.config import TokenizerConfig
from keras_transformer.text import Tokenizer
from keras_transformer.text.subword_sampling import SubwordSampler

TEXTS = [
    "A small house stands near the river.",
    "Two young men are walking to the old market.",
    "Ein kleines Haus steht am Fluss, und daneben noch eines.",
    "Zwei junge Männer gehen zum alten Markt.",
    "the red car is in front of the red house, and the man is in the car",
]
ODD = [
    "", "   ", "unseen: 🦜 漢字", "a</s>b <pad>", "▁x ▁ y", "nul\x00byte",
    "\t x\u3000y", "ﬁ Ⅷ ①", "x" * 300, "\ufffd\u200b\U0010ffff",
]  # fmt: skip


def learned(algorithm, byte_fallback=True):
    size = 322 if byte_fallback else 66
    config = TokenizerConfig(
        vocabulary_size=size, algorithm=algorithm, byte_fallback=byte_fallback
    )
    return Tokenizer.learn(TEXTS * 3, config)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request):
    return learned(request.param)


def model_of(kind, **scores):
    """A vocabulary of the given pieces and scores; "_" stands for a space."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = kind
    proto.trainer_spec.byte_fallback = False
    for name, special in (("<pad>", 3), ("<s>", 3), ("</s>", 3), ("<unk>", 2)):
        proto.pieces.add(piece=name, type=special, score=0)
    for piece, score in scores.items():
        proto.pieces.add(piece=piece.replace("_", "▁"), type=1, score=score)
    proto.trainer_spec.pad_id, proto.trainer_spec.unk_id = 0, 3
    proto.trainer_spec.bos_id, proto.trainer_spec.eos_id = 1, 2
    return proto.SerializeToString()


BPE, UNIGRAM = (
    sentencepiece_model_pb2.TrainerSpec.BPE,
    sentencepiece_model_pb2.TrainerSpec.UNIGRAM,
)


def shares(model, rate, text, draws=20_000):
    """How often each segmentation of a text is drawn, by its pieces."""
    rows = SubwordSampler(model, rate).sample([text] * draws, (3,))
    pieces = Tokenizer(model).pieces
    counts = Counter(" ".join(pieces(row)) for row in rows)
    return {segmentation: count / draws for segmentation, count in counts.items()}


def test_each_merge_is_left_out_with_the_rate_as_its_probability():
    # "▁ a" merges first, then "▁a b"; "a b" is possible once "▁ a" is left out.
    model = model_of(BPE, _a=-1, ab=-2, _ab=-3, _=-4, a=-5, b=-6)
    kept = 0.75
    expected = {
        "▁ab": kept * kept + (1 - kept) * kept * kept,
        "▁a b": kept * (1 - kept),
        "▁ ab": (1 - kept) * kept * (1 - kept),
        "▁ a b": (1 - kept) ** 2,
    }
    assert shares(model, 0.25, "ab") == pytest.approx(expected, abs=0.01)


def test_segmentations_have_their_probability_to_the_power_of_the_rate():
    scores = {"_": -2.0, "a": -3.0, "b": -2.5, "_a": -3.5, "ab": -4.0, "_ab": -5.0}
    rate = 0.3
    weights = {
        "▁ab": exp(rate * -5.0),
        "▁a b": exp(rate * (-3.5 - 2.5)),
        "▁ ab": exp(rate * (-2.0 - 4.0)),
        "▁ a b": exp(rate * (-2.0 - 3.0 - 2.5)),
    }
    total = sum(weights.values())
    expected = {name: weight / total for name, weight in weights.items()}
    found = shares(model_of(UNIGRAM, **scores), rate, "ab")
    assert found == pytest.approx(expected, abs=0.01)


def test_the_same_seed_gives_the_same_pieces_and_another_one_others(tokenizer):
    def drawn(*seed):
        return [row.tolist() for row in tokenizer.sample(TEXTS, 0.2, seed)]

    first = drawn(5, 0, 2)
    assert drawn(5, 0, 2) == first
    assert drawn(5, 1, 2) != first
    assert drawn(np.int64(5), np.int64(0), np.int64(2)) == first


def test_another_process_draws_the_same_pieces(tokenizer, tmp_path):
    """Which SentencePiece's own sampling does not: a salt of the process is in it."""
    tokenizer.save(tmp_path / "text.model")
    program = (
        "import sys, pathlib\n"
        "from keras_transformer.text.subword_sampling import SubwordSampler\n"
        "model = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "rows = SubwordSampler(model, 0.2).sample(sys.argv[2:], (7, 1))\n"
        "print([row.tolist() for row in rows])\n"
    )
    command = [sys.executable, "-c", program, tmp_path / "text.model", *TEXTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    here = [row.tolist() for row in tokenizer.sample(TEXTS, 0.2, (7, 1))]
    assert done.stdout.strip() == str(here)


def test_what_was_cut_before_changes_nothing(tokenizer):
    rows = [row.tolist() for row in tokenizer.sample(TEXTS, 0.2, (1,))]
    tokenizer.sample(ODD, 0.2, (2,))
    again = Tokenizer(tokenizer._model).sample(TEXTS, 0.2, (1,))
    assert [row.tolist() for row in again] == rows


def test_sampled_pieces_are_int32_and_spell_the_text(tokenizer):
    plain = tokenizer.tokenize(TEXTS + ODD)
    texts = tokenizer.detokenize(plain).numpy().tolist()
    rows = tokenizer.sample(TEXTS + ODD, 0.3, (4,))
    assert {row.dtype for row in rows} == {np.dtype("int32")}
    assert sum(map(len, rows)) > len(plain.values) + 20
    for row, text in zip(rows, texts, strict=True):
        assert tokenizer.detokenize(row[None]).numpy().tolist() == [text]


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_without_a_merge_left_out_the_pieces_are_the_tokenizers(byte_fallback):
    tokenizer = learned("bpe", byte_fallback)
    rows = tokenizer.sample(TEXTS + ODD, 1e-12, (1,))
    expected = tokenizer.tokenize(TEXTS + ODD).to_list()
    assert [row.tolist() for row in rows] == expected


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_a_high_power_leaves_the_most_probable_segmentation(byte_fallback):
    tokenizer = learned("unigram", byte_fallback)
    sampler = SubwordSampler(tokenizer._model, 0.5)
    sampler._words._rate = 1000.0
    rows = sampler.sample(TEXTS + ODD, (1,))
    expected = tokenizer.tokenize(TEXTS + ODD).to_list()
    assert [row.tolist() for row in rows] == expected


def test_as_many_pieces_are_drawn_as_sentencepiece_draws(tokenizer):
    """A second witness of the distribution, whose own seed cannot be fixed."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(tokenizer._model)
    texts = TEXTS * 400
    theirs = processor.encode(texts, enable_sampling=True, nbest_size=-1, alpha=0.2)
    ours = tokenizer.sample(texts, 0.2, (8,))
    counts = [sum(map(len, rows)) / len(rows) for rows in (ours, theirs)]
    assert counts[0] == pytest.approx(counts[1], rel=0.02)


def test_sampling_leaves_the_tokenizer_as_it_was(tokenizer):
    before = tokenizer.tokenize(TEXTS).to_list()
    tokenizer.sample(TEXTS, 0.5, (1,))
    assert tokenizer.tokenize(TEXTS).to_list() == before


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_rate_out_of_range_is_an_error(tokenizer, rate):
    with pytest.raises(ValueError, match=f"`rate` must be above 0 .* rate={rate}"):
        tokenizer.sample(TEXTS, rate, (1,))


def test_vocabularies_that_cannot_be_sampled_from_are_errors():
    with pytest.raises(ValueError, match="pieces end with the word.*'a▁b'"):
        SubwordSampler(model_of(BPE, a_b=-1), 0.1)
    with pytest.raises(ValueError, match="needs a BPE or unigram vocabulary"):
        SubwordSampler(model_of(sentencepiece_model_pb2.TrainerSpec.WORD, a=-1), 0.1)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=60,
        model_type="bpe", minloglevel=2, user_defined_symbols=["@@"],
    )  # fmt: skip
    with pytest.raises(ValueError, match="without user-defined .* '@@'"):
        SubwordSampler(model.getvalue(), 0.1)
