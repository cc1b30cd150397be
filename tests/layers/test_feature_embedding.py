"""The embedding of tokens of several ids against NumPy, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.embedding import FeatureEmbedding, PositionalEmbedding
from tests.layers.layer_battery import NO_DROPOUT, LayerBattery
from tests.layers.reference_weights import assert_close, randomise
from tests.reference import numpy_encoders as reference

VOCABULARY_SIZE, D_MODEL = 23, 7
# Two rows of five tokens of three features; the last token of the second is padding.
IDS = np.array(
    [
        [[5, 9, 2], [6, 0, 0], [22, 22, 1], [3, 0, 4], [8, 7, 6]],
        [[1, 2, 3], [0, 0, 9], [4, 4, 4], [17, 19, 0], [0, 0, 0]],
    ],
    "int32",
)


class TestBattery(LayerBattery):
    layer_class = FeatureEmbedding
    options = {
        "vocabulary_size": VOCABULARY_SIZE,
        "d_model": D_MODEL,
        "dropout_rate": 0.5,
        "positions": "learned",
        "max_length": 11,
        "pad_id": 3,
    }
    exact_options = {"dropout_rate": NO_DROPOUT["dropout_rate"]}
    input_shapes = ((2, 5, 3),)
    integers_below = VOCABULARY_SIZE
    output_shape = (2, 5, D_MODEL)


@pytest.fixture
def layer(rng):
    layer = FeatureEmbedding(VOCABULARY_SIZE, D_MODEL)
    layer.build((None, None, 3))
    return randomise(layer, rng)


def output(layer, ids, **options):
    return ops.convert_to_numpy(layer(ids, **options))


def test_agrees_with_the_reference(layer):
    table = ops.convert_to_numpy(layer.embeddings).astype(np.float64)
    assert_close(layer(IDS), reference.feature_embedding(IDS, table))


def test_one_feature_is_a_token(layer):
    tokens = PositionalEmbedding(VOCABULARY_SIZE, D_MODEL)
    tokens.build((None, None))
    tokens.set_weights(layer.get_weights())
    ids = np.where(IDS[..., :1] == 0, 1, IDS[..., :1])
    assert_close(output(layer, ids), output(tokens, ids[..., 0]))
    assert_close(output(layer, ids, start=4), output(tokens, ids[..., 0], start=4))


def test_order_of_the_features_does_not_matter(layer):
    assert_close(output(layer, IDS[..., ::-1]), output(layer, IDS))


def test_missing_features_change_nothing(layer):
    wider = np.pad(IDS, ((0, 0), (0, 0), (0, 2)))
    assert_close(output(layer, wider), output(layer, IDS))


def test_a_token_without_features_is_padding(layer):
    mask = layer.compute_mask(IDS, None)
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), (IDS != 0).any(axis=-1))
