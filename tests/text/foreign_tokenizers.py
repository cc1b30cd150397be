"""Small tokenizers of other libraries, learned from the sentences of the tests."""

from __future__ import annotations

import functools
import io
import json

import keras_hub
import sentencepiece
import tensorflow as tf
import tokenizers as hf
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from keras_transformer.text.hugging_face import SENTENCES
from tests import tiny_run

TEXT = [sentence for pair in tiny_run.PAIRS for sentence in pair] * 2
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
OPTIONS = {"special_tokens": SPECIAL, "show_progress": False}


def byte_pairs(prefix=False):
    made = hf.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, **OPTIONS)
    made.train_from_iterator([*TEXT, *SENTENCES], trainer)
    return made


def word_pieces(lowercase=False):
    made = hf.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([*TEXT, *SENTENCES], trainer)
    return made


def unigram():
    made = hf.Tokenizer(models.Unigram())
    made.normalizer = normalizers.Replace(hf.Regex(" {2,}"), " ")
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", **OPTIONS)
    made.train_from_iterator(TEXT, trainer)
    return made


def spaced_byte_pairs():
    """BPE with SentencePiece's spaces and bytes, as Llama's."""
    made = hf.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    made_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=[*SPECIAL, *made_bytes], show_progress=False
    )
    made.train_from_iterator(TEXT, trainer)
    made.model.byte_fallback = True
    made.model.fuse_unk = True
    return made


def whole_words():
    made = hf.Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(TEXT, trainers.WordLevelTrainer(vocab_size=90, **OPTIONS))
    return made


@functools.cache
def hugging_face():
    """One of each kind of Hugging Face's library, by name."""
    return {
        "byte-level BPE": byte_pairs(),
        "byte-level BPE with a space": byte_pairs(prefix=True),
        "WordPiece": word_pieces(),
        "WordPiece in lower case": word_pieces(lowercase=True),
        "Unigram": unigram(),
        "BPE with bytes": spaced_byte_pairs(),
    }


@functools.cache
def keras_hub_word_pieces(lowercase=False):
    special = ["[PAD]", "[UNK]", "[START]", "[END]"]
    vocabulary = keras_hub.tokenizers.compute_word_piece_vocabulary(
        tf.data.Dataset.from_tensor_slices(TEXT), 150, lowercase=lowercase,
        reserved_tokens=special,
    )  # fmt: skip
    return keras_hub.tokenizers.WordPieceTokenizer(vocabulary, lowercase=lowercase)


@functools.cache
def keras_hub_byte_pairs():
    content = hugging_face()["byte-level BPE"]
    model = json.loads(content.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return keras_hub.tokenizers.BytePairTokenizer(model["vocab"], merges)


@functools.cache
def sentencepiece_model() -> bytes:
    """A model with the ids that SentencePiece gives by itself."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, vocab_size=90,
        model_type="bpe", minloglevel=2,
    )  # fmt: skip
    return model.getvalue()
