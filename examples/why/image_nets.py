"""The networks that images.py compares."""

import sys
from pathlib import Path

import keras

sys.path.append(str(Path(__file__).parents[1]))

import classify_images  # noqa: E402


def convolutional(shape, patch):
    """Returns pairs of convolutions of size 3, each pair halving height and width."""
    model = keras.Sequential([keras.Input(shape)])
    for filters in (32, 48, 80):
        for _ in range(2):
            layer = keras.layers.Conv2D(filters, 3, padding="same", activation="gelu")
            model.add(layer)
        model.add(keras.layers.MaxPooling2D(2))
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dropout(0.1))
    model.add(keras.layers.Dense(10))
    return model


KINDS = {"convolutions": convolutional, "Transformer": classify_images.make_model}


def compiled(model, updates):
    """Returns a model, compiled for so many updates."""
    warm_up = {"warmup_target": 0.002, "warmup_steps": 1 + updates // 10}
    rate = keras.optimizers.schedules.CosineDecay(0.0, updates, **warm_up)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA would compile for longer than it trains; JAX has nothing else.
    is_jax = keras.backend.backend() == "jax"
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=is_jax)
    return model
