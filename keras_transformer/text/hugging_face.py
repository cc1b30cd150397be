"""Tokenizers of Hugging Face's JSON files, in a form that TensorFlow's graph can hold.

A vocabulary with SentencePiece's spaces becomes a SentencePiece model, byte-level BPE
and WordPiece become the tokenizers of those names. Each is compared with the original
on sentences and on the vocabulary's own pieces; if one text is cut differently, or the
file asks for something else, the original stays, in Python.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterable

import tensorflow as tf

from keras_transformer.text.byte_pair import BytePairTokenizer
from keras_transformer.text.python_tokenizer import PythonTokenizer
from keras_transformer.text.sentencepiece_model import Piece, made_of
from keras_transformer.text.special_names import special_names
from keras_transformer.text.subwords import UNKNOWN_ID, Subwords
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_piece import WordPieceTokenizer

SENTENCES = (
    "", "Hello, world!", "Two young men are walking to the old market.",
    "It's the dogs' house; they'll say we've won, I'm sure you'd agree. DON'T!",
    "Zwei große Bären schlafen über Nacht, weiß Jürgen.", "ÉTÉ à l'île, où ça?",
    "In 1995, 3.14 + 2,000 = (x_1) & [y] #7 @me 100% a/b e-mail \\ ^ ~ `q`",
    "Привет, мир! Ωραία ς", "我是一名大学生。東京タワー", "नमस्ते १२३ ६", "مرحبا بالعالم",
    "naïve café ﬁ ½ ① Ⅷ … – — “quoted” «so»", "🦜 parrot 👩‍🚀 e\u0301",
    "words" * 30, "a\u00a0b", "a\u200bb\u00adc", "one  two   three",
)  # fmt: skip
_SPACE = "▁"


def from_hugging_face(content: bytes) -> Subwords:
    """Returns a tokenizer that cuts as a Hugging Face one does.

    Args:
        content: JSON of Hugging Face's `tokenizers`, such as a tokenizer.json.

    Returns:
        A `Tokenizer`, `BytePairTokenizer` or `WordPieceTokenizer`; or, if none of them
        cuts all that it was tried on as the original does, a `PythonTokenizer`.

    Raises:
        ImportError: If `tokenizers` is not installed.
        ValueError: If `content` is no such JSON.
    """
    original = PythonTokenizer(content, "no form was tried")
    # The reason is that of the form that came nearest.
    reason, nearest = "its kind has no form there", -1
    for candidate in _candidates(json.loads(content)):
        if isinstance(candidate, str):
            reason = candidate
            break
        place, text = _first_difference(original, candidate)
        if text is None:
            return candidate
        if place > nearest:
            reason = f"the nearest form there cuts {text!r} differently"
            nearest = place
    original.graph_problem = (
        "a tokenizer of another library is part of a graph only if a form there cuts "
        f"every text alike, and {reason}"
    )
    return original


def _candidates(spec: dict) -> Iterable[Subwords | str]:
    """Yields forms for the graph, or why there is none."""
    model, cutting = spec["model"], spec.get("pre_tokenizer") or {}
    steps = cutting.get("pretokenizers", [cutting]) if cutting else []
    kinds = [step["type"] for step in steps]
    normalizer = spec.get("normalizer") or {}
    if model["type"] == "WordPiece":
        if (normalizer.get("type"), kinds) != ("BertNormalizer", ["BertPreTokenizer"]):
            yield "its normalizer or its pre-tokenizer is not BERT's"
            return
        yield _word_piece(model, normalizer)
    elif model["type"] == "BPE" and kinds == ["ByteLevel"]:
        if normalizer or not steps[0].get("use_regex", True) or _odd(model):
            yield "it normalises text or has options that GPT-2's has not"
            return
        merges = map(_pair, model["merges"])
        yield BytePairTokenizer(
            model["vocab"], list(merges), steps[0]["add_prefix_space"]
        )
    elif model["type"] in ("Unigram", "BPE"):
        yield from _sentencepieces(model, normalizer, steps)


def _odd(model):
    """Whether a BPE has options that change where it cuts."""
    names = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    return any(map(model.get, (*names, "byte_fallback", "ignore_merges")))


def _pair(merge):
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


def _word_piece(model, normalizer):
    lowercase = normalizer["lowercase"]
    accents = normalizer["strip_accents"]
    return WordPieceTokenizer(
        sorted(model["vocab"], key=model["vocab"].get),
        oov_token=model["unk_token"],
        suffix_indicator=model["continuing_subword_prefix"],
        lowercase=lowercase,
        strip_accents=lowercase if accents is None else accents,
        split_on_cjk=normalizer["handle_chinese_chars"],
        cleaned=normalizer["clean_text"],
    )


def _sentencepieces(model, normalizer, steps):
    """Yields SentencePiece models that may cut as a Unigram or a BPE does."""
    steps = [*normalizer.get("normalizers", [normalizer] if normalizer else []), *steps]
    charsmap = b""
    for step in steps:
        if step["type"] == "Precompiled":
            charsmap = base64.b64decode(step["precompiled_charsmap"])
        elif step["type"] not in ("Replace", "Prepend", "Metaspace", "WhitespaceSplit"):
            yield f"SentencePiece has no {step['type']}"
            return
    if _SPACE not in json.dumps(steps, ensure_ascii=False):
        yield "it does not write a space as SentencePiece does"
        return
    scores = _scores(model)
    names = special_names(scores, _unknown(model))
    pieces = [
        Piece(piece=piece, score=score, type=_type_of(piece, model))
        for piece, score in scores.items()
        if piece not in names
    ]
    algorithm = model["type"].lower()
    for squeezed, prefix in itertools.product((True, False), repeat=2):
        yield Tokenizer(
            made_of(
                pieces, algorithm, names,
                byte_fallback=bool(model.get("byte_fallback")),
                precompiled_charsmap=charsmap, add_dummy_prefix=prefix,
                remove_extra_whitespaces=squeezed, escape_whitespaces=True,
            )
        )  # fmt: skip


def _type_of(piece, model):
    is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
    return Piece.BYTE if is_byte and model.get("byte_fallback") else Piece.NORMAL


def _unknown(model):
    if model["type"] == "Unigram":
        return model["vocab"][model["unk_id"] or 0][0]
    return model.get("unk_token")


def _scores(model):
    """Returns the score of each piece, in the order of their ids."""
    if model["type"] == "Unigram":
        return dict(map(tuple, model["vocab"]))
    ranks = {}
    for number, merge in enumerate(model["merges"]):
        ranks.setdefault("".join(_pair(merge)), number)
    order = sorted(model["vocab"], key=model["vocab"].get)
    return {piece: -float(ranks.get(piece, len(ranks))) for piece in order}


def _first_difference(original: PythonTokenizer, candidate: Subwords):
    """Returns the number of the first text that the two cut differently, and it.

    The text is `None` if there is none.
    """
    texts = [*SENTENCES, *_texts_of_pieces(original)]
    expected = [original.pieces(row) for row in original.ids_of(texts)]
    found = map(candidate.pieces, candidate.tokenize(texts).to_list())
    for place, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        if ours != theirs:
            return place, texts[place]
    return len(texts), None


def _texts_of_pieces(tokenizer):
    """Returns texts that hold a few thousand of a vocabulary's pieces."""
    size = tokenizer.vocabulary_size
    ids = range(UNKNOWN_ID + 1, size, max(1, size // 2000))
    rows = [list(ids[start : start + 8]) for start in range(0, len(ids), 8)]
    texts = tokenizer.detokenize(tf.ragged.constant(rows, dtype=tf.int32)).numpy()
    texts = (text.decode("utf-8", "replace").replace("\0", " ") for text in texts)
    return [" ".join(text.split()) for text in texts]
