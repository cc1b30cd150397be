"""Fine-tuning of whole models with adapters of low rank."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    LanguageModel,
    LanguageModelConfig,
    MaskedCrossentropy,
    TextClassifier,
    Transformer,
    TransformerConfig,
)
from tests.models.encoder_cases import text_encoder
from tests.models.transformer_cases import (
    SIZES,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    VARIANTS,
    random_model,
)

RANK = 3


def numbers(tensor):
    return ops.convert_to_numpy(tensor)


def add_random_adapters(model, rng):
    model.enable_lora(RANK)
    for weight in model.trainable_weights:
        assert "lora_" in weight.name
        weight.assign(rng.standard_normal(weight.shape) / 3)
    return model


def language_model():
    config = LanguageModelConfig(
        vocabulary_size=29, num_layers=2, d_model=12, d_ff=23, num_heads=3,
        tied_embeddings=False,
    )  # fmt: skip
    return LanguageModel(config)


MODELS = {
    # One table for all, or none shared.
    "shared": lambda: random_model(np.random.default_rng(1)),
    "untied": lambda: random_model(
        np.random.default_rng(1), **VARIANTS["biases, learned positions, untied"]
    ),
    "language model": language_model,
}


def inputs_of(model):
    return TARGET_IN if isinstance(model, LanguageModel) else (SOURCE, TARGET_IN)


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.mark.one_case
def test_training_changes_only_adapters(model):
    weights, logits = model.weights, numbers(model(inputs_of(model)))
    model.enable_lora(RANK)
    np.testing.assert_allclose(
        numbers(model(inputs_of(model))), logits, rtol=1e-5, atol=1e-5
    )
    trained = model.trainable_weights
    # Every matrix of the model itself and of its own layers has an adapter.
    adapted = [
        w for w in weights if w.name.endswith("kernel") or "embeddings" == w.name
    ]
    assert len(trained) == 2 * len(adapted)
    assert sum(np.prod(w.shape) for w in trained) == sum(
        RANK * sum(w.shape) for w in adapted
    )
    before = [numbers(weight).copy() for weight in weights]
    # Tracing a graph would take longer than these steps.
    model.compile(keras.optimizers.Adam(0.01), MaskedCrossentropy(), run_eagerly=True)
    model.fit(inputs_of(model), TARGET_OUT, epochs=2, verbose=0)
    for weight, old in zip(weights, before, strict=True):
        np.testing.assert_array_equal(numbers(weight), old)
    for weight in trained:
        if weight.name.endswith("_b"):  # They begin as zeros.
            assert np.abs(numbers(weight)).max() > 0, weight.path
    # Dropout is in the losses of `fit`.
    loss = MaskedCrossentropy()
    after = loss(TARGET_OUT, model(inputs_of(model)))
    assert numbers(after) < numbers(loss(TARGET_OUT, logits))


@pytest.mark.one_case
def test_steps_equal_a_call(model, rng):
    add_random_adapters(model, rng)
    expected = numbers(model(inputs_of(model)))
    length, parents = TARGET_IN.shape[1], np.zeros((2, 1), "int32")
    if isinstance(model, LanguageModel):
        state = model.start_decoding(2, length)
    else:
        state = model.start_decoding(SOURCE, length)
    weights = model.decoding_weights()
    for index in range(length):
        logits, state = model.decode_step(
            ops.convert_to_tensor(TARGET_IN[:, index]), parents, state, weights
        )
        real = TARGET_IN[:, index] != 0
        np.testing.assert_allclose(
            numbers(logits)[real], expected[real, index], rtol=1e-4, atol=1e-4
        )


@pytest.mark.one_case
def test_a_file_holds_the_sums(model, rng, tmp_path):
    add_random_adapters(model, rng)
    expected = numbers(model(inputs_of(model)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        numbers(loaded(inputs_of(model))), expected, rtol=1e-4, atol=1e-4
    )
    assert not any("lora_" in weight.name for weight in loaded.weights)


def test_a_copy_of_another_type_holds_the_sums(rng):
    model = add_random_adapters(random_model(rng), rng)
    expected = numbers(model((SOURCE, TARGET_IN)))
    copy = model.with_dtype("bfloat16")
    assert not any("lora_" in weight.name for weight in copy.weights)
    logits = numbers(ops.cast(copy((SOURCE, TARGET_IN)), "float32"))
    # bfloat16 keeps 8 bits.
    assert np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()


def test_an_embedding_that_is_shared_has_one_adapter(rng):
    model = random_model(rng)  # three-way
    model.enable_lora(RANK)
    names = [w.name for w in model.trainable_weights if "embeddings" in w.name]
    assert names == ["lora_embeddings_a", "lora_embeddings_b"]
    assert model.target_embedding.lora_rank == RANK
    assert SIZES["source_vocabulary_size"] == model.target_embedding.vocabulary_size


@pytest.mark.parametrize("dtype", ("mixed_bfloat16", "mixed_float16", "bfloat16"))
def test_adapters_change_nothing_at_first_in_half_precision(dtype):
    model = Transformer(TransformerConfig(**SIZES), dtype=dtype)
    before = numbers(ops.cast(model((SOURCE, TARGET_IN)), "float32"))
    model.enable_lora(RANK)
    logits = model((SOURCE, TARGET_IN))
    assert keras.backend.standardize_dtype(logits.dtype) == dtype.split("_")[-1]
    # Sums of W and the adapter are rounded once more.
    difference = np.abs(numbers(ops.cast(logits, "float32")) - before).max()
    assert difference <= 0.02 * np.abs(before).max()


def refusing(what):
    """A classifier whose map to the classes, a layer of Keras, takes no adapter."""
    model = TextClassifier(text_encoder(), 5)
    if what == "adapters":
        model.output_map.enable_lora(RANK)
    else:
        model.output_map.kernel_constraint = keras.constraints.NonNeg()
    return model


@pytest.mark.parametrize("what", ("adapters", "a constraint"))
def test_a_model_of_which_a_layer_refuses_stays_as_it_was(what):
    model = refusing(what)
    trained = [id(weight) for weight in model.trainable_weights]
    with pytest.raises(ValueError, match=f"the layer 'output_map', which has {what}"):
        model.enable_lora(RANK)
    assert [id(weight) for weight in model.trainable_weights] == trained
    assert model.encoder.embedding.lora_rank is None
