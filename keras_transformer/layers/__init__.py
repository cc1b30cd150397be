"""Layers: tensors in, tensors out."""

from keras_transformer.kernels.softmax import masked_softmax
from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention import (
    additive_attention,
    scaled_dot_product_attention,
)
from keras_transformer.layers.attention_record import (
    record_attention,
    recorded_attention,
)
from keras_transformer.layers.causal_layer import CausalLayer
from keras_transformer.layers.decoder_layer import DecoderLayer
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.encoder_layer import EncoderLayer
from keras_transformer.layers.feature_embedding import FeatureEmbedding
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_normalization import LayerNormalization
from keras_transformer.layers.learned_positional_embedding import (
    LearnedPositionalEmbedding,
)
from keras_transformer.layers.linear_attention import LinearAttention, linear_attention
from keras_transformer.layers.linformer_attention import LinformerAttention
from keras_transformer.layers.local_attention import LocalAttention
from keras_transformer.layers.lsh_attention import LSHAttention
from keras_transformer.layers.multi_head_additive_attention import (
    MultiHeadAdditiveAttention,
)
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.patch_embedding import PatchEmbedding
from keras_transformer.layers.performer_attention import PerformerAttention
from keras_transformer.layers.positional_embedding import (
    PositionalEmbedding,
    sinusoidal_encoding,
)
from keras_transformer.layers.relative_positions import (
    AlibiPositions,
    RelativePositions,
    RotaryPositions,
    alibi_slopes,
    rotate,
)
from keras_transformer.layers.relu_attention import ReluAttention
from keras_transformer.layers.residual_layer import ResidualLayer
from keras_transformer.layers.sinusoidal_positional_encoding import (
    SinusoidalPositionalEncoding,
)
from keras_transformer.layers.ssru import SSRU
from keras_transformer.layers.ssru_decoder_layer import SSRUDecoderLayer

__all__ = [
    "SSRU",
    "AdditiveAttention",
    "AlibiPositions",
    "CausalLayer",
    "DecoderLayer",
    "Dropout",
    "EncoderLayer",
    "FeatureEmbedding",
    "FeedForward",
    "LSHAttention",
    "LayerNormalization",
    "LearnedPositionalEmbedding",
    "LinearAttention",
    "LinformerAttention",
    "LocalAttention",
    "MultiHeadAdditiveAttention",
    "MultiHeadAttention",
    "PatchEmbedding",
    "PerformerAttention",
    "PositionalEmbedding",
    "RelativePositions",
    "ReluAttention",
    "ResidualLayer",
    "RotaryPositions",
    "SSRUDecoderLayer",
    "SinusoidalPositionalEncoding",
    "additive_attention",
    "alibi_slopes",
    "linear_attention",
    "masked_softmax",
    "record_attention",
    "recorded_attention",
    "rotate",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
]
