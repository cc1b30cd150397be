"""Models whose weights are of another type than float32: they train and decode."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    DecodingConfig,
    Generator,
    LanguageModel,
    LanguageModelConfig,
    MaskedCrossentropy,
    Transformer,
    TransformerConfig,
)
from tests.layers.reference_weights import randomise
from tests.models.encoder_cases import IDS, tagger
from tests.models.transformer_cases import (
    IDS_IN,
    IDS_OUT,
    LANGUAGE_SIZES,
    SIZES,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    logits_expected,
)

# Relative, of losses after updates: of 8, 11 and 53 bits, the loss itself in float32.
TOLERANCES = {"bfloat16": 5e-2, "float16": 1.5e-2, "float64": 1e-5}
NO_DROPOUT = {"dropout_rate": 0.0}
LEARNED = {"positions": "learned", "tied_embeddings": "none", "use_bias": True}
# Each with its inputs and targets.
MODELS = {
    "transformer": (
        lambda **o: Transformer(TransformerConfig(**SIZES, **NO_DROPOUT), **o),
        ((SOURCE, TARGET_IN), TARGET_OUT),
    ),
    "language model": (
        lambda **o: LanguageModel(
            LanguageModelConfig(**LANGUAGE_SIZES, **NO_DROPOUT, norm_first=True), **o
        ),
        (IDS_IN, IDS_OUT),
    ),
    "tagger": (
        tagger,
        (IDS, np.where(IDS > 0, IDS % 10 + 1, 0)),
    ),
}
XLA = keras.backend.backend() == "tensorflow"
CASES = (
    ("transformer", XLA, "float16"), ("transformer", False, "bfloat16"),
    ("transformer", False, "float64"), ("language model", XLA, "bfloat16"),
    ("tagger", False, "float16"),
)  # fmt: skip


def losses(make, data, dtype, weights, **options):
    """The losses of four updates of a model that starts with the weights given."""
    model = make(dtype=dtype)
    model.set_weights(weights)
    # The tagger's dropout stays out of the way of the comparison.
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    optimizer = keras.optimizers.SGD(0.1)
    model.compile(optimizer, MaskedCrossentropy(0.1), **options)
    found = model.fit(*data, batch_size=2, epochs=4, verbose=0).history["loss"]
    assert {w.dtype for w in model.trainable_weights} == {dtype}
    return found


@pytest.mark.one_case
@pytest.mark.parametrize("name, jit_compile, dtype", CASES)
def test_training_follows_that_in_float32(rng, name, jit_compile, dtype):
    make, data = MODELS[name]
    weights = [ops.convert_to_numpy(w) for w in randomise(make(), rng).weights]
    exact = losses(make, data, "float32", weights, jit_compile=False)
    found = losses(make, data, dtype, weights, jit_compile=jit_compile)
    np.testing.assert_allclose(found, exact, rtol=TOLERANCES[dtype])
    assert exact[-1] < exact[0] * 0.95


def test_logits_in_float64_are_the_references(rng):
    options = SIZES | LEARNED
    model = randomise(Transformer(TransformerConfig(**options), dtype="float64"), rng)
    expected = logits_expected(model, (SOURCE, TARGET_IN))
    found = ops.convert_to_numpy(model((SOURCE, TARGET_IN)))
    real = TARGET_IN != 0
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-12, atol=1e-12)


@pytest.mark.one_case
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_search_finds_what_its_scores_say(rng, dtype):
    """The cached steps of a search against the uncached model."""
    model = randomise(MODELS["transformer"][0](dtype=dtype), rng)
    config = DecodingConfig(beam_size=3, max_output_length=7, length_penalty=0.0)
    generator = Generator(model, config)
    lengths = (SOURCE != 0).sum(axis=1).astype("int32")
    result = generator.search(SOURCE, lengths)
    scores = generator.score(SOURCE, result.ids[:, 0])
    np.testing.assert_allclose(
        ops.convert_to_numpy(ops.sum(scores, axis=1)),
        ops.convert_to_numpy(result.scores)[:, 0],
        rtol=TOLERANCES[dtype],
    )
