"""Prints XLA's plan of memory for training steps on JAX, and our estimate (bytes).

KERAS_BACKEND=jax python -m tests.training.planned_memory
"""

from __future__ import annotations

import itertools
import json

import jax
import keras
import numpy as np

from keras_transformer import MaskedCrossentropy, Transformer, TransformerConfig
from keras_transformer.exact_training.jax import train_step
from keras_transformer.training.memory import training_memory
from keras_transformer.training.state import build_training_variables

# Layers, width, hidden width, heads, sentences, tokens.
SIZES = [(2, 256, 1024, 4, 64, 64), (2, 256, 1024, 4, 16, 256)]
# What changes the attention; the first is the paper's.
KINDS = [
    {},
    {"attention": "local", "attention_window": 64, "positions": "rotary"},
    {"attention": "relu", "num_key_value_heads": 1},
    {"attention": "linear", "attention_dropout_rate": 0.0},
    {"attention": "additive"},
    {"attention": "performer", "attention_dropout_rate": 0.0},
]


def main():
    found = []
    for size, kind in itertools.product(SIZES, KINDS):
        layers, d_model, d_ff, heads, rows, length = size
        config = TransformerConfig(
            source_vocabulary_size=1000, target_vocabulary_size=1000,
            num_encoder_layers=layers, num_decoder_layers=layers, d_model=d_model,
            d_ff=d_ff, num_heads=heads, **kind,
        )  # fmt: skip
        model = Transformer(config)
        model.compile(keras.optimizers.Adam(), MaskedCrossentropy())
        build_training_variables(model)
        memory = training_memory(model, rows, length)
        estimate = memory.gradients + memory.activations
        found.append({"planned": planned(model, rows, length), "estimate": estimate})
    print(json.dumps(found))


def planned(model, rows, length):
    """The bytes of XLA's temporaries in a step: activations, gradients and the rest."""
    groups = (
        model.trainable_variables, model.non_trainable_variables,
        model.optimizer.variables, model.metrics_variables,
    )  # fmt: skip
    state = [
        [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in group] for group in groups
    ]
    ids = jax.ShapeDtypeStruct((rows, length), np.int32)
    step = jax.jit(lambda state, data: train_step(model, state, data), donate_argnums=0)
    compiled = step.lower(tuple(state), ((ids, ids), ids)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


if __name__ == "__main__":
    main()
