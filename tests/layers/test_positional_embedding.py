"""Embedding and positions against the NumPy reference and closed forms."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import TransformerConfig
from keras_transformer.layers import FeatureEmbedding, PositionalEmbedding
from keras_transformer.layers.embedding import sinusoidal_encoding
from tests.layers.layer_battery import TABLE_OPTIONS, LayerBattery
from tests.layers.reference_weights import assert_close, randomise
from tests.reference import numpy_transformer as reference

VOCABULARY_SIZE, D_MODEL, LENGTH = 13, 6, 5


class TestBattery(LayerBattery):
    layer_class = PositionalEmbedding
    options = {
        "vocabulary_size": VOCABULARY_SIZE,
        "d_model": D_MODEL,
        "dropout_rate": 0.5,
        "positions": "learned",
        "max_length": 11,
        "pad_id": 3,
        **TABLE_OPTIONS,
        # As a configuration has it.
        "embeddings_initializer": keras.initializers.serialize(
            keras.initializers.HeNormal()
        ),
    }
    exact_options = {"dropout_rate": 0.0}
    input_shapes = ((2, 5),)
    integers_below = VOCABULARY_SIZE
    output_shape = (2, 5, D_MODEL)


def ids(rng):
    return rng.integers(VOCABULARY_SIZE, size=(2, LENGTH))


@pytest.mark.parametrize("d_model", [6, 7])
def test_sinusoidal_layer_agrees_with_the_reference(rng, d_model):
    layer = PositionalEmbedding(VOCABULARY_SIZE, d_model)
    layer.build((None, None))
    randomise(layer, rng)
    tokens = ids(rng)
    embeddings = ops.convert_to_numpy(layer.embeddings)
    expected = reference.positional_embedding(tokens, embeddings)
    assert_close(layer(tokens), expected)


def test_learned_layer_agrees_with_the_reference(rng):
    layer = PositionalEmbedding(
        VOCABULARY_SIZE, D_MODEL, positions="learned", max_length=11
    )
    layer.build((None, None))
    randomise(layer, rng)
    tokens = ids(rng)
    expected = reference.positional_embedding(
        tokens,
        ops.convert_to_numpy(layer.embeddings),
        ops.convert_to_numpy(layer.position_embeddings),
    )
    assert_close(layer(tokens), expected)


@pytest.mark.parametrize("options", [{}, {"positions": "learned", "max_length": 11}])
def test_start_moves_the_positions(rng, options):
    layer = PositionalEmbedding(VOCABULARY_SIZE, D_MODEL, **options)
    tokens = ids(rng)
    whole = ops.convert_to_numpy(layer(tokens))
    assert_close(layer(tokens[:, 2:], start=2), whole[:, 2:])
    assert (
        np.abs(whole[:, 2:] - ops.convert_to_numpy(layer(tokens[:, 2:]))).max() > 0.01
    )


def test_sinusoid_closed_form():
    """d_model 4: angles p and p / 100; worked at positions 0, 1 and 100."""
    expected = [
        [0, 1, 0, 1],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(100), math.cos(100), math.sin(1), math.cos(1)],
    ]
    assert_close(sinusoidal_encoding(np.array([0, 1, 100]), 4), expected)


def test_sinusoid_agrees_with_the_reference():
    expected = reference.sinusoidal_positions(100, 32)
    assert_close(sinusoidal_encoding(np.arange(100), 32), expected)


def test_sinusoid_works_at_any_length(rng):
    """Float32 angles keep 1e-3 at position 5000."""
    layer = PositionalEmbedding(VOCABULARY_SIZE, D_MODEL)
    tokens = rng.integers(VOCABULARY_SIZE, size=(1, 5003))
    layer.build((None, None))
    expected = reference.positional_embedding(
        tokens, ops.convert_to_numpy(layer.embeddings)
    )
    assert_close(layer(tokens), expected, tolerance=1e-3)


@pytest.mark.parametrize("kind", ["sinusoidal-halves", "sinusoidal-marian"])
def test_halves_agree_with_the_reference(rng, kind):
    expected = reference.halved_positions(50, 32, kind == "sinusoidal-marian")
    assert_close(sinusoidal_encoding(np.arange(50), 32, kind), expected)
    layer = PositionalEmbedding(VOCABULARY_SIZE, D_MODEL, positions=kind)
    layer.build((None, None))
    randomise(layer, rng)
    tokens, embeddings = ids(rng), ops.convert_to_numpy(layer.embeddings)
    expected = reference.positional_embedding(
        tokens,
        embeddings,
        reference.halved_positions(LENGTH, D_MODEL, kind.endswith("marian")),
    )
    assert_close(layer(tokens), expected)


def test_halves_closed_form():
    """Width 4 at position 100: the second frequency is 1 / 100, or with Marian's form
    1 / 10000."""
    halves, marian = (
        ops.convert_to_numpy(sinusoidal_encoding(np.array([0, 100]), 4, kind))
        for kind in ("sinusoidal-halves", "sinusoidal-marian")
    )
    np.testing.assert_allclose(halves[0], [0, 0, 1, 1])
    np.testing.assert_allclose(marian[0], [0, 0, 1, 1])
    sine, cosine = math.sin(100), math.cos(100)
    assert_close(halves[1], [sine, math.sin(1), cosine, math.cos(1)])
    assert_close(marian[1], [sine, math.sin(0.01), cosine, math.cos(0.01)])
    assert_close(
        sinusoidal_encoding(np.array([100]), 2, "sinusoidal-marian"), [[sine, cosine]]
    )


@pytest.mark.parametrize("kind", ["sinusoidal-halves", "sinusoidal-marian"])
def test_halves_of_an_odd_width_are_refused(kind):
    for make in (
        lambda: sinusoidal_encoding(np.arange(3), 7, kind),
        lambda: PositionalEmbedding(9, 7, positions=kind),
        lambda: TransformerConfig(d_model=7, num_heads=1, positions=kind),
    ):
        with pytest.raises(ValueError, match="`d_model` must be even.*d_model=7"):
            make()
    with pytest.raises(ValueError, match="`kind` must be one of 'sinusoidal', 'sinus"):
        sinusoidal_encoding(np.arange(3), 8, "learned")


@pytest.mark.parametrize("offset", [1, 7, 30])
def test_sinusoid_of_a_shifted_position_is_a_rotation(offset):
    """Each (sin, cos) pair turns by a fixed angle, wherever it starts (section 3.5)."""
    d_model = 8
    here = ops.convert_to_numpy(sinusoidal_encoding(np.arange(20), d_model))
    there = ops.convert_to_numpy(sinusoidal_encoding(np.arange(20) + offset, d_model))
    for i in range(d_model // 2):
        angle = offset / 10000 ** (2 * i / d_model)
        turn = np.array(
            [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
        )
        pair = slice(2 * i, 2 * i + 2)
        np.testing.assert_allclose(here[:, pair] @ turn.T, there[:, pair], atol=1e-5)


def test_sinusoid_is_no_weight():
    layer = PositionalEmbedding(VOCABULARY_SIZE, D_MODEL)
    layer.build((None, None))
    assert [weight.name for weight in layer.weights] == ["embeddings"]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_token_embedding_is_that_of_keras_and_makes_tied_logits(rng, dtype):
    layer = PositionalEmbedding(VOCABULARY_SIZE, D_MODEL, pad_id=0, dtype=dtype)
    states = layer(ids(rng))
    assert type(layer.token_embedding) is keras.layers.ReversibleEmbedding
    logits = layer.token_embedding(states, reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == layer.compute_dtype
    table = ops.convert_to_numpy(layer.embeddings)
    expected = ops.convert_to_numpy(ops.cast(states, "float32")) @ table.T
    tolerance = 1e-5 if dtype == "float32" else 0.1
    assert_close(ops.cast(logits, "float32"), expected, tolerance=tolerance)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("layer_class", [PositionalEmbedding, FeatureEmbedding])
def test_integers_of_keras_stay_close_and_are_saved(rng, tmp_path, layer_class):
    width = 3 if layer_class is FeatureEmbedding else None
    tokens = rng.integers(VOCABULARY_SIZE, size=(2, LENGTH, width)[: 2 + bool(width)])
    layer = layer_class(VOCABULARY_SIZE, 16, positions="learned", max_length=7)
    inputs = keras.Input(tokens.shape[1:], dtype="int32")
    model = keras.Model(inputs, layer(inputs))
    exact = ops.convert_to_numpy(model(tokens))
    model.quantize("int8")
    assert layer.token_embedding.quantization_mode == "int8"
    rounded = ops.convert_to_numpy(model(tokens))
    assert 0 < np.abs(rounded - exact).max() < 0.05
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert {weight.dtype for weight in loaded.weights} == {"float32", "int8"}
    np.testing.assert_array_equal(ops.convert_to_numpy(loaded(tokens)), rounded)


def test_output_starts_with_variance_one_plus_positions():
    """N(0, 1 / D) times sqrt(D) has variance 1, comparable with the sinusoids."""
    layer = PositionalEmbedding(500, 64)
    layer.build((None, None))
    scaled = ops.convert_to_numpy(layer.embeddings) * 8
    assert abs(scaled.std() - 1) < 0.02


def test_dropout_acts_on_the_sum(rng):
    """Where a unit is dropped the position vanishes with the token."""
    layer = PositionalEmbedding(VOCABULARY_SIZE, D_MODEL, dropout_rate=0.5)
    tokens = ids(rng)
    exact = ops.convert_to_numpy(layer(tokens))
    noisy = ops.convert_to_numpy(layer(tokens, training=True))
    kept = noisy != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(noisy[kept], 2 * exact[kept], rtol=1e-5)


def test_too_long_an_input_for_learned_positions_is_refused(rng):
    layer = PositionalEmbedding(
        VOCABULARY_SIZE, D_MODEL, positions="learned", max_length=4
    )
    with pytest.raises(ValueError, match="longer than the learned.*max_length=4"):
        layer(ids(rng))


@pytest.mark.parametrize("layer_class", [PositionalEmbedding, FeatureEmbedding])
def test_a_start_behind_the_learned_positions_is_refused(rng, layer_class):
    layer = layer_class(VOCABULARY_SIZE, D_MODEL, positions="learned", max_length=7)
    tokens = ids(rng)
    if layer_class is FeatureEmbedding:
        tokens = tokens[..., None]
    last = ops.convert_to_numpy(layer(tokens, start=2))
    assert np.isfinite(last).all()
    with pytest.raises(ValueError, match="5 positions, start=3, max_length=7"):
        layer(tokens, start=3)


def test_learned_positions_need_their_number():
    with pytest.raises(ValueError, match="`max_length` must be a positive integer"):
        PositionalEmbedding(VOCABULARY_SIZE, D_MODEL, positions="learned")


def test_unknown_kind_of_position_is_refused():
    with pytest.raises(ValueError, match="`positions` must be one of 'sinusoidal', "):
        PositionalEmbedding(VOCABULARY_SIZE, D_MODEL, positions="rotary", max_length=3)
