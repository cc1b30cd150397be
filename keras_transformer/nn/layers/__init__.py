"""Layers: tensors in, tensors out."""

from keras_transformer.nn.layers.adaptation import enable_lora
from keras_transformer.nn.layers.attention import (
    masked_softmax,
    record_attention,
    recorded_attention,
    scaled_dot_product_attention,
)
from keras_transformer.nn.layers.basic import FeedForward, LayerNormalization
from keras_transformer.nn.layers.dropout import Dropout
from keras_transformer.nn.layers.embedding import (
    PositionalEmbedding,
    PositionalEncoding,
    sinusoidal_encoding,
)
from keras_transformer.nn.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.nn.layers.relative_positions import (
    AlibiPositions,
    RelativePositions,
    RotaryPositions,
    alibi_slopes,
    rotate,
)
from keras_transformer.nn.layers.ssru import SSRU
from keras_transformer.nn.layers.transformer_layer import (
    CausalLayer,
    DecoderLayer,
    EncoderLayer,
    Residual,
    TransformerLayer,
)

__all__ = [
    "SSRU",
    "AlibiPositions",
    "CausalLayer",
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "FeedForward",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "PositionalEncoding",
    "RelativePositions",
    "Residual",
    "TransformerLayer",
    "RotaryPositions",
    "alibi_slopes",
    "enable_lora",
    "masked_softmax",
    "record_attention",
    "recorded_attention",
    "rotate",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
]
