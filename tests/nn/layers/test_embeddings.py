"""Embeddings and added positions against NumPy and closed forms."""

import inspect
import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.layers import (
    EncoderLayer,
    PositionalEmbedding,
    PositionalEncoding,
    sinusoidal_encoding,
)
from tests.nn.layers.reference_weights import assert_close, randomise
from tests.nn.layers.round_trips import QUANTISES, check_quantised, outputs_of
from tests.reference import numpy_transformer as reference

VOCABULARY, WIDTH, LENGTH = 23, 6, 5
IDS = np.random.default_rng(3).integers(VOCABULARY, size=(2, LENGTH))
LEARNED = {"positions": "learned", "max_length": 11}
# The layer, and what it is called with.
LAYERS = {
    "sinusoidal": (lambda: PositionalEmbedding(VOCABULARY, WIDTH), IDS),
    "learned": (lambda: PositionalEmbedding(VOCABULARY, WIDTH, **LEARNED), IDS),
    "added sinusoids": (PositionalEncoding, None),
    "added learned": (lambda: PositionalEncoding("learned", 11), None),
}


def random_layer(rng, make):
    layer = make()
    layer.build((2, 5, 7))
    return randomise(layer, rng)


def array(tensor):
    return ops.convert_to_numpy(tensor)


@pytest.mark.parametrize(
    "options", ({}, {"d_model": 7}, LEARNED, {"positions": "sinusoidal-halves"},
                {"positions": "sinusoidal-marian"}, {"positions": "none"})
)  # fmt: skip
def test_tokens_agree_with_the_reference(rng, options):
    width, kind = options.get("d_model", WIDTH), options.get("positions", "sinusoidal")
    layer = random_layer(
        rng, lambda: PositionalEmbedding(VOCABULARY, **{"d_model": WIDTH, **options})
    )
    positions = {
        "sinusoidal": lambda: reference.sinusoidal_positions(LENGTH, width),
        "learned": lambda: array(layer.position_embeddings),
        "none": lambda: np.zeros((LENGTH, width)),
    }.get(
        kind, lambda: reference.halved_positions(LENGTH, width, kind.endswith("marian"))
    )
    expected = reference.positional_embedding(IDS, array(layer.embeddings), positions())
    assert_close(layer(IDS), expected)
    tables = ["embeddings", "position_embeddings"][: 1 + (kind == "learned")]
    assert sorted(weight.name for weight in layer.weights) == tables


def test_vectors_are_added(rng):
    inputs = rng.standard_normal((2, 5, 7)).astype("float32")
    layer = random_layer(rng, LAYERS["added learned"][0])
    assert_close(layer(inputs), inputs + array(layer.position_embeddings)[:5])
    expected = inputs + reference.sinusoidal_positions(5, 7)
    assert_close(PositionalEncoding()(inputs), expected)


@pytest.mark.parametrize("name", LAYERS)
def test_start_moves_the_positions(rng, name):
    make, inputs = LAYERS[name]
    inputs = rng.standard_normal((2, 5, 7)).astype("f") if inputs is None else inputs
    layer = random_layer(rng, make)
    whole, rest = array(layer(inputs)), inputs[:, 2:]
    for start in (2, ops.convert_to_tensor(2)):
        assert_close(layer(rest, start=start), whole[:, 2:])
    assert np.abs(whole[:, 2:] - array(layer(rest))).max() > 0.01


def test_sinusoids_closed_form():
    """Width 4: angles p and p / 100; worked at positions 0, 1 and 100."""
    expected = [
        [0, 1, 0, 1],
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [math.sin(100), math.cos(100), math.sin(1), math.cos(1)],
    ]
    assert_close(sinusoidal_encoding(np.array([0, 1, 100]), 4), expected)
    expected = reference.sinusoidal_positions(100, 32)
    assert_close(sinusoidal_encoding(np.arange(100), 32), expected)


def test_halves_closed_form():
    """Width 4 at position 100: the second frequency is 1 / 100, or with Marian's form
    1 / 10000."""
    halves, marian = (
        array(sinusoidal_encoding(np.array([0, 100]), 4, kind))
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
    for positions in ("sinusoidal-halves", "sinusoidal-marian"):
        expected = reference.halved_positions(50, 32, positions == "sinusoidal-marian")
        found = sinusoidal_encoding(np.arange(50), 32, positions=positions)
        assert_close(found, expected)


def test_arguments_that_embedding_and_encoding_share_have_one_order():
    encoding, embedding = (
        [*inspect.signature(kind).parameters]
        for kind in (PositionalEncoding, PositionalEmbedding)
    )
    assert encoding[:3] == embedding[2:5] == ["positions", "max_length", "dropout_rate"]


def test_sinusoids_work_at_any_length(rng):
    """Float32 angles keep 1e-3 at position 5000; likeness hangs on the distance."""
    layer = random_layer(rng, LAYERS["sinusoidal"][0])
    tokens = rng.integers(VOCABULARY, size=(1, 5003))
    expected = reference.positional_embedding(tokens, array(layer.embeddings))
    assert_close(layer(tokens), expected, tolerance=1e-3)
    layer = PositionalEncoding()
    vectors = array(layer(np.zeros((1, 2003, 16), "float32")))[0]
    likeness = (vectors[:-3] * vectors[3:]).sum(axis=-1)
    np.testing.assert_allclose(likeness, likeness[0], atol=1e-3)
    longer = array(layer(np.zeros((1, 4001, 16), "float32")))[0]
    np.testing.assert_array_equal(longer[:2003], vectors)


def test_output_starts_with_variance_one_plus_positions():
    """N(0, 1 / D) times sqrt(D) has variance 1, comparable with the sinusoids."""
    layer = PositionalEmbedding(500, 64)
    layer.build((None, None))
    assert abs((array(layer.embeddings) * 8).std() - 1) < 0.02


@QUANTISES
@pytest.mark.parametrize("way", ("int8 of weights", None))
def test_a_tied_output_of_a_functional_model_comes_back_from_its_file(
    way, rng, tmp_path
):
    """One table for both, and the logits carry the mask that the states carry."""
    embedding = PositionalEmbedding(VOCABULARY, WIDTH, pad_id=0)
    ids = keras.Input((None,), dtype="int32")
    states = EncoderLayer(2, 8)(embedding(ids))
    model = keras.Model(ids, embedding(states, reverse=True))
    assert model.output_shape == (None, None, VOCABULARY)
    assert model.count_params() == VOCABULARY * WIDTH + model.layers[-1].count_params()
    randomise(model, rng)
    expected = array(keras.Model(ids, states)(IDS)) @ array(embedding.embeddings).T
    assert_close(model(IDS), expected)
    means = keras.layers.GlobalAveragePooling1D()(model(IDS))
    mask = np.not_equal(IDS, 0)[..., None]
    assert_close(means, (expected * mask).sum(axis=1) / mask.sum(axis=1))
    if way is not None:
        check_quantised(model, IDS, way, tmp_path)
        return
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(outputs_of(loaded, IDS), outputs_of(model, IDS))


def test_dropout_acts_on_the_sum():
    """Where a unit is dropped the position vanishes with the token."""
    layer = PositionalEmbedding(VOCABULARY, WIDTH, dropout_rate=0.5)
    exact, noisy = array(layer(IDS)), array(layer(IDS, training=True))
    kept = noisy != 0
    assert 0.2 < kept.mean() < 0.8
    np.testing.assert_allclose(noisy[kept], 2 * exact[kept], rtol=1e-5)


def test_a_sequential_without_an_input_gives_the_ids_as_floats():
    embedding = PositionalEmbedding(VOCABULARY, WIDTH)
    model = keras.Sequential([embedding, EncoderLayer(2, 8)])
    outputs = ops.convert_to_numpy(model(IDS))
    expected = ops.convert_to_numpy(model.layers[1](embedding(IDS)))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    # Under mixed precision bfloat16 would have 256 and 258, and no 257.
    exact = PositionalEmbedding(1000, 6, dtype="mixed_bfloat16")
    model = keras.Sequential([keras.Input((None,), dtype="int32"), exact])
    ids = np.array([[257, 999]])
    both = [ops.cast(f(ids), "float32") for f in (model, exact)]
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, both))
