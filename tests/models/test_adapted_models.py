"""Whole models with adapters of low rank, of 8 and 4 bits, and with both."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    LanguageModel,
    MaskedCrossentropy,
    Transformer,
    enable_lora,
)
from keras_transformer.models.loading import load_model
from tests.models.transformer_cases import (
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    VARIANTS,
    random_language_model,
    random_model,
)

RANK = 3
# Keras warns of norms and dropout, of which there is nothing to round.
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
numpy = ops.convert_to_numpy
MODELS = {
    # One table for all, or none shared.
    "shared": lambda: random_model(np.random.default_rng(1)),
    "untied": lambda: random_model(
        np.random.default_rng(1), **VARIANTS["biases, learned positions, untied"]
    ),
    "language model": lambda: random_language_model(
        np.random.default_rng(1), tied_embeddings=False
    ),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


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
    length, parents = TARGET_IN.shape[1], np.zeros((2, 1), "int32")
    start = 2 if isinstance(model, LanguageModel) else SOURCE
    state, weights = model.start_decoding(start, length), model.decoding_weights()
    for index in range(length):
        ids = ops.convert_to_tensor(TARGET_IN[:, index])
        logits, state = model.decode_step(ids, parents, state, weights)
        real = TARGET_IN[:, index] != 0
        np.testing.assert_allclose(
            numpy(logits)[real], expected[real, index], rtol=0, atol=tolerance
        )


def fit(model, epochs=1):
    # Tracing a graph would take longer than these steps.
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy(), run_eagerly=True)
    model.fit(inputs_of(model), TARGET_OUT, epochs=epochs, verbose=0)


@pytest.mark.one_case
def test_steps_copies_and_files_hold_the_sums(model, rng, tmp_path):
    with_random_adapters(model, rng)
    expected = logits_of(model)
    check_steps(model, expected, 1e-4)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(logits_of(loaded), expected, rtol=1e-4, atol=1e-4)
    copy = model.with_dtype("bfloat16")
    # bfloat16 keeps 8 bits.
    assert np.abs(logits_of(copy) - expected).max() < 0.05 * np.abs(expected).max()
    for other in (loaded, copy):
        assert not any("lora_" in weight.name for weight in other.weights)


def parameters(model, dtype):
    return sum(int(np.prod(w.shape)) for w in model.weights if w.dtype == dtype)


@pytest.mark.one_case
@pytest.mark.parametrize("mode", ("int8", "int4"))
def test_a_quantised_model_decodes_and_comes_back_from_its_file(model, mode, tmp_path):
    model.quantize(mode)
    expected = logits_of(model)
    model.save(tmp_path / "model.keras")
    load = load_model if isinstance(model, Transformer) else keras.saving.load_model
    loaded = load(tmp_path / "model.keras")
    np.testing.assert_allclose(logits_of(loaded), expected, 1e-5, 1e-5)
    assert parameters(loaded, "int8") == parameters(model, "int8") > 0
    assert loaded.get_config() == model.get_config()
    # A state that lies on an edge may be rounded to the other side.
    check_steps(loaded, expected, 0.05)


@pytest.mark.one_case
@pytest.mark.parametrize("adapted", (False, True), ids=("alone", "with adapters"))
def test_what_is_not_rounded_still_trains(model, adapted, tmp_path):
    model.quantize("int8")
    if adapted:
        enable_lora(model, RANK)
    trained = model.trainable_weights
    assert trained and all(weight.dtype == "float32" for weight in trained)
    assert any("lora_" in weight.name for weight in trained) == adapted
    before = {id(weight): numpy(weight).copy() for weight in model.weights}
    fit(model, epochs=2)
    for weight in model.weights:
        moved = np.abs(numpy(weight).astype(float) - before[id(weight)]).max() > 0
        is_trained = any(weight is one for one in trained)
        # A key's bias adds one number to all scores of a query: softmax removes it.
        if not (is_trained and "key/bias" in weight.path):
            assert moved == is_trained, weight.path
    model.save(tmp_path / "model.keras")
    # The optimizer's moments of adapters fit no model without.
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=not adapted)
    expected = logits_of(model)
    assert parameters(loaded, "int8") == parameters(model, "int8")
    # The sums are rounded anew.
    tolerance = (0.1 if adapted else 1e-5) * np.abs(expected).max()
    np.testing.assert_allclose(logits_of(loaded), expected, rtol=0, atol=tolerance)


def test_a_quantised_model_keeps_its_float_type(rng):
    model = random_model(rng)
    model.quantize("int8")
    assert model.with_dtype("float32") is model
    with pytest.raises(ValueError, match="call `with_dtype` before `quantize`"):
        model.with_dtype("bfloat16")


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a SavedModel of TensorFlow"
)
@pytest.mark.one_case
@pytest.mark.parametrize("change", ("adapters", "int8"))
def test_an_export_gives_the_same_logits(rng, change, tmp_path):
    import tensorflow as tf

    model = random_model(rng)
    if change == "adapters":
        with_random_adapters(model, rng)
    else:
        model.quantize(change)
    model.export(tmp_path / "1", verbose=False)
    exported = tf.saved_model.load(tmp_path / "1")
    found = exported.serve(inputs_of(model))
    np.testing.assert_allclose(found, logits_of(model), rtol=1e-4, atol=1e-4)
