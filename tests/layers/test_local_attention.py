"""Attention to a window against the NumPy reference and full attention."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import DecoderLayer, MultiHeadAttention
from keras_transformer.layers import local_attention as module
from keras_transformer.layers.attention import recorded_attention
from keras_transformer.layers.local_attention import LocalAttention
from keras_transformer.masks import causal_mask, local_window_mask
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import MODES, decode_steps
from tests.reference import numpy_attention as reference

NUM_HEADS, KEY_DIM, LENGTH, WIDTH = 6, 4, 23, 11
SHAPE = (2, LENGTH, WIDTH)


class TestBattery(LayerBattery):
    layer_class = LocalAttention
    options = {"num_heads": 3, "key_dim": 5, "window": 2, "causal": True}
    input_shapes = (SHAPE,)
    output_shape = SHAPE
    # It adds the same number to all scores of a query, which the softmax removes.
    weights_without_gradient = ("key_bias",)

    def test_rates_must_lie_below_one(self):
        with pytest.raises(ValueError, match="`dropout_rate` must be a number in"):
            self.layer(dropout_rate=1.0)

    def test_dropout_acts_in_training_only(self, rng):
        self.options = self.options | {"dropout_rate": 0.5}
        super().test_dropout_acts_in_training_only(rng)

    def test_config_keeps_the_arguments_of_multi_head_attention(self):
        layer = self.layer(num_key_value_heads=1, use_bias=True, dropout_rate=0.25)
        again = LocalAttention.from_config(layer.get_config())
        assert again.num_key_value_heads == 1
        assert again.use_bias
        assert again.dropout_rate == 0.25


@pytest.fixture(params=[3, 32])
def smallest_block(request, monkeypatch):
    """Blocks of the window's size or the next greater one: 8 or 1 at 23 positions."""
    monkeypatch.setattr(module, "SMALLEST_BLOCK", request.param)


def random_layer(rng, window=3, causal=False, **options):
    options = {"use_bias": False} | options
    layer = LocalAttention(NUM_HEADS, KEY_DIM, window, causal=causal, **options)
    layer.build(SHAPE)
    return randomise(layer, rng)


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


def row_mask():
    """The last row ends early and so has queries whose window is all padding."""
    return np.arange(LENGTH) < np.array([[LENGTH], [7]])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, 7, 40])
def test_agrees_with_the_reference(rng, smallest_block, window, causal, masked):
    layer, inputs = random_layer(rng, window, causal), random_inputs(rng)
    near = np.abs(np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))) <= window
    mask = np.tril(near) if causal else near
    if masked:
        mask = mask & row_mask()[:, None]
    weights = weights_of(layer, "attention")
    expected, _ = reference.self_attention(inputs, weights, NUM_HEADS, mask=mask)
    output = layer(inputs, mask=row_mask() if masked else None)
    assert_close(output, expected)
    if masked:
        assert not ops.convert_to_numpy(output)[1, 7 + window :].any()


@pytest.mark.parametrize(
    "options", [{"positions": "rotary"}, {"positions": "alibi"}, {"value_dim": 5}]
)
@pytest.mark.parametrize("causal", [False, True])
def test_options_of_multi_head_attention_hold(rng, smallest_block, causal, options):
    options = options | {"num_key_value_heads": 2, "use_bias": True}
    local, inputs = random_layer(rng, causal=causal, **options), random_inputs(rng)
    full = MultiHeadAttention(NUM_HEADS, KEY_DIM, **options)
    full.build(SHAPE)
    full.set_weights(local.get_weights())
    mask = local_window_mask(LENGTH, 3, causal)
    expected = ops.convert_to_numpy(full(inputs, mask=mask))
    assert_close(local(inputs), expected)


def test_training_pass_agrees_with_full_attention(rng, smallest_block):
    """In a TensorFlow graph training has a way of its own; the gradients agree."""
    local, inputs = random_layer(rng), random_inputs(rng)
    full = MultiHeadAttention(NUM_HEADS, KEY_DIM, use_bias=False)
    full.build(SHAPE)
    full.set_weights(local.get_weights())
    target = rng.standard_normal(SHAPE)
    window = local_window_mask(LENGTH, 3)
    trained = []
    for layer, mask in ((local, None), (full, window)):
        query = keras.Input((None, WIDTH))
        model = keras.Model(query, layer(query, mask=mask))
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse")
        model.train_on_batch(inputs, target)
        trained.append([ops.convert_to_numpy(weight) for weight in layer.weights])
    for one, other in zip(*trained, strict=True):
        assert_close(one, other)


def test_length_that_is_not_known_beforehand(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    query, mask = keras.Input((None, WIDTH)), keras.Input((None,), dtype="bool")
    model = keras.Model([query, mask], layer(query, mask=mask))
    expected = ops.convert_to_numpy(layer(inputs, mask=row_mask()))
    assert_close(model.predict([inputs, row_mask()], verbose=0), expected)


@pytest.mark.parametrize("length", [1, 23])
def test_weights_on_request_are_those_of_the_window(rng, length):
    layer, inputs = random_layer(rng, causal=True), random_inputs(rng)[:, :length]
    output, weights = layer(inputs, return_attention_weights=True)
    with recorded_attention() as record:
        layer(inputs)
    assert_close(record[layer][0], ops.convert_to_numpy(weights))
    assert_close(output, ops.convert_to_numpy(layer(inputs)))
    assert weights.shape == (2, NUM_HEADS, length, length)
    window = ops.convert_to_numpy(local_window_mask(length, 3, causal=True))
    expected = np.broadcast_to(window[0], weights.shape)
    np.testing.assert_array_equal(ops.convert_to_numpy(weights) > 0, expected)


def test_far_position_changes_nothing(rng, smallest_block):
    layer, inputs = random_layer(rng), random_inputs(rng)
    changed = inputs.copy()
    changed[:, 10] += 5
    before, after = (ops.convert_to_numpy(layer(x)) for x in (inputs, changed))
    moved = np.abs(before - after).max(axis=(0, 2)) > 1e-4
    np.testing.assert_array_equal(np.flatnonzero(moved), np.arange(7, 14))


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hypotheses", [1, 3])
@pytest.mark.parametrize("positions", [None, "rotary", "alibi"])
def test_steps_equal_call(rng, positions, hypotheses, mode):
    layer = random_layer(rng, causal=True, positions=positions)
    inputs = random_inputs(rng)[:, :13]
    expected = ops.convert_to_numpy(layer(inputs))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


def test_mask_of_queries_is_refused(rng):
    layer = random_layer(rng)
    with pytest.raises(ValueError, match=r"`mask` must be the same for all queries"):
        layer(random_inputs(rng), mask=causal_mask(LENGTH))


@pytest.mark.parametrize("options", [{"sliding_window": 2}, {"attention_axes": 1}])
def test_options_that_its_window_replaces_are_refused(options):
    with pytest.raises(ValueError, match="must be None: `window` goes over the posit"):
        LocalAttention(2, 4, window=3, **options)


def test_further_axes_are_refused(rng):
    layer = LocalAttention(2, 4, window=3)
    with pytest.raises(ValueError, match=r"`query` must have the shape \(B, T, D\)"):
        layer(rng.standard_normal((2, 3, 5, 8)))


class LocalDecoderLayer(DecoderLayer):
    def make_attention(self, name, d_model):
        if name == "cross_attention":
            return super().make_attention(name, d_model)
        return LocalAttention(
            self.num_heads, 5, window=3, causal=True, use_bias=False, name=name
        )


def test_decoder_layer_takes_it_for_its_self_attention(rng):
    inputs, source = random_inputs(rng), rng.standard_normal((2, 5, 7)).astype("f")
    local = LocalDecoderLayer(3, d_ff=8, key_dim=5, dropout_rate=0.0)
    full = DecoderLayer(3, d_ff=8, key_dim=5, dropout_rate=0.0)
    for layer in (local, full):
        layer.build(inputs.shape, source.shape)
    full.set_weights(randomise(local, rng).get_weights())
    expected = full(inputs, source, mask=local_window_mask(LENGTH, 3))
    assert_close(local(inputs, source), ops.convert_to_numpy(expected))


def test_it_takes_over_no_layer_of_keras():
    theirs = keras.layers.MultiHeadAttention(2, 4)
    with pytest.raises(TypeError, match="no attention in blocks.*: MultiHeadAttention"):
        LocalAttention.from_keras(theirs)
