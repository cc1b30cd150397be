"""Small encoders with random weights, and their weights for the NumPy reference."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer.config.layers import EncoderConfig
from keras_transformer.models.text_encoder import TextEncoder
from tests.layers.reference_weights import (
    layer_weights_of,
    self_attention_of,
    weights_of,
)
from tests.reference import numpy_encoders, numpy_transformer

# Every size another prime, so that no two axes can be taken for each other. Dropout
# stays configured (0.1): it must not matter outside training.
CONFIG = EncoderConfig(
    num_layers=2, d_model=13, d_ff=17, num_heads=3, key_dim=5, value_dim=7
)
VOCABULARY_SIZE = 29
# The second sentence has padding.
IDS = np.array([[9, 4, 28, 17, 5, 11, 2], [8, 21, 6, 2, 0, 0, 0]], "int32")
# Three features a token, of which some are missing.
FEATURES = np.stack([IDS, np.where(IDS > 8, 12, 0), np.where(IDS > 0, 3, 0)], axis=-1)


def text_encoder(config=CONFIG, **options):
    return TextEncoder(config, VOCABULARY_SIZE, name="encoder", **options)


def array(variable):
    return ops.convert_to_numpy(variable).astype(np.float64)


def linear_weights_of(layer):
    """Weights of a `Dense`, or of a convolution as one matrix [P * P * C, D]."""
    kernel = array(layer.kernel)
    return {
        "kernel": kernel.reshape(-1, kernel.shape[-1]),
        "bias": array(layer.bias),
    }


def stack_output(stack, states, mask=None):
    """What the reference makes of states [B, S, D] in an `EncoderStack`."""
    config = stack.config
    weights = {"encoder_layers": [layer_weights_of(x) for x in stack.encoder_layers]}
    for layer in weights["encoder_layers"]:
        layer["self_attention"] |= self_attention_of(config)
    if config.norm_first:
        weights["norm"] = weights_of(stack.norm, "norm")
    return numpy_encoders.encoder_stack(
        states, weights, config.num_heads, mask, config.norm_first
    )


def embedding_output(encoder, ids):
    """What the reference makes of ids in a `TextEncoder`'s embedding, [B, S, D]."""
    table = array(encoder.embedding.embeddings)
    if encoder.num_features:
        return numpy_encoders.feature_embedding(ids, table)
    return numpy_transformer.positional_embedding(ids, table)


def text_states(encoder, ids):
    """What the reference makes of ids in a `TextEncoder`, [B, S, D]."""
    mask = ids != 0 if ids.ndim == 2 else (ids != 0).any(axis=-1)
    return stack_output(encoder.stack, embedding_output(encoder, ids), mask[:, None])
