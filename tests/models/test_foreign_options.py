"""Options that models from elsewhere need: laws beyond parity with the reference."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import (
    DecodingConfig,
    EncoderConfig,
    EncoderStack,
    Generator,
    LanguageModel,
    LanguageModelConfig,
    MaskedCrossentropy,
    Transformer,
    TransformerConfig,
)
from tests.layers.reference_weights import assert_close
from tests.models.transformer_cases import (
    NO_DROPOUT,
    SOURCE,
    TARGET_IN,
    TARGET_OUT,
    VARIANTS,
    logits_expected,
    random_model,
)
from tests.reference import numpy_transformer as reference

MARIAN = VARIANTS["normalised embeddings, SSRU, output bias"]
LENGTHS = (SOURCE != 0).sum(axis=1).astype("int32")
numpy = ops.convert_to_numpy


def with_impossible_ids(model):
    """As an import expresses ids that are never produced: -1000 on their logits."""
    bias = numpy(model.output_bias).copy()
    bias[[0, 1, 13]] = -1000.0
    model.output_bias.assign(bias)
    return model


def test_output_bias_moves_by_the_gradient_of_the_reference(rng):
    """One SGD step without logits: dL/db = the sum of (softmax - smoothed target)."""
    model = with_impossible_ids(random_model(rng, **MARIAN, **NO_DROPOUT))
    assert model.output_rows() is not None
    logits = logits_expected(model, (SOURCE, TARGET_IN))
    gradient = reference.label_smoothed_cross_entropy_gradient(logits, TARGET_OUT, 0.1)
    before = numpy(model.output_bias).copy()
    model.compile(keras.optimizers.SGD(0.5), MaskedCrossentropy(0.1))
    loss = model.train_on_batch((SOURCE, TARGET_IN), TARGET_OUT)
    expected = reference.label_smoothed_cross_entropy(logits, TARGET_OUT, 0.1)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert_close(model.output_bias, before - 0.5 * gradient.sum(axis=(0, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_ids_that_cannot_be_are_harmless(rng, dtype):
    """Every score stays finite, in half precision too."""
    exact = random_model(rng, **MARIAN)
    model = Transformer(exact.config, dtype=dtype)
    model.set_weights(exact.get_weights())
    with_impossible_ids(model)
    config = DecodingConfig(
        beam_size=3, max_output_length=6, min_output_length=4, max_source_length=9,
        length_penalty=1.0, length_penalty_form="power",
    )  # fmt: skip
    generator = Generator(model, config)
    found = generator.search(SOURCE, LENGTHS, n_best=3)
    uniforms = rng.random((2, 6)).astype("float32")
    drawn = generator.sample(SOURCE, LENGTHS, uniforms, np.array([1.0, 5.0], "f"))
    for result in (found, drawn):
        assert np.isfinite(numpy(result.scores)).all()
        lengths = numpy(result.lengths)[..., None]
        is_token = np.arange(numpy(result.ids).shape[-1]) < lengths
        assert not np.isin(numpy(result.ids)[is_token], [0, 1, 13]).any()
    scores = numpy(generator.score(SOURCE, TARGET_OUT))
    assert np.isfinite(scores).all() and scores[0].max() < 0
    loss = MaskedCrossentropy(0.1)
    model.compile(keras.optimizers.SGD(0.01), loss)
    results = model.evaluate((SOURCE, TARGET_IN), TARGET_OUT, verbose=0)
    by_logits = loss(TARGET_OUT, model((SOURCE, TARGET_IN)))
    tolerance = 1e-5 if dtype == "float32" else 0.02
    np.testing.assert_allclose(results, numpy(by_logits), rtol=tolerance)
    assert np.isfinite(model.train_on_batch((SOURCE, TARGET_IN), TARGET_OUT))


@pytest.mark.one_case
@pytest.mark.parametrize("form", ["gnmt", "power"])
@pytest.mark.parametrize("fixed_shapes", [False, True], ids=["resized", "fixed"])
def test_outputs_of_a_beam_have_the_models_probability(rng, fixed_shapes, form):
    """States of constant size follow their hypotheses through a long search."""
    model = random_model(rng, **MARIAN)
    config = DecodingConfig(
        beam_size=4, min_output_length=20, max_output_length=24, length_penalty=0.7,
        length_penalty_form=form,
    )  # fmt: skip
    search = Generator(model, config, fixed_shapes=fixed_shapes).search
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        shapes = tf.TensorSpec([None, None], "int32"), tf.TensorSpec([None], "int32")
        search = tf.function(search, input_signature=shapes, autograph=False)
    result = search(SOURCE, LENGTHS)
    ids, lengths = numpy(result.ids)[:, 0], numpy(result.lengths)[:, 0]
    target_in = np.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=1)
    logits = logits_expected(model, (SOURCE, target_in))
    scores = np.take_along_axis(reference.log_softmax(logits), ids[..., None], axis=-1)
    totals = np.array([s[:n].sum() for s, n in zip(scores, lengths, strict=True)])
    np.testing.assert_allclose(numpy(result.log_probabilities)[:, 0], totals, rtol=1e-4)
    base = lengths if form == "power" else (5 + lengths) / 6
    np.testing.assert_allclose(numpy(result.scores)[:, 0], totals / base**0.7, 1e-4)


def test_normalised_embeddings_are_dropped_after_their_norm(rng):
    """Were it before, nothing would be exactly zero."""
    model = random_model(rng, **(MARIAN | {"dropout_rate": 0.4}))
    ids = rng.integers(4, 29, size=(20, 30))
    for side in ("source", "target"):
        silent = numpy(model._embed(side, ids, training=False))
        noisy = numpy(model._embed(side, ids, training=True))
        dropped = noisy == 0
        assert 0.35 < dropped.mean() < 0.45
        assert_close(noisy[~dropped], silent[~dropped] / 0.6, tolerance=1e-3)


def test_epsilon_reaches_every_norm():
    sizes = {"d_model": 6, "d_ff": 8, "num_heads": 2, "norm_first": True}
    sizes["layer_norm_epsilon"] = 0.25
    models = (
        Transformer(
            TransformerConfig(
                **sizes, source_vocabulary_size=9, target_vocabulary_size=9,
                num_encoder_layers=1, num_decoder_layers=1, normalize_embeddings=True,
            )
        ),
        LanguageModel(LanguageModelConfig(**sizes, vocabulary_size=9, num_layers=1)),
        EncoderStack(EncoderConfig(**sizes, num_layers=1)),
    )  # fmt: skip
    models[2].build((None, None, 6))
    for model, count in zip(models, (9, 3, 3), strict=True):
        norms = [
            layer
            for layer in model._flatten_layers()
            if isinstance(layer, keras.layers.LayerNormalization)
        ]
        assert [norm.epsilon for norm in norms] == [0.25] * count


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_integers_keep_the_bias(rng):
    model = random_model(rng, **MARIAN)
    exact = numpy(model((SOURCE, TARGET_IN)))
    model.quantize("int8")
    rounded = numpy(model((SOURCE, TARGET_IN)))
    assert np.abs(rounded - exact).mean() < 0.1
    bias = numpy(model.output_bias)
    model.output_bias.assign(bias + 3.0)
    assert_close(model((SOURCE, TARGET_IN)), rounded + 3.0, tolerance=1e-4)
    state = model.start_decoding(SOURCE, 2)
    parents = np.zeros((2, 1), "int32")
    ids = ops.convert_to_tensor(TARGET_IN[:, 0])
    logits, _ = model.decode_step(ids, parents, state)
    assert_close(logits, rounded[:, 0] + 3.0, tolerance=1e-3)
