"""The Transformer of "Attention Is All You Need" for Keras 3.

Importing the package needs Keras and its backend alone. Text, training runs,
translation and export need TensorFlow and are imported on first use.
"""

import importlib
import sys
from pathlib import Path

_MODULES = {
    "config": (
        "DataConfig",
        "DecodingConfig",
        "EncoderConfig",
        "LanguageModelConfig",
        "RecurrentConfig",
        "RunConfig",
        "TokenizerConfig",
        "TrainingConfig",
        "TransformerConfig",
    ),
    "decoding": ("SpecialIds", "beam_search", "greedy_search", "reordering", "sample"),
    "evaluation": ("evaluate",),
    "export": ("ExportedTranslator",),
    "exact_training": ("split_batches_over_cores",),
    "generation": ("Generator", "LanguageSampler"),
    "layers": (
        "AdditiveAttention",
        "AlibiPositions",
        "CausalLayer",
        "DecoderLayer",
        "EncoderLayer",
        "FeatureEmbedding",
        "FeedForward",
        "LearnedPositionalEmbedding",
        "LinearAttention",
        "LocalAttention",
        "MultiHeadAttention",
        "PositionalEmbedding",
        "ReluAttention",
        "RotaryPositions",
        "SinusoidalPositionalEncoding",
        "scaled_dot_product_attention",
        "sinusoidal_encoding",
    ),
    "losses": ("MaskedCrossentropy",),
    "masks": (
        "causal_mask",
        "graph_mask",
        "local_window_mask",
        "padding_mask",
        "valid_length_mask",
    ),
    "metrics": ("MaskedAccuracy", "Perplexity"),
    "models": (
        "EncoderStack",
        "ImageClassifier",
        "LanguageModel",
        "MaskedLanguageModel",
        "MaskedTokens",
        "NodeClassifier",
        "RecurrentSeq2Seq",
        "Tagger",
        "TextClassifier",
        "TextEncoder",
        "Transformer",
    ),
    "optimizers": ("Adam",),
    "schedules": ("TransformerSchedule",),
    "text": ("Corpus", "Tokenizer", "TokenizerPair", "open_pairs"),
    "training": ("train",),
    "translator": ("Translator",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__():
    return sorted({*globals(), *__all__})


# Importing the package registers its classes, so that Keras can load files with them.
# The command line alone checks its arguments first: loading Keras takes seconds.
if Path((sys.argv or [""])[0]).stem != "keras-transformer":
    for _module in ("layers", "losses", "metrics", "models", "optimizers", "schedules"):
        importlib.import_module(f"{__name__}.{_module}")
