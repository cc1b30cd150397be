from .cleaning import Cleaning as Cleaning, clean_pairs as clean_pairs
from .corpus import Corpus as Corpus
from .pairs import (
    mixed_pairs as mixed_pairs,
    open_pairs as open_pairs,
)
from .parallel_text import (
    BadLines as BadLines,
    Pair as Pair,
    ParallelText as ParallelText,
)
from .tokenizer import (
    KerasHubTokenizer as KerasHubTokenizer,
    Subwords as Subwords,
    Tokenizer as Tokenizer,
)
from .tokenizer_pair import (
    TokenizerPair as TokenizerPair,
    learn_tokenizers as learn_tokenizers,
)
