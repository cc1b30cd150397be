"""Layers: tensors in, tensors out."""

from keras_transformer.kernels.few_passes import masked_softmax
from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention import (
    additive_attention,
    record_attention,
    recorded_attention,
    scaled_dot_product_attention,
)
from keras_transformer.layers.basic import Dropout, FeedForward, LayerNormalization
from keras_transformer.layers.embedding import (
    ClassToken,
    FeatureEmbedding,
    LearnedPositionalEmbedding,
    PositionalEmbedding,
    SinusoidalPositionalEncoding,
    sinusoidal_encoding,
)
from keras_transformer.layers.linear_attention import (
    LinearAttention,
    PerformerAttention,
    linear_attention,
)
from keras_transformer.layers.linformer_attention import LinformerAttention
from keras_transformer.layers.local_attention import LocalAttention
from keras_transformer.layers.lsh_attention import LSHAttention
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.patch_embedding import PatchEmbedding
from keras_transformer.layers.relative_positions import (
    AlibiPositions,
    RelativePositions,
    RotaryPositions,
    alibi_slopes,
    rotate,
)
from keras_transformer.layers.score_attentions import (
    MultiHeadAdditiveAttention,
    ReluAttention,
)
from keras_transformer.layers.ssru import SSRU, SSRUDecoderLayer
from keras_transformer.layers.transformer_layer import (
    CausalLayer,
    DecoderLayer,
    EncoderLayer,
    ResidualLayer,
)

__all__ = [
    "SSRU",
    "AdditiveAttention",
    "AlibiPositions",
    "CausalLayer",
    "ClassToken",
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
