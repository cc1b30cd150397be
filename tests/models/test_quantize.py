"""Whole models of 8 and 4 bits: what is rounded, how far logits move, files."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import LanguageModel, MaskedCrossentropy
from keras_transformer.models.loading import load_seq2seq
from tests.models.test_lora import MODELS, inputs_of, numbers
from tests.models.transformer_cases import SOURCE, TARGET_IN, TARGET_OUT, random_model

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def parameters(model, dtype):
    return sum(int(np.prod(w.shape)) for w in model.weights if w.dtype == dtype)


@pytest.mark.one_case
def test_every_matrix_is_rounded_and_logits_stay_near(model):
    before = numbers(model(inputs_of(model)))
    names = ("_kernel", "embeddings")
    matrices = [
        weight
        for weight in model.weights
        if weight.name.endswith(names) and "position" not in weight.name
    ]
    expected = sum(int(np.prod(weight.shape)) for weight in matrices)
    assert parameters(model, "int8") == 0
    model.quantize("int8")
    assert parameters(model, "int8") == expected
    assert parameters(model, "int8") > parameters(model, "float32") / 3
    logits = numbers(model(inputs_of(model)))
    assert 0 < np.abs(logits - before).max() < 0.1 * np.abs(before).max()


@pytest.mark.one_case
@pytest.mark.parametrize("mode", ("int8", "int4"))
def test_steps_equal_a_call_and_a_file_brings_the_model_back(model, mode, tmp_path):
    model.quantize(mode)
    expected = numbers(model(inputs_of(model)))
    model.save(tmp_path / "model.keras")
    if isinstance(model, LanguageModel):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        state = loaded.start_decoding(2, TARGET_IN.shape[1])
    else:
        loaded = load_seq2seq(tmp_path / "model.keras")
        state = loaded.start_decoding(SOURCE, TARGET_IN.shape[1])
    np.testing.assert_allclose(
        numbers(loaded(inputs_of(model))), expected, rtol=1e-5, atol=1e-5
    )
    assert parameters(loaded, "int8") == parameters(model, "int8")
    assert loaded.get_config() == model.get_config()
    weights, parents = loaded.decoding_weights(), np.zeros((2, 1), "int32")
    for index in range(TARGET_IN.shape[1]):
        ids = ops.convert_to_tensor(TARGET_IN[:, index])
        logits, state = loaded.decode_step(ids, parents, state, weights)
        real = TARGET_IN[:, index] != 0
        # A state that lies on an edge may be rounded to the other side.
        np.testing.assert_allclose(
            numbers(logits)[real], expected[real, index], rtol=0, atol=0.05
        )


def test_what_is_not_rounded_still_trains(rng):
    model = random_model(rng)
    model.quantize("int8")
    biases = model.trainable_weights
    assert biases and not any(weight.name.endswith("_kernel") for weight in biases)
    before = [numbers(weight).copy() for weight in model.weights]
    model.compile(keras.optimizers.SGD(0.1), MaskedCrossentropy(), run_eagerly=True)
    model.fit((SOURCE, TARGET_IN), TARGET_OUT, verbose=0)
    trained = {id(weight) for weight in biases}
    for weight, old in zip(model.weights, before, strict=True):
        moved = np.abs(numbers(weight).astype(float) - old).max() > 0
        assert moved == (id(weight) in trained), weight.path


def test_a_quantised_model_keeps_its_float_type(rng):
    model = random_model(rng)
    model.quantize("int8")
    assert model.with_dtype("float32") is model
    with pytest.raises(ValueError, match="choose it before `quantize`"):
        model.with_dtype("bfloat16")


def test_other_modes_say_why_not(rng):
    with pytest.raises(NotImplementedError, match="multiply in float8"):
        random_model(rng).quantize("float8")
