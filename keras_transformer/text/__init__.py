"""Sentence pairs, tokenizers and batches. Needs TensorFlow and tensorflow-text."""

from keras_transformer.text.corpus import Corpus
from keras_transformer.text.pairs import (
    BadLines,
    Pair,
    ParallelText,
    mixed_pairs,
    open_pairs,
)
from keras_transformer.text.tokenizer import KerasHubTokenizer, Subwords, Tokenizer
from keras_transformer.text.tokenizer_pair import TokenizerPair, learn_tokenizers

__all__ = [
    "BadLines",
    "Corpus",
    "KerasHubTokenizer",
    "Pair",
    "ParallelText",
    "Subwords",
    "Tokenizer",
    "TokenizerPair",
    "learn_tokenizers",
    "mixed_pairs",
    "open_pairs",
]
