"""Tokenizers that were made elsewhere: files, and objects of other libraries."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from keras_transformer.text.byte_pair import BytePairTokenizer
from keras_transformer.text.hugging_face import from_hugging_face
from keras_transformer.text.subwords import Subwords
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_piece import WordPieceTokenizer

_EXPECTED = (
    "A tokenizer must be a SentencePiece model, one of Hugging Face's `tokenizers`, "
    "KerasHub's `WordPieceTokenizer`, `BytePairTokenizer` or `SentencePieceTokenizer`, "
    "or a file of one: .model or .json"
)


def as_tokenizer(given: Any) -> Subwords:
    """Returns a tokenizer of this package for one of another.

    Args:
        given: As `TokenizerPair.of` takes it.

    Raises:
        FileNotFoundError: If a file is missing.
        TypeError: If it is nothing that can be taken.
        ValueError: If a file is damaged or of another kind.
    """
    if isinstance(given, Subwords):
        return given
    if isinstance(given, (str, os.PathLike)):
        return _read(Path(given))
    if isinstance(given, bytes):
        return Tokenizer(given)
    if hasattr(given, "serialized_model_proto"):  # SentencePieceProcessor
        return Tokenizer(given.serialized_model_proto())
    given = getattr(given, "backend_tokenizer", given)  # of Transformers' fast ones
    if type(given).__module__.startswith("tokenizers") and hasattr(given, "to_str"):
        return from_hugging_face(given.to_str().encode())
    return _of_keras_hub(given)


def _read(path):
    """Reads a .model or a .json file."""
    content = path.read_bytes()
    if not content.lstrip().startswith(b"{"):
        return Tokenizer(content, origin=str(path))
    try:
        spec = json.loads(content)
        if "byte_pair" in spec:
            return BytePairTokenizer(**spec["byte_pair"])
        if "word_piece" in spec:
            return WordPieceTokenizer(**spec["word_piece"])
        return from_hugging_face(content)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a tokenizer's file: {error}") from error


def _as_gpt2(layer) -> bytes:
    """Returns the JSON that Hugging Face has for a `BytePairTokenizer` of KerasHub."""
    merges = [m for m in layer.merges if not m.startswith("#version")]
    model = {"type": "BPE", "vocab": dict(layer.vocabulary), "merges": merges}
    cutting = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    cutting["add_prefix_space"] = layer.add_prefix_space
    spec = {"model": model, "pre_tokenizer": cutting, "decoder": cutting}
    return json.dumps(spec, ensure_ascii=False).encode()


def _of_keras_hub(layer):
    """Returns the form of a KerasHub tokenizer."""
    kinds = {kind.__name__: kind for kind in reversed(type(layer).__mro__)}
    if "SentencePieceTokenizer" in kinds:
        return Tokenizer(layer.proto)
    if "BytePairTokenizer" in kinds:
        return from_hugging_face(_as_gpt2(layer))
    if "WordPieceTokenizer" in kinds:
        if not layer.split:
            raise ValueError(
                "A `WordPieceTokenizer` must cut text into words itself: make it with "
                "`split=True`. Received: split=False"
            )
        return WordPieceTokenizer(
            layer.get_vocabulary(), layer.oov_token, layer.suffix_indicator,
            layer.lowercase, layer.strip_accents, layer.split_on_cjk,
        )  # fmt: skip
    raise TypeError(f"{_EXPECTED}. Received: {type(layer).__name__}")
