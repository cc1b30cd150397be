"""Small encoders with random weights, and their weights for the NumPy reference."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer import (
    Encoder,
    EncoderConfig,
    FeatureEmbedding,
    MaskedLanguageModel,
    Tagger,
    TextClassifier,
)
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
# Every kind of self-attention that sees both sides.
KINDS = {
    "dot-product": {"positions": "rotary", "num_key_value_heads": 1},
    "local": {"attention_window": 2, "positions": "rotary", "use_bias": True},
    "relu": {"positions": "alibi", "num_key_value_heads": 1},
    "additive": {"positions": "alibi", "norm_first": True},
    "linear": {"attention_dropout_rate": 0.0},
    "performer": {"attention_dropout_rate": 0.0, "use_bias": True},
}
VOCABULARY_SIZE, NUM_TAGS, NUM_CLASSES = 29, 11, 5
# The second sentence has padding.
IDS = np.array([[9, 4, 28, 17, 5, 11, 2], [8, 21, 6, 2, 0, 0, 0]], "int32")
# Three features a token, of which some are missing.
FEATURES = np.stack([IDS, np.where(IDS > 8, 12, 0), np.where(IDS > 0, 3, 0)], axis=-1)
TAGS = np.array([[3, 10, 1, 1, 7, 2, 5], [4, 1, 9, 6, 0, 0, 0]], "int32")
CLASSES = np.array([3, 1], "int32")
HIDDEN = np.array([[0, 21, 0, 0, 5, 0, 0], [8, 0, 0, 7, 0, 0, 0]], "int32")


def config_of(kind):
    """The config with one kind of self-attention; rotary positions turn pairs."""
    return CONFIG.replace(attention=kind, key_dim=6, **KINDS[kind])


def encoder(config=CONFIG, features=False, dtype=None):
    embedding = VOCABULARY_SIZE
    if features:
        embedding = FeatureEmbedding(
            VOCABULARY_SIZE, config.d_model, config.dropout_rate, dtype=dtype
        )
    return Encoder(config, embedding, name="encoder", dtype=dtype)


def tagger(config=CONFIG, features=False, dtype=None, **options):
    return Tagger(encoder(config, features, dtype), NUM_TAGS, dtype=dtype, **options)


def classifier(pooling="mean", dtype=None, **options):
    encoded = encoder(dtype=dtype)
    return TextClassifier(encoded, NUM_CLASSES, pooling, dtype=dtype, **options)


def masked_language_model(dtype=None, **options):
    return MaskedLanguageModel(encoder(dtype=dtype), dtype=dtype, **options)


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
    """What the reference makes of ids in an encoder's embedding, [B, S, D]."""
    table = array(encoder.embedding.embeddings)
    if ids.ndim == 3:
        return numpy_encoders.feature_embedding(ids, table)
    positions = encoder.embedding.positions
    none = np.zeros((ids.shape[1], table.shape[1])) if positions == "none" else None
    return numpy_transformer.positional_embedding(ids, table, none)


def encoded(encoder, ids):
    """What the reference makes of ids in an `Encoder`, [B, S, D]."""
    mask = ids != 0 if ids.ndim == 2 else (ids != 0).any(axis=-1)
    return stack_output(encoder.stack, embedding_output(encoder, ids), mask[:, None])


def tags_expected(model, ids):
    """Logits of a `Tagger` by the reference, [B, S, tags]."""
    states = encoded(model.encoder, ids)
    return numpy_encoders.linear(states, linear_weights_of(model.output_map))


def sentence_expected(model, ids):
    """The state of each sentence in a `TextClassifier` by the reference, [B, D]."""
    if model.pooling == "mean":
        return numpy_encoders.masked_mean(encoded(model.encoder, ids), ids != 0)
    states = numpy_encoders.with_class_token(
        embedding_output(model.encoder, ids), array(model.class_token.token)
    )
    mask = np.pad(ids != 0, ((0, 0), (1, 0)), constant_values=True)
    return stack_output(model.encoder.stack, states, mask[:, None])[:, 0]


def classes_expected(model, ids):
    """Logits of a `TextClassifier` by the reference, [B, classes]."""
    state = sentence_expected(model, ids)
    return numpy_encoders.linear(state, linear_weights_of(model.output_map))


def hidden_expected(model, ids):
    """Logits of a `MaskedLanguageModel` by the reference, [B, S, V]."""
    table = array(model.encoder.embedding.embeddings)
    return encoded(model.encoder, ids) @ table.T
