"""The Transformer of "Attention Is All You Need" for Keras 3."""

from keras_transformer.config import (
    DataConfig,
    DecodingConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    TransformerConfig,
)
from keras_transformer.layers import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEmbedding,
)
from keras_transformer.losses import MaskedCrossentropy
from keras_transformer.metrics import MaskedAccuracy, Perplexity
from keras_transformer.models import Transformer
from keras_transformer.schedules import TransformerSchedule

__all__ = [
    "DataConfig",
    "DecoderLayer",
    "DecodingConfig",
    "EncoderLayer",
    "FeedForward",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "MultiHeadAttention",
    "Perplexity",
    "PositionalEmbedding",
    "RunConfig",
    "TokenizerConfig",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "TransformerSchedule",
]
