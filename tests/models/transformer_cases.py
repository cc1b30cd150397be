"""Small Transformers with random weights, and sentences, for the tests of the model."""

from __future__ import annotations

import numpy as np
from keras import ops

from keras_transformer import Transformer, TransformerConfig
from tests.layers.reference_weights import randomise

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
    # Dropout would be drawn for places in buckets, which later tokens move.
    "hashing": {"attention": "lsh", "attention_dropout_rate": 0.0},
}
SOURCE = np.array([[9, 4, 28, 17, 5, 11, 2], [8, 21, 6, 2, 0, 0, 0]], "int32")
TARGET_IN = np.array([[1, 14, 7, 22, 10], [1, 19, 27, 0, 0]], "int32")
TARGET_OUT = np.array([[14, 7, 22, 10, 2], [19, 27, 2, 0, 0]], "int32")


def random_model(rng, **options):
    """A Transformer with every weight random, biases and norms too."""
    model = randomise(Transformer(TransformerConfig(**(SIZES | options))), rng)
    hash_to_two_buckets(model)
    return model


def hash_to_two_buckets(model):
    """Of the many buckets that hashing has, few tokens of a short text share one."""
    for weight in model.weights:
        if weight.name == "hash_vectors":
            values = ops.convert_to_numpy(weight).copy()
            values[..., 1:] = 0.0
            weight.assign(values)
