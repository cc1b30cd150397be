"""Whole models with adapters of low rank, and of 8 and 4 bits, decode and are saved.

What Keras does to a model that is composed by hand is in `layers/test_model_by_hand`.
"""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import LanguageModel, Transformer, enable_lora
from keras_transformer.models.loading import load_model
from tests.models.backends import step_by_step
from tests.models.cases import (
    SOURCE,
    TARGET_IN,
    VARIANTS,
    random_language_model,
    random_model,
)

RANK = 3
# Keras warns of norms and dropout, of which there is nothing to round.
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
numpy = ops.convert_to_numpy
MODELS = {
    # One table for all, or none shared; and a bias of the output.
    "shared": (random_model, {}),
    "untied": (random_model, VARIANTS["biases, learned positions, untied"]),
    "Marian": (random_model, VARIANTS["normalised embeddings, SSRU, output bias"]),
    "language model": (random_language_model, {"tied_embeddings": False}),
}


@pytest.fixture(params=MODELS)
def model(request):
    make, options = MODELS[request.param]
    return make(np.random.default_rng(1), **options)


def inputs_of(model):
    return TARGET_IN if isinstance(model, LanguageModel) else (SOURCE, TARGET_IN)


def logits_of(model):
    return numpy(ops.cast(model(inputs_of(model)), "float32"))


def with_random_adapters(model, rng):
    enable_lora(model, RANK)
    for weight in model.trainable_weights:
        assert "lora_" in weight.name
        weight.assign(rng.standard_normal(weight.shape) / 3)
    return model


def check_steps(model, expected, tolerance):
    """Decoding step by step gives the logits of a call."""
    found = step_by_step(model, *keras.tree.flatten(inputs_of(model)))
    real = TARGET_IN != 0
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=tolerance)


@pytest.mark.one_case("shared")
def test_steps_and_copies_hold_the_sums_of_adapters(model, rng):
    with_random_adapters(model, rng)
    expected = logits_of(model)
    check_steps(model, expected, 1e-4)
    copy = model.with_dtype("bfloat16")
    # bfloat16 keeps 8 bits.
    assert np.abs(logits_of(copy) - expected).max() < 0.05 * np.abs(expected).max()
    assert not any("lora_" in weight.name for weight in copy.weights)


def parameters(model, dtype):
    return sum(int(np.prod(w.shape)) for w in model.weights if w.dtype == dtype)


@pytest.mark.one_case("Marian-int8")
@pytest.mark.parametrize("mode", ("int8", "int4"))
def test_a_quantised_model_decodes_and_comes_back_from_its_file(model, mode, tmp_path):
    model.quantize(mode)
    expected = logits_of(model)
    if getattr(model, "output_bias", None) is not None:  # It stays as it is.
        model.output_bias.assign(numpy(model.output_bias) + 3.0)
        moved = logits_of(model)
        np.testing.assert_allclose(moved, expected + 3.0, rtol=0, atol=1e-3)
        expected = moved
    model.save(tmp_path / "model.keras")
    load = load_model if isinstance(model, Transformer) else keras.saving.load_model
    loaded = load(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded), expected)
    assert parameters(loaded, "int8") == parameters(model, "int8") > 0
    # A state that lies on an edge may be rounded to the other side.
    check_steps(loaded, expected, 0.05 * np.abs(expected).max())


def test_a_quantised_model_keeps_its_float_type(rng):
    model = random_model(rng)
    model.quantize("int8")
    assert model.with_dtype("float32") is model
    with pytest.raises(ValueError, match="call `with_dtype` before `quantize`"):
        model.with_dtype("bfloat16")


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a SavedModel of TensorFlow"
)
@pytest.mark.one_case("int8")
@pytest.mark.parametrize("change", ("adapters", "int8"))
def test_an_export_gives_the_same_logits(rng, change, tmp_path):
    import tensorflow as tf

    model = random_model(rng, num_encoder_layers=1, num_decoder_layers=1)
    if change == "adapters":
        with_random_adapters(model, rng)
    else:
        model.quantize(change)
    model.export(tmp_path / "1", verbose=False)
    exported = tf.saved_model.load(tmp_path / "1")
    found = exported.serve(inputs_of(model))
    np.testing.assert_allclose(found, logits_of(model), rtol=1e-4, atol=1e-4)
