"""What a file must keep of any layer or model that is quantised or has adapters."""

import json

import keras
import numpy as np
import pytest
from keras import ops
from keras.quantizers import (
    AbsMaxQuantizer,
    Float8QuantizationConfig,
    Int4QuantizationConfig,
    Int8QuantizationConfig,
)

from keras_transformer import enable_lora

QUANTISATIONS = {
    "int8 of weights": Int8QuantizationConfig(activation_quantizer=None),
    "int4 of weights": Int4QuantizationConfig(),
    "int8": Int8QuantizationConfig(),
    "int4": Int4QuantizationConfig(
        activation_quantizer=AbsMaxQuantizer(), block_size=-1
    ),
    "int4 in blocks": Int4QuantizationConfig(block_size=4),
    "float8": Float8QuantizationConfig(),
}

# Keras warns of norms and dropout, of which there is nothing to round, and PyTorch of
# how Keras transposes the scales of a table.
QUANTISES = pytest.mark.filterwarnings(
    "ignore:Layer .* does not have a `quantize`",
    "ignore:Invalid quantization mode",
    "ignore:(?s).*The use of `x.T` on tensors",
)


def quantisations(*quick):
    """Parametrises a test by the ways to quantise, of which some are quick."""
    others = [way for way in QUANTISATIONS if way not in quick]
    slow = [pytest.param(way, marks=pytest.mark.slow) for way in others]
    return pytest.mark.parametrize("way", [*quick, *slow])


def outputs_of(model, inputs):
    return ops.convert_to_numpy(ops.cast(model(inputs), "float32"))


def configurations_of(model):
    """What each part was quantised by, as text."""
    parts = [part for part in model._flatten_layers() if part.quantization_mode]
    configs = [part.quantization_config for part in parts]
    return json.dumps(keras.saving.serialize_keras_object(configs))


def check_quantised(model, inputs, way, folder):
    """A file brings back the same outputs, to the bit, and every configuration."""
    model.quantize(config=QUANTISATIONS[way])
    expected = outputs_of(model, inputs)
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    np.testing.assert_array_equal(outputs_of(loaded, inputs), expected)
    assert configurations_of(loaded) == configurations_of(model)
    assert json.dumps(loaded.get_config()) == json.dumps(model.get_config())
    return loaded


def check_adapters(model, inputs, targets, loss, folder, rank=2):
    """A file of a model whose adapters were trained holds the sums only."""
    before = outputs_of(model, inputs)
    enable_lora(model, rank)
    model.compile(keras.optimizers.Adam(0.1), loss, run_eagerly=True)
    model.train_on_batch(inputs, targets)
    expected = outputs_of(model, inputs)
    assert np.abs(expected - before).max() > 1e-3
    model.save(folder / "model.keras")
    # The state of the optimizer is that of the adapters.
    loaded = keras.saving.load_model(folder / "model.keras", compile=False)
    assert not any("lora_" in weight.name for weight in loaded.weights)
    np.testing.assert_allclose(outputs_of(loaded, inputs), expected, 1e-5, 1e-5)
    loaded.compile(keras.optimizers.Adam(0.1), loss, run_eagerly=True)
    loaded.train_on_batch(inputs, targets)
