"""Attention among what hashes alike against the NumPy reference, and its laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import DecoderLayer, LSHAttention
from keras_transformer.masks import causal_mask, valid_length_mask
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import assert_close, randomise
from tests.layers.step_by_step import MODES, decode_steps
from tests.reference import numpy_attention as reference

NUM_HEADS, KEY_DIM, VALUE_DIM, LENGTH = 3, 5, 7, 23
SHAPE = (2, LENGTH, 11)


class TestBattery(LayerBattery):
    layer_class = LSHAttention
    options = {
        "num_heads": NUM_HEADS,
        "key_dim": KEY_DIM,
        "num_buckets": 4,
        "chunk_size": 6,
        "num_rounds": 3,
        "value_dim": VALUE_DIM,
        "output_dim": 13,
        "causal": True,
        "dropout_rate": 0.5,
        "use_bias": False,
        "seed": 3,
    }
    exact_options = {"dropout_rate": 0.0}
    input_shapes = (SHAPE,)
    output_shape = (2, LENGTH, 13)
    weights_without_gradient = ("hash_vectors",)

    def test_mixed_precision_computes_in_bfloat16_and_keeps_float32_weights(self, rng):
        """Half precision may hash to another bucket; a whole chunk is one here."""

        class OneBucket(LSHAttention):
            def _buckets(self, queries):
                return ops.zeros_like(super()._buckets(queries))

        self.layer_class = OneBucket
        super().test_mixed_precision_computes_in_bfloat16_and_keeps_float32_weights(rng)


def random_layer(rng, **options):
    """Random weights, but the vectors to hash with as they were drawn."""
    options = {"num_buckets": 4, "chunk_size": 4, "num_rounds": 2, "seed": 1} | options
    layer = LSHAttention(NUM_HEADS, KEY_DIM, value_dim=VALUE_DIM, **options)
    layer.build(SHAPE)
    drawn = ops.convert_to_numpy(layer.hash_vectors)
    randomise(layer, rng)
    layer.hash_vectors.assign(drawn)
    return layer


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


def all_weights_of(layer):
    return {
        weight.name: ops.convert_to_numpy(weight).astype(np.float64)
        for weight in layer.weights
    }


def row_mask():
    return np.arange(LENGTH) < np.array([[LENGTH], [9]])


@pytest.mark.one_case
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_rounds", [1, 3])
@pytest.mark.parametrize("chunk_size", [2, 5, 23])
def test_agrees_with_the_reference(rng, chunk_size, num_rounds, causal, masked):
    layer = random_layer(
        rng, chunk_size=chunk_size, num_rounds=num_rounds, causal=causal
    )
    inputs, mask = random_inputs(rng), row_mask() if masked else None
    expected, is_seen = reference.lsh_attention(
        inputs, all_weights_of(layer), NUM_HEADS, chunk_size, causal, mask
    )
    # Neither everything nor nothing is seen, and some see themselves alone.
    assert 0.02 < is_seen.mean() < 0.9
    found = ops.convert_to_numpy(layer(inputs, mask=mask))
    assert_close(found, expected, tolerance=1e-4)


@pytest.mark.parametrize("num_rounds", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_one_bucket_and_one_chunk_give_full_attention_of_shared_keys(
    rng, causal, num_rounds
):
    layer = random_layer(rng, chunk_size=LENGTH, num_rounds=num_rounds, causal=causal)
    layer.hash_vectors.assign(np.zeros(layer.hash_vectors.shape))
    inputs = random_inputs(rng)
    full = np.ones((LENGTH, LENGTH), bool)
    expected = reference.shared_key_attention(
        inputs, all_weights_of(layer), NUM_HEADS, np.tril(full) if causal else full
    )
    assert_close(layer(inputs), expected)


def test_more_rounds_come_closer_to_full_attention(rng):
    inputs, errors = random_inputs(rng), []
    for rounds in (1, 4, 64):
        layer = random_layer(
            np.random.default_rng(5), num_rounds=rounds, chunk_size=LENGTH
        )
        expected = reference.shared_key_attention(
            inputs, all_weights_of(layer), NUM_HEADS, np.ones((LENGTH, LENGTH), bool)
        )
        errors.append(np.abs(ops.convert_to_numpy(layer(inputs)) - expected).max())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1 * errors[0]


def test_a_position_with_nothing_else_attends_to_itself(rng):
    layer, inputs = random_layer(rng, causal=True), random_inputs(rng)
    weights = all_weights_of(layer)
    first = inputs[:, 0].astype(np.float64) @ weights["value_kernel"]
    first = (first + weights["value_bias"]) @ weights["output_kernel"]
    assert_close(layer(inputs)[:, 0], first + weights["output_bias"])


def test_later_position_changes_no_earlier_output(rng):
    """Not by another place of a chunk's border either, whatever changes."""
    layer = random_layer(rng, causal=True, chunk_size=2)
    inputs = random_inputs(rng)
    before = ops.convert_to_numpy(layer(inputs))
    for start in range(1, LENGTH):
        changed = inputs.copy()
        changed[:, start:] = rng.standard_normal(changed[:, start:].shape)
        after = ops.convert_to_numpy(layer(changed))
        assert_close(after[:, :start], before[:, :start])


@pytest.mark.parametrize("causal", [False, True])
def test_padding_changes_nothing_and_padding_alone_gives_zeros(rng, causal):
    layer = random_layer(rng, causal=causal, use_bias=False)
    inputs = random_inputs(rng)
    padded = np.pad(inputs, ((0, 0), (0, 6), (0, 0)), constant_values=5)
    mask = valid_length_mask([LENGTH, 0], LENGTH + 6)
    expected = ops.convert_to_numpy(layer(inputs))
    found = ops.convert_to_numpy(layer(padded, mask=mask))
    assert_close(found[0, :LENGTH], expected[0])
    assert not found[1].any()


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hypotheses", [1, 3])
def test_steps_equal_call(rng, hypotheses, mode):
    layer = random_layer(rng, causal=True, chunk_size=2)
    inputs = random_inputs(rng)[:, :13]
    expected = ops.convert_to_numpy(layer(inputs))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


def test_length_that_is_not_known_beforehand(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    query = keras.Input((None, SHAPE[-1]))
    model = keras.Model(query, layer(query))
    expected = ops.convert_to_numpy(layer(inputs))
    assert_close(model.predict(inputs, verbose=0), expected)


def test_seeds_and_redraw(rng):
    one, other = random_layer(rng), random_layer(rng)
    np.testing.assert_array_equal(one.hash_vectors, other.hash_vectors)
    one.redraw(seed=9)
    assert (
        np.abs(
            all_weights_of(one)["hash_vectors"] - all_weights_of(other)["hash_vectors"]
        ).min()
        > 0
    )


def test_what_it_cannot_do_is_refused(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    with pytest.raises(ValueError, match="whose queries are the keys"):
        layer(inputs, inputs + 1)
    with pytest.raises(ValueError, match="`mask` must be the same for all queries"):
        layer(inputs, mask=causal_mask(LENGTH))
    with pytest.raises(ValueError, match="`num_buckets` must be even"):
        LSHAttention(2, 4, num_buckets=3)


class LSHDecoderLayer(DecoderLayer):
    def make_attention(self, name, d_model):
        if name == "cross_attention":
            return super().make_attention(name, d_model)
        return LSHAttention(self.num_heads, 5, 4, 2, causal=True, name=name)


def test_decoder_layer_takes_it_for_its_self_attention(rng):
    inputs, source = random_inputs(rng), rng.standard_normal((2, 5, 7)).astype("f")
    layer = LSHDecoderLayer(3, d_ff=8, key_dim=5, dropout_rate=0.0)
    before = ops.convert_to_numpy(layer(inputs, source))
    inputs[:, 9:] += 5
    assert_close(layer(inputs, source)[:, :9], before[:, :9])
