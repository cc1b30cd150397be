"""Random features of the softmax: unbiased, better with their number, and safe."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import PerformerAttention
from keras_transformer.layers.linear_attention import orthogonal_gaussians
from tests.layers.reference_weights import randomise

NUM_HEADS, KEY_DIM, SHAPE = 3, 5, (2, 17, 11)


def random_layer(rng, **options):
    layer = PerformerAttention(NUM_HEADS, KEY_DIM, value_dim=7, seed=1, **options)
    layer.build(SHAPE)
    return randomise(layer, rng)


def vectors_of(layer):
    return ops.convert_to_numpy(layer.random_features).astype(np.float64)


def test_features_estimate_the_exponential_without_bias(rng):
    """Lemma 1: over many draws the mean of phi(q) . phi(k) is exp(q . k / sqrt(K))."""
    draws = 20000
    layer = PerformerAttention(1, KEY_DIM, num_features=draws * KEY_DIM, seed=1)
    layer.build(SHAPE)
    query, key = 0.7 * rng.standard_normal((2, 1, 1, 3, KEY_DIM)).astype("float32")
    queries, keys = (
        ops.convert_to_numpy(layer.feature_map(x))[0, 0].astype(np.float64)
        for x in (query, key)
    )
    # Each block of K is a draw of its own.
    products = (queries[:, None] * keys).reshape(3, 3, draws, KEY_DIM)
    products = products.sum(axis=-1) * draws
    expected = np.exp(query[0, 0] @ key[0, 0].T / np.sqrt(KEY_DIM))
    error = products.std(axis=-1) / np.sqrt(draws)
    assert (np.abs(products.mean(axis=-1) - expected) < 4 * error).all()
    assert (error < 0.03 * expected).all()


def test_vectors_are_orthogonal_in_blocks_with_the_lengths_of_gaussians():
    generator = np.random.default_rng(1)
    vectors = orthogonal_gaussians(4000, 8, generator)
    blocks = vectors.reshape(-1, 8, 8)
    products = blocks @ blocks.transpose(0, 2, 1)
    off_diagonal = products * (1 - np.eye(8))
    assert np.abs(off_diagonal).max() < 1e-9
    # |w|^2 has the mean K and the variance 2 K; each unit has the variance 1.
    squares = (vectors**2).sum(axis=1)
    assert squares.mean() == pytest.approx(8, abs=0.3)
    assert squares.var() == pytest.approx(16, abs=2)
    assert np.abs(vectors.mean(axis=0)).max() < 0.08
    assert orthogonal_gaussians(5, 8, generator).shape == (5, 8)


def test_a_seed_draws_the_same_and_redraw_draws_others():
    first, second = (PerformerAttention(2, 4, seed=7) for _ in range(2))
    for layer in (first, second):
        layer.build(SHAPE)
    drawn = vectors_of(first)
    assert drawn.shape == (6, 4)  # 4 ln 4, rounded up
    np.testing.assert_array_equal(drawn, vectors_of(second))
    first.redraw(seed=8)
    assert np.abs(drawn - vectors_of(first)).min() > 0
    first.redraw()
    second.redraw()
    assert np.abs(vectors_of(first) - vectors_of(second)).max() > 0


@pytest.mark.parametrize("scale", [30.0, 1e3])
def test_large_inputs_give_finite_outputs_and_gradients(rng, scale):
    layer, inputs = random_layer(rng), rng.standard_normal(SHAPE).astype("float32")
    output = ops.convert_to_numpy(layer(scale * inputs, use_causal_mask=True))
    assert np.isfinite(output).all()
    states = keras.Input(SHAPE[1:])
    model = keras.Model(states, layer(states, use_causal_mask=True))
    model.compile(optimizer=keras.optimizers.SGD(1e-9), loss="mse")
    model.train_on_batch(scale * inputs, np.zeros(output.shape))
    assert all(np.isfinite(ops.convert_to_numpy(w)).all() for w in layer.weights)
