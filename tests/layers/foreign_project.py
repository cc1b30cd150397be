"""A project of somebody who has only heard of Keras: forecasts and sentences.

Nothing here is of this package. `test_foreign_project` runs it as it is, and once more
with the import below changed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras
import numpy as np
from keras.layers import MultiHeadAttention

DAYS, SENSORS, HORIZON = 14, 5, 3
WORDS, LENGTH = 23, 9


class Block(keras.layers.Layer):
    """Attention to the past, and to another series."""

    def __init__(self, heads, width, **kwargs):
        super().__init__(**kwargs)
        self.heads, self.width = heads, width
        self.past = MultiHeadAttention(heads, width // heads, name="past")
        self.other = MultiHeadAttention(
            num_heads=heads, key_dim=4, value_dim=4, dropout=0.0, name="other",
            kernel_initializer=keras.initializers.HeNormal(),
            kernel_regularizer=keras.regularizers.L2(1e-3),
        )  # fmt: skip
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]

    def call(self, series, other, other_mask=None, training=None):
        past = self.past(series, series, use_causal_mask=True, training=training)
        series = self.norms[0](series + past)
        seen = self.other(
            query=series, value=other, key=other, key_mask=other_mask, training=training
        )
        return self.norms[1](series + seen)

    def get_config(self):
        return super().get_config() | {"heads": self.heads, "width": self.width}


class Forecaster(keras.Model):
    """Days of sensors and an almanac --> the next days."""

    def __init__(self, width=12, depth=2, **kwargs):
        super().__init__(**kwargs)
        self.width, self.depth = width, depth
        self.widen = keras.layers.Dense(width)
        self.blocks = [Block(3, width) for _ in range(depth)]
        self.out = keras.layers.Dense(HORIZON)

    def call(self, inputs, training=None):
        days, almanac, known = inputs
        states = self.widen(days)
        for block in self.blocks:
            states = block(states, almanac, other_mask=known, training=training)
        return self.out(states[:, -1])

    def get_config(self):
        return super().get_config() | {"width": self.width, "depth": self.depth}


def forecaster(rng):
    days, almanac = rng.normal(size=(8, DAYS, SENSORS)), rng.normal(size=(8, 6, 7))
    known = np.arange(6) < rng.integers(1, 7, (8, 1))
    inputs = [days.astype("float32"), almanac.astype("float32"), known.astype("int32")]
    model = Forecaster()
    model(inputs)
    return model, inputs, rng.normal(size=(8, HORIZON)).astype("float32")


def classifier(rng):
    """Functional, with padding that the embedding masks, and a frozen layer."""
    ids = keras.Input((None,), dtype="int32")
    states = keras.layers.Embedding(WORDS, 12, mask_zero=True)(ids)
    for number in range(2):
        attention = MultiHeadAttention(2, 6, name=f"attention_{number}")
        # No sum with the input: Keras' attention takes the mask away from that.
        states = keras.layers.LayerNormalization()(attention(states, states))
    pooled = keras.layers.GlobalAveragePooling1D()(states)
    model = keras.Model(ids, keras.layers.Dense(4, activation="softmax")(pooled))
    model.get_layer("attention_0").trainable = False
    sentences = rng.integers(1, WORDS, (8, LENGTH))
    sentences *= np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (8, 1))
    return model, sentences, keras.utils.to_categorical(rng.integers(0, 4, 8), 4)


def half_precision(rng):
    """A model of mixed precision; its numbers are coarse."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return classifier(rng)
    finally:
        keras.config.set_dtype_policy("float32")


MODELS = {
    "forecaster": forecaster,
    "classifier": classifier,
    "half_precision": half_precision,
}


def outputs_of(model, inputs):
    outputs = model(inputs, training=False)
    return keras.ops.convert_to_numpy(keras.ops.cast(outputs, "float32"))


def loaded(model):
    """What comes back of a file."""
    objects = {"Block": Block, "Forecaster": Forecaster}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        return keras.saving.load_model(path, custom_objects=objects)


def adapted(model, inputs, targets):
    """LoRA on the projections of queries and values; a file holds the sums."""
    copy = loaded(model)
    for layer in copy.layers:  # Layers that add weights must not be frozen.
        layer.trainable = True
    for weight in copy.weights:
        weight.trainable = False
    for layer in copy._flatten_layers(include_self=False):
        if isinstance(layer, MultiHeadAttention):
            layer.query_dense.enable_lora(3, lora_alpha=6)
            layer.value_dense.enable_lora(rank=3)
    before = [np.array(keras.ops.convert_to_numpy(w)) for w in copy.weights]
    found = {"untrained": outputs_of(copy, inputs)}
    copy.compile(keras.optimizers.SGD(0.1), "mse")
    copy.fit(inputs, targets, epochs=2, batch_size=8, shuffle=False, verbose=0)
    moved = {
        "lora_" in weight.name
        for weight, old in zip(copy.weights, before, strict=True)
        if np.abs(keras.ops.convert_to_numpy(weight) - old).max() > 0
    }
    trained, merged = outputs_of(copy, inputs), loaded(copy)
    found["moved"], found["change"] = moved, np.abs(trained - found["untrained"]).max()
    found["error"] = np.abs(trained - outputs_of(merged, inputs)).max()
    found["left in the file"] = [w.name for w in merged.weights if "lora_" in w.name]
    return found


def rounded(model, inputs):
    copy = loaded(model)
    copy.quantize("int8")
    weights = [weight for weight in copy.weights if weight.dtype == "int8"]
    count = sum(int(np.prod(weight.shape)) for weight in weights)
    return {"integers": count, "int8": outputs_of(copy, inputs)}


def numbers(model, inputs, targets):
    """What must be the same whoever computes the attention."""
    found = {"before": outputs_of(model, inputs)}
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(
        inputs, targets, epochs=3, batch_size=8, shuffle=False, verbose=0
    )
    found["losses"] = np.array(history.history["loss"])
    found["after"] = outputs_of(model, inputs)
    found["loaded"] = outputs_of(loaded(model), inputs)
    if not isinstance(model, Forecaster):
        copy = keras.models.clone_model(model)
        copy.set_weights(model.get_weights())
        found["cloned"] = outputs_of(copy, inputs)
    return found
