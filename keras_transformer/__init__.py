"""The Transformer of "Attention Is All You Need" for Keras 3.

Names are imported on first use: layers and models then need Keras and its backend
alone, text, training runs and export need TensorFlow too.
"""

import importlib

_MODULES = {
    "keras_transformer.config": (
        "DataConfig",
        "DecodingConfig",
        "RunConfig",
        "TokenizerConfig",
        "TrainingConfig",
        "TransformerConfig",
    ),
    "keras_transformer.decoding": ("beam_search", "greedy_search"),
    "keras_transformer.evaluation": ("evaluate",),
    "keras_transformer.export": ("ExportedTranslator",),
    "keras_transformer.layers": (
        "DecoderLayer",
        "EncoderLayer",
        "FeedForward",
        "MultiHeadAttention",
        "PositionalEmbedding",
        "scaled_dot_product_attention",
        "sinusoidal_encoding",
    ),
    "keras_transformer.losses": ("MaskedCrossentropy",),
    "keras_transformer.masks": ("causal_mask", "padding_mask", "valid_length_mask"),
    "keras_transformer.metrics": ("MaskedAccuracy", "Perplexity"),
    "keras_transformer.models": ("Transformer",),
    "keras_transformer.schedules": ("TransformerSchedule",),
    "keras_transformer.text": ("Corpus", "Tokenizer", "TokenizerPair", "open_pairs"),
    "keras_transformer.training": ("train",),
    "keras_transformer.translator": ("Translator",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__():
    return sorted({*globals(), *__all__})
