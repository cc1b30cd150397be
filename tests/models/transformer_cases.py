"""Small models with a decoder, with random weights, and the reference's logits."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer import (
    LanguageModel,
    LanguageModelConfig,
    Transformer,
    TransformerConfig,
)
from tests.layers.reference_weights import (
    layer_weights_of,
    model_weights_of,
    randomise,
    self_attention_of,
    weights_of,
)
from tests.reference import numpy_transformer as reference

# Every size another prime, so that no two axes can be taken for each other.
SIZES = {
    "source_vocabulary_size": 29,
    "target_vocabulary_size": 29,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "d_model": 17,
    "d_ff": 23,
    "num_heads": 3,
    "key_dim": 5,
    "value_dim": 7,
    "max_positions": 19,
}
# Dropout stays configured (0.1): it must not matter outside training.
VARIANTS = {
    "post-norm, three-way": {},
    "pre-norm, two-way": {
        "norm_first": True,
        "tied_embeddings": "two-way",
        "source_vocabulary_size": 31,
    },
    "biases, learned positions, untied": {
        "use_bias": True,
        "positions": "learned",
        "tied_embeddings": "none",
        "source_vocabulary_size": 31,
    },
    # What others' models have: students of Marian,
    "normalised embeddings, SSRU, output bias": {
        "d_model": 18,
        "layer_norm_epsilon": 0.01,
        "positions": "sinusoidal-marian",
        "normalize_embeddings": True,
        "decoder_self_attention": "ssru",
        "output_bias": True,
    },
    # and translators of Hugging Face.
    "halves, output bias, untied": {
        "d_model": 22,
        "norm_first": True,
        "layer_norm_epsilon": 1e-3,
        "positions": "sinusoidal-halves",
        "tied_embeddings": "none",
        "source_vocabulary_size": 31,
        "output_bias": True,
    },
    # Other kinds of self-attention, and positions that enter it.
    "ReLU, rotary, one head of keys": {
        "attention": "relu",
        "positions": "rotary",
        "key_dim": 6,
        "num_key_value_heads": 1,
    },
    "local, ALiBi, pre-norm": {
        "attention": "local",
        "attention_window": 2,
        "positions": "alibi",
        "norm_first": True,
    },
    "linear, biases": {
        "attention": "linear",
        "attention_dropout_rate": 0.0,
        "use_bias": True,
    },
    "additive, ALiBi, one head of keys": {
        "attention": "additive",
        "positions": "alibi",
        "num_key_value_heads": 1,
    },
    "random features": {"attention": "performer", "attention_dropout_rate": 0.0},
}
SOURCE = np.array([[9, 4, 28, 17, 5, 11, 2], [8, 21, 6, 2, 0, 0, 0]], "int32")
TARGET_IN = np.array([[1, 14, 7, 22, 10], [1, 19, 27, 0, 0]], "int32")
TARGET_OUT = np.array([[14, 7, 22, 10, 2], [19, 27, 2, 0, 0]], "int32")


# Of the language model.
LANGUAGE_SIZES = {
    "vocabulary_size": 29,
    "num_layers": 3,
    "d_model": 17,
    "d_ff": 23,
    "num_heads": 3,
    "key_dim": 5,
    "value_dim": 7,
    "max_positions": 19,
}
LANGUAGE_VARIANTS = {
    "post-norm, tied": {},
    "pre-norm, tied": {"norm_first": True},
    "biases, learned positions, untied": {
        "use_bias": True,
        "positions": "learned",
        "tied_embeddings": False,
    },
    "local, rotary, one head of keys": {
        "attention": "local",
        "attention_window": 2,
        "positions": "rotary",
        "key_dim": 6,
        "num_key_value_heads": 1,
    },
    "ReLU, ALiBi": {"attention": "relu", "positions": "alibi", "norm_first": True},
    "linear": {"attention": "linear", "attention_dropout_rate": 0.0},
    "additive": {"attention": "additive"},
    "random features": {"attention": "performer", "attention_dropout_rate": 0.0},
    "SSRU": {"attention": "ssru"},
}
IDS_IN = np.array([[1, 14, 7, 22, 10, 5], [1, 19, 27, 0, 0, 0]], "int32")
IDS_OUT = np.array([[14, 7, 22, 10, 5, 2], [19, 27, 2, 0, 0, 0]], "int32")
NO_DROPOUT = {
    "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "activation_dropout_rate": 0.0,
}  # fmt: skip


def random_model(rng, **options):
    """A Transformer with every weight random, biases and norms too."""
    return randomise(Transformer(TransformerConfig(**(SIZES | options))), rng)


def random_language_model(rng, **options):
    """A language model with every weight random."""
    config = LanguageModelConfig(**(LANGUAGE_SIZES | options))
    return randomise(LanguageModel(config), rng)


def logits_expected(model, inputs):
    """Logits of a `Transformer` by the reference, [B, T, V]."""
    config = model.config
    return reference.transformer(
        *inputs, model_weights_of(model), config.num_heads, config.norm_first,
        config.pad_id,
    )  # fmt: skip


def next_expected(model, ids):
    """Logits of a `LanguageModel` by the reference: a decoder without a source."""
    config = model.config

    def array(variable):
        return ops.convert_to_numpy(variable).astype("float64")

    positions = None
    if config.positions == "learned":
        positions = array(model.embedding.position_embeddings)
    elif config.positions in ("rotary", "alibi"):
        positions = np.zeros((ids.shape[1], config.d_model))
    embeddings = array(model.embedding.embeddings)
    states = reference.positional_embedding(ids, embeddings, positions)
    mask = reference.causal_mask(ids.shape[1]) & reference.padding_mask(ids)
    for layer in model.decoder_layers:
        weights = layer_weights_of(layer)
        weights["self_attention"] |= self_attention_of(config)
        states = reference.encoder_layer(
            states, weights, config.num_heads, mask, config.norm_first
        )
    if config.norm_first:
        states = reference.layer_norm(states, weights_of(model.norm, "norm"))
    tied = config.tied_embeddings
    return states @ (embeddings.T if tied else array(model.output_dense.kernel))
