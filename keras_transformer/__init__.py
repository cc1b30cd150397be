"""The Transformer of "Attention Is All You Need" for Keras 3.

Each public name is loaded when it is asked for: configurations need neither Keras nor
TensorFlow, layers and models need Keras and its backend, and text, training runs,
translation and export need TensorFlow.
"""

import importlib
import sys

_MODULES = {
    "config": (
        "DataConfig",
        "DecodingConfig",
        "EncoderConfig",
        "LanguageModelConfig",
        "RunConfig",
        "TokenizerConfig",
        "TrainingConfig",
        "TransformerConfig",
    ),
    "decoding": ("SpecialIds", "beam_search", "greedy_search", "reordering", "sample"),
    "evaluation": ("evaluate",),
    "export": ("ExportedTranslator", "export_litert_model"),
    "exact_training": ("ExactModel", "split_batches_over_cores"),
    "generation": ("Generator", "LanguageSampler"),
    "importers": (
        "import_hugging_face",
        "import_marian",
        "import_model",
    ),
    "layers": (
        "SSRU",
        "enable_lora",
        "AdditiveAttention",
        "AlibiPositions",
        "CausalLayer",
        "ClassToken",
        "DecoderLayer",
        "EncoderLayer",
        "FeatureEmbedding",
        "FeedForward",
        "LinearAttention",
        "LocalAttention",
        "MultiHeadAdditiveAttention",
        "MultiHeadAttention",
        "PatchEmbedding",
        "PerformerAttention",
        "PositionalEmbedding",
        "PositionalEncoding",
        "ReluAttention",
        "RotaryPositions",
        "scaled_dot_product_attention",
        "sinusoidal_encoding",
    ),
    "lite": ("LiteTranslator",),
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
        "Ensemble",
        "LanguageModel",
        "MaskedLanguageModel",
        "MaskedTokens",
        "Tagger",
        "TextClassifier",
        "Encoder",
        "Transformer",
    ),
    "optimizers": ("Adam",),
    "schedules": ("TransformerSchedule", "WarmupSchedule"),
    "text": (
        "Corpus",
        "Tokenizer",
        "TokenizerPair",
        "learn_tokenizers",
        "mixed_pairs",
        "open_pairs",
    ),
    "training": ("train",),
    "translator": ("Translator",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)
_DISTRIBUTION = "keras-transformer-seq2seq"


# Keras loads a file of ours only after these have registered their classes.
_REGISTERING = (
    "exact_training", "layers", "losses", "metrics", "models", "optimizers",
    "schedules",
)  # fmt: skip


def __getattr__(name):
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    _register_if_keras_is_there()
    return value


def __dir__():
    return sorted([*__all__, "__version__"])


def _version():
    """The version that is installed; setup.cfg says which."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise AttributeError(
            f"`__version__` is known once {_DISTRIBUTION} is installed: pip install ."
        ) from error


def _register_if_keras_is_there():
    """Registers every class, unless nobody has imported Keras: that takes seconds."""
    if "keras" in sys.modules:
        for module in _REGISTERING:
            importlib.import_module(f"{__name__}.{module}")


_register_if_keras_is_there()
