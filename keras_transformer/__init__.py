"""The Transformer of "Attention Is All You Need" for Keras 3.

Importing the package needs Keras and its backend alone. Text, training runs,
translation and export need TensorFlow and are imported on first use.
"""

import importlib

from keras_transformer.config import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from keras_transformer.decoding import SpecialIds, beam_search, greedy_search
from keras_transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
    scaled_dot_product_attention,
    sinusoidal_encoding,
)
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.masks import causal_mask, padding_mask, valid_length_mask
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import TransformerSchedule

_NEED_TENSORFLOW = {
    "Corpus": "text",
    "ExportedTranslator": "export",
    "Tokenizer": "text",
    "TokenizerPair": "text",
    "Translator": "translator",
    "evaluate": "evaluation",
    "open_pairs": "text",
    "train": "training",
}

__all__ = [
    "Corpus",
    "DataConfig",
    "DecoderLayer",
    "DecodingConfig",
    "EncoderLayer",
    "ExportedTranslator",
    "FeedForward",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MultiHeadAttention",
    "Perplexity",
    "PositionalEmbedding",
    "RunConfig",
    "SpecialIds",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerPair",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "TransformerSchedule",
    "Translator",
    "beam_search",
    "causal_mask",
    "evaluate",
    "greedy_search",
    "open_pairs",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
    "train",
    "valid_length_mask",
]


def __getattr__(name):
    if name not in _NEED_TENSORFLOW:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_NEED_TENSORFLOW[name]}")
    return getattr(module, name)


def __dir__():
    return sorted({*globals(), *__all__})
