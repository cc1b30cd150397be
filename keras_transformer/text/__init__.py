"""Text in, batches of ids out, and ids back to text. Needs TensorFlow."""

from keras_transformer.text.corpus import Corpus, learn_tokenizers
from keras_transformer.text.lines import read_lines
from keras_transformer.text.parallel_text import (
    AlignedFiles,
    BadLines,
    Pair,
    ParallelText,
    TfdsPairs,
    TsvFile,
    open_pairs,
)
from keras_transformer.text.tokenizer import Tokenizer, TokenizerPair

__all__ = [
    "AlignedFiles",
    "BadLines",
    "Corpus",
    "Pair",
    "ParallelText",
    "TfdsPairs",
    "Tokenizer",
    "TokenizerPair",
    "TsvFile",
    "learn_tokenizers",
    "open_pairs",
    "read_lines",
]
