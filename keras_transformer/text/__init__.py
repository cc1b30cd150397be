"""Text in, batches of ids out, and ids back to text.

Needs TensorFlow and tensorflow-text.
"""

from keras_transformer.text.byte_pair import BytePairTokenizer
from keras_transformer.text.corpus import Corpus, learn_tokenizers
from keras_transformer.text.lines import read_lines
from keras_transformer.text.mixed_pairs import MixedPairs, mixed_pairs
from keras_transformer.text.parallel_text import (
    AlignedFiles,
    BadLines,
    Pair,
    ParallelText,
    TsvFile,
)
from keras_transformer.text.python_tokenizer import PythonTokenizer
from keras_transformer.text.sources import RowPairs, open_pairs
from keras_transformer.text.subwords import Subwords
from keras_transformer.text.tables import DelimitedFile, ParquetFile, TfdsPairs
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.tokenizer_pair import TokenizerPair
from keras_transformer.text.word_piece import WordPieceTokenizer

__all__ = [
    "AlignedFiles",
    "BadLines",
    "BytePairTokenizer",
    "Corpus",
    "DelimitedFile",
    "MixedPairs",
    "Pair",
    "ParallelText",
    "ParquetFile",
    "PythonTokenizer",
    "RowPairs",
    "Subwords",
    "TfdsPairs",
    "Tokenizer",
    "TokenizerPair",
    "TsvFile",
    "WordPieceTokenizer",
    "learn_tokenizers",
    "mixed_pairs",
    "open_pairs",
    "read_lines",
]
