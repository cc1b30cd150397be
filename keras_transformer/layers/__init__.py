"""Layers: tensors in, tensors out."""

from keras_transformer.layers.attention import (
    masked_softmax,
    scaled_dot_product_attention,
)
from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.positional_embedding import (
    PositionalEmbedding,
    sinusoidal_encoding,
)
from keras_transformer.layers.residual_layer import ResidualLayer

__all__ = [
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "FeedForward",
    "LayerNormalization",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "ResidualLayer",
    "masked_softmax",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
]
