"""All that is read of KerasHub's tokenizers beside their documented methods.

Each names the file and the function of KerasHub 0.32 that it leans on;
tests/text/test_keras_hub_private.py tells which of them has moved.
"""

from __future__ import annotations

import tensorflow as tf


def make_tables(tokenizer):
    """Makes the tables of a tokenizer, which else the first call makes."""
    # Leans on keras_hub/src/tokenizers/word_piece_tokenizer.py: _maybe_initialized_tf.
    # Leans on keras_hub/src/tokenizers/byte_pair_tokenizer.py: _maybe_initialized_tf.
    if hasattr(tokenizer, "_maybe_initialized_tf"):
        tokenizer._maybe_initialized_tf()


def tables_of(tokenizer) -> list:
    """Returns the tables, which a `tf.Module` must hold to be saved with a graph."""
    # Leans on keras_hub/src/tokenizers/byte_pair_tokenizer.py: BytePairTokenizerCache.
    kinds = (tf.Module, tf.lookup.StaticHashTable)
    return [value for value in vars(tokenizer).values() if isinstance(value, kinds)]


def omitted_options(tokenizer) -> dict:
    """Returns the options that `get_config` leaves out."""
    # Leans on keras_hub/src/tokenizers/word_piece_tokenizer.py: get_config.
    if not hasattr(tokenizer, "split_on_cjk"):
        return {}
    return {"split_on_cjk": tokenizer.split_on_cjk}


def joins_words_by_spaces(tokenizer) -> bool:
    """Whether `detokenize` puts a space before every word, punctuation included."""
    # Leans on keras_hub/src/tokenizers/word_piece_tokenizer.py: __init__.
    return hasattr(tokenizer, "suffix_indicator")


def is_ragged(tokenizer) -> bool:
    """Whether `tokenize` cuts texts and returns ragged ids."""
    # Leans on keras_hub/src/tokenizers/word_piece_tokenizer.py: __init__.
    # Leans on keras_hub/src/tokenizers/byte_pair_tokenizer.py: __init__.
    length = getattr(tokenizer, "sequence_length", None)
    return not length and bool(getattr(tokenizer, "split", True))


def unknown_token(tokenizer) -> str | None:
    """Returns the token of what has no id, or `None`."""
    # Leans on keras_hub/src/tokenizers/word_piece_tokenizer.py: __init__.
    return getattr(tokenizer, "oov_token", None)


def sentencepiece_model(tokenizer) -> bytes | None:
    """Returns the model of a SentencePiece tokenizer of KerasHub, else `None`."""
    # Leans on keras_hub/src/tokenizers/sentence_piece_tokenizer.py: set_proto.
    proto = getattr(tokenizer, "proto", None)
    return proto if isinstance(proto, bytes) else None
