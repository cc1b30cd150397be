"""Rotary and ALiBi positions, alone and in multi-head attention."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.relative_positions import (
    RelativePositions,
    alibi_slopes,
    rotate,
)
from tests.layers.reference_weights import assert_close, randomise
from tests.reference import numpy_attention as reference

NUM_HEADS, KEY_DIM, LENGTH = 6, 4, 7
SHAPE = (2, LENGTH, 11)


def random_layer(rng, **options):
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, **options)
    layer.build(SHAPE)
    return randomise(layer, rng)


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


def test_rotation_agrees_with_the_matrix_of_the_paper(rng):
    vectors = rng.standard_normal((2, 3, 5, 8)).astype("float32")
    positions = np.array([0, 1, 7, 30, 100])
    found = rotate(ops.convert_to_tensor(vectors), positions, base=100.0)
    for place, position in enumerate(positions):
        matrix = reference.rotation(position, 8, base=100.0)
        assert_close(found[:, :, place], vectors[:, :, place] @ matrix.T)


@pytest.mark.parametrize(
    "num_heads, expected",
    [
        (8, [2**-i for i in range(1, 9)]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (1, [2**-8]),
    ],
)
def test_slopes_of_alibi_are_those_of_the_paper(num_heads, expected):
    assert alibi_slopes(num_heads) == expected


def test_rotary_attention_is_the_same_at_any_distance_from_the_start(rng):
    """Padding in front moves all positions and no weight."""
    layer = random_layer(rng, positions="rotary")
    inputs = random_inputs(rng)
    moved = np.pad(inputs, ((0, 0), (5, 0), (0, 0)))
    mask = np.arange(LENGTH + 5) >= 5
    found = layer(moved, mask=np.tile(mask, (2, 1)))
    assert_close(found[:, 5:], ops.convert_to_numpy(layer(inputs)))


def test_other_positions_can_be_written(rng):
    class Nearest(RelativePositions):
        """Lets each position see itself alone, by a low bias."""

        def bias(self, num_heads, query_positions, key_positions):
            same = ops.equal(query_positions[:, None], key_positions[None, :])
            return ops.where(same, 0.0, -1e9)[None]

    layer = random_layer(rng, positions=Nearest())
    _, attention_weights = layer(random_inputs(rng), return_attention_scores=True)
    expected = np.broadcast_to(np.eye(LENGTH), attention_weights.shape)
    assert_close(attention_weights, expected)
