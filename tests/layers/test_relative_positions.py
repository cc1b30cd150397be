"""Rotary and ALiBi positions, alone and in multi-head attention."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.relative_positions import (
    AlibiPositions,
    RelativePositions,
    RotaryPositions,
    alibi_slopes,
    rotate,
)
from keras_transformer.masks import causal_mask
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import MODES, decode_steps
from tests.reference import numpy_attention as reference

NUM_HEADS, KEY_DIM, LENGTH = 6, 4, 7
SHAPE = (2, LENGTH, 11)
KINDS = {
    "rotary": {"rotary_base": 10000.0},
    "alibi": {"slopes": [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]},
}


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


def test_rotation_closed_form():
    """Width 2: one radian a position."""
    found = rotate(ops.convert_to_tensor([[1.0, 0.0]]), np.array([2]))
    assert_close(found, [[math.cos(2), math.sin(2)]])


@pytest.mark.parametrize("offset", [1, 13, 500])
def test_product_of_rotated_vectors_depends_on_the_distance_alone(rng, offset):
    query, key = rng.standard_normal((2, 1, 8)).astype("float32")
    query, key = map(ops.convert_to_tensor, (query, key))

    def product(query_position, key_position):
        turned = rotate(query, np.array([query_position]))
        return ops.sum(turned * rotate(key, np.array([key_position])))

    assert_close(product(5 + offset, 2 + offset), product(5, 2), tolerance=1e-4)
    assert abs(float(product(5, 2)) - float(product(2, 5))) > 1e-2


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


@pytest.mark.parametrize("num_key_value_heads", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_reference(rng, kind, num_key_value_heads):
    layer = random_layer(
        rng, positions=kind, num_key_value_heads=num_key_value_heads, value_dim=5
    )
    inputs = random_inputs(rng)
    mask = rng.random((2, LENGTH, LENGTH)) < 0.7
    mask[1, 3] = False
    output, attention_weights = layer(inputs, mask=mask, return_attention_scores=True)
    expected = reference.self_attention(
        inputs, weights_of(layer, "attention"), NUM_HEADS, num_key_value_heads, mask,
        **KINDS[kind],
    )  # fmt: skip
    assert_close(output, expected[0])
    assert_close(attention_weights, expected[1])


@pytest.mark.parametrize("kind", KINDS)
def test_training_pass_agrees_with_the_reference(rng, kind):
    """In a TensorFlow graph training has a way of its own."""
    layer = random_layer(rng, positions=kind, num_key_value_heads=3)
    inputs = random_inputs(rng)
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    weights = weights_of(layer, "attention")
    expected, _ = reference.self_attention(
        inputs, weights, NUM_HEADS, num_key_value_heads=3, **KINDS[kind]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    loss = model.train_on_batch(inputs, np.zeros(expected.shape))
    assert loss == pytest.approx((expected**2).mean(), rel=1e-5)


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_key_value_heads", [None, 2])
@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_call_under_the_causal_mask(
    rng, kind, hypotheses, num_key_value_heads, mode
):
    layer = random_layer(
        rng, positions=kind, num_key_value_heads=num_key_value_heads, use_bias=True
    )
    inputs = random_inputs(rng)
    expected = ops.convert_to_numpy(layer(inputs, mask=causal_mask(LENGTH)))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_the_inputs_matters(rng, kind):
    """Without positions attention to reversed inputs is reversed attention."""
    inputs = random_inputs(rng)
    for positions in (None, kind):
        layer = random_layer(rng, positions=positions)
        forward = ops.convert_to_numpy(layer(inputs))
        backward = ops.convert_to_numpy(layer(inputs[:, ::-1].copy()))[:, ::-1]
        shuffled = np.roll(inputs, 1, axis=1)
        rolled = np.roll(ops.convert_to_numpy(layer(shuffled)), -1, axis=1)
        differs = np.abs(forward - rolled).max() > 1e-3
        assert differs == (positions is not None)
        if positions != "rotary":
            assert_close(backward, forward)


def test_rotary_attention_is_the_same_at_any_distance_from_the_start(rng):
    """Padding in front moves all positions and no weight."""
    layer = random_layer(rng, positions="rotary")
    inputs = random_inputs(rng)
    moved = np.pad(inputs, ((0, 0), (5, 0), (0, 0)))
    mask = np.arange(LENGTH + 5) >= 5
    found = layer(moved, mask=np.tile(mask, (2, 1)))
    assert_close(found[:, 5:], ops.convert_to_numpy(layer(inputs)))


@pytest.mark.parametrize("positions", [RotaryPositions(base=500.0), AlibiPositions()])
def test_object_is_saved_with_the_layer(rng, tmp_path, positions):
    layer = random_layer(rng, positions=positions)
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    inputs = random_inputs(rng)
    assert_close(loaded(inputs), ops.convert_to_numpy(model(inputs)))
    kept = loaded.layers[0].positions
    assert type(kept) is type(positions)
    assert kept.get_config() == positions.get_config()


def test_base_reaches_the_rotation(rng):
    layer = random_layer(rng, positions=RotaryPositions(base=50.0))
    inputs = random_inputs(rng)
    expected, _ = reference.self_attention(
        inputs, weights_of(layer, "attention"), NUM_HEADS, rotary_base=50.0
    )
    assert_close(layer(inputs), expected)


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


def test_key_with_positions_is_refused(rng):
    layer = random_layer(rng, positions="alibi")
    inputs = random_inputs(rng)
    with pytest.raises(ValueError, match="`positions` are for self-attention"):
        layer(inputs, inputs)


def test_odd_width_of_rotary_heads_is_refused():
    with pytest.raises(ValueError, match="`key_dim` must be even.*key_dim=5"):
        MultiHeadAttention(2, 5, positions="rotary")


@pytest.mark.parametrize("base", [1, 0.5, -3])
def test_base_that_turns_nothing_is_refused(base):
    with pytest.raises(ValueError, match="`base` must be above 1"):
        RotaryPositions(base=base)


@pytest.mark.parametrize("positions", ["sinusoidal", 3])
def test_unknown_positions_are_refused(positions):
    with pytest.raises(ValueError, match="`positions` must be 'rotary', 'alibi'"):
        MultiHeadAttention(2, 4, positions=positions)
