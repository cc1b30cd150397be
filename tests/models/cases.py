"""Small models with random weights, what the reference makes of them, and their table.

Every size is another prime, so that no two axes can be taken for each other. Dropout
stays configured (0.1): it must not matter outside training.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from tests.nn.layers.reference_weights import (
    layer_weights_of,
    model_weights_of,
    randomise,
    self_attention_of,
    weights_of,
)
from tests.reference import numpy_transformer as reference

# Models with a decoder.

LAYER = {"d_model": 17, "d_ff": 23, "num_heads": 3, "key_dim": 5, "value_dim": 7}
SIZES = LAYER | {
    "source_vocabulary_size": 29, "target_vocabulary_size": 29, "max_positions": 19,
    "num_encoder_layers": 2, "num_decoder_layers": 3,
}  # fmt: skip
UNTIED = {"tied_embeddings": "none", "source_vocabulary_size": 31}
VARIANTS = {
    "post-norm, three-way": {},
    "pre-norm, two-way": UNTIED | {"norm_first": True, "tied_embeddings": "two-way"},
    "biases, learned positions, untied": UNTIED | {
        "use_bias": True, "positions": "learned",
    },
    # What others' models have: students of Marian,
    "normalised embeddings, SSRU, output bias": {
        "d_model": 18, "layer_norm_epsilon": 0.01, "positions": "sinusoidal-marian",
        "normalize_embeddings": True, "decoder_self_attention": "ssru",
        "output_bias": True,
    },
    # and translators of Hugging Face.
    "halves, output bias, untied": UNTIED | {
        "d_model": 22, "norm_first": True, "layer_norm_epsilon": 1e-3,
        "positions": "sinusoidal-halves", "output_bias": True,
    },
    # Other kinds of self-attention, and positions that enter it.
    "rotary, one head of keys": {
        "positions": "rotary", "key_dim": 6, "num_key_value_heads": 1,
    },
    "ALiBi, pre-norm": {"positions": "alibi", "norm_first": True},
}  # fmt: skip
SOURCE = np.array([[9, 4, 28, 17, 5, 11, 2], [8, 21, 6, 2, 0, 0, 0]], "int32")
TARGET_IN = np.array([[1, 14, 7, 22, 10], [1, 19, 27, 0, 0]], "int32")
TARGET_OUT = np.array([[14, 7, 22, 10, 2], [19, 27, 2, 0, 0]], "int32")

LANGUAGE_SIZES = LAYER | {"vocabulary_size": 29, "num_layers": 3, "max_positions": 19}
LANGUAGE_VARIANTS = {
    "post-norm, tied": {},
    "pre-norm, tied": {"norm_first": True, "layer_norm_epsilon": 0.01},
    "biases, learned positions, untied": {
        "use_bias": True, "positions": "learned", "tied_embeddings": False,
    },
    "rotary, one head of keys": {
        "positions": "rotary", "key_dim": 6, "num_key_value_heads": 1,
    },
    "ALiBi": {"positions": "alibi", "norm_first": True},
    "SSRU": {"attention": "ssru"},
}  # fmt: skip
IDS_IN = np.array([[1, 14, 7, 22, 10, 5], [1, 19, 27, 0, 0, 0]], "int32")
IDS_OUT = np.array([[14, 7, 22, 10, 5, 2], [19, 27, 2, 0, 0, 0]], "int32")
NO_DROPOUT = {
    "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "activation_dropout_rate": 0.0,
}  # fmt: skip


def array(variable):
    return ops.convert_to_numpy(variable).astype(np.float64)


def random_model(rng, dtype=None, **options):
    """A Transformer with every weight random, biases and norms too."""
    config = kt.TransformerConfig(**(SIZES | options))
    return randomise(kt.Transformer(config, dtype=dtype), rng)


def random_language_model(rng, dtype=None, **options):
    """A language model with every weight random."""
    config = kt.LanguageModelConfig(**(LANGUAGE_SIZES | options))
    return randomise(kt.LanguageModel(config, dtype=dtype), rng)


def logits_expected(model, inputs):
    """Logits of a `Transformer` by the reference, [B, T, V]."""
    config = model.config
    return reference.transformer(
        *inputs,
        model_weights_of(model),
        config.num_heads,
        config.norm_first,
        config.pad_id,
    )


def next_expected(model, ids):
    """Logits of a `LanguageModel` by the reference: a decoder without a source."""
    config, positions = model.config, None
    if config.positions == "learned":
        positions = array(model.embedding.position_embeddings)
    elif config.positions in ("rotary", "alibi"):
        positions = np.zeros((ids.shape[1], config.d_model))
    embeddings = array(model.embedding.embeddings)
    states = reference.positional_embedding(ids, embeddings, positions)
    mask = reference.causal_mask(ids.shape[1]) & reference.padding_mask(ids)
    for layer in model.decoder_layers:
        weights = layer_weights_of(layer, config.layer_norm_epsilon)
        weights["self_attention"] |= self_attention_of(config)
        states = reference.encoder_layer(
            states, weights, config.num_heads, mask, config.norm_first
        )
    if config.norm_first:
        norm = weights_of(model.norm, "norm") | {"epsilon": config.layer_norm_epsilon}
        states = reference.layer_norm(states, norm)
    tied = config.tied_embeddings
    return states @ (embeddings.T if tied else array(model.output_dense.kernel))


# Encoders without an embedding.

CONFIG = kt.EncoderConfig(
    num_layers=2, d_model=13, d_ff=17, num_heads=3, key_dim=5, value_dim=7
)


def stack_output(stack, states, mask=None):
    """What the reference makes of states [B, S, D] in an `EncoderStack`."""
    config = stack.config
    epsilon = config.layer_norm_epsilon
    layers = [layer_weights_of(layer, epsilon) for layer in stack.encoder_layers]
    for layer in layers:
        layer["self_attention"] |= self_attention_of(config)
    weights = {"encoder_layers": layers}
    if config.norm_first:
        weights["norm"] = weights_of(stack.norm, "norm") | {"epsilon": epsilon}
    return reference.encoder_stack(
        states, weights, config.num_heads, mask, config.norm_first
    )


# The table of the battery.


class Case(NamedTuple):
    """A kind of model: how it is made, what it takes and what it must give.

    `make` takes `name` and `dtype`; `expected(model, inputs)` are the logits by the
    reference. Properties: "decodes" step by step, and so sees no later token.
    """

    model_class: type[keras.Model]
    make: Callable[..., keras.Model]
    inputs: Any
    targets: np.ndarray
    expected: Callable[[keras.Model, Any], np.ndarray]
    properties: frozenset[str] = frozenset()
    loss: keras.losses.Loss = kt.MaskedCrossentropy(0.1)

    @property
    def ids(self):
        """The inputs whose positions the output has."""
        return keras.tree.flatten(self.inputs)[-1]

    @property
    def real(self):
        """Which rows of the output count: padding has none."""
        return self.ids != 0


def _of_config(model_class, config_class, sizes):
    def make(dtype=None, **options):
        return model_class(config_class(**sizes), dtype=dtype, **options)

    return make


DECODES = frozenset({"decodes"})
CASES = {
    f"Transformer: {name}": Case(
        kt.Transformer,
        _of_config(kt.Transformer, kt.TransformerConfig, SIZES | options),
        (SOURCE, TARGET_IN), TARGET_OUT, logits_expected,
        DECODES,
    )
    for name, options in VARIANTS.items()
}  # fmt: skip
CASES |= {
    f"LanguageModel: {name}": Case(
        kt.LanguageModel,
        _of_config(kt.LanguageModel, kt.LanguageModelConfig, LANGUAGE_SIZES | options),
        IDS_IN, IDS_OUT, next_expected, DECODES,
    )
    for name, options in LANGUAGE_VARIANTS.items()
}  # fmt: skip
# By class, the first row.
FIRST = {case.model_class: name for name, case in reversed(CASES.items())}
ALL = pytest.mark.parametrize("name", list(CASES))
# The others by hand.
A_ROW_A_CLASS = pytest.mark.parametrize(
    "name",
    [
        name if name in FIRST.values() else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)


def with_property(name):
    """Parametrises a test by the rows that have a property."""
    names = [case for case in CASES if name in CASES[case].properties]
    return pytest.mark.parametrize("name", names)
