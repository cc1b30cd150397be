"""The simpler simple recurrent unit against the NumPy reference, and its laws."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.decoding import Place
from keras_transformer.kernels.few_passes import prepare_mask
from keras_transformer.layers import SSRU, CausalLayer, DecoderLayer
from keras_transformer.layers.adaptation import enable_lora
from keras_transformer.masks import causal_mask
from tests.layers.layer_battery import LayerBattery
from tests.layers.reference_weights import (
    assert_close,
    layer_weights_of,
    randomise,
    weights_of,
)
from tests.layers.step_by_step import (
    MODES,
    check_state_follows_the_hypotheses,
    decode_steps,
)
from tests.reference import numpy_transformer as reference

WIDTH, LENGTH, NUM_HEADS = 11, 7, 3
SHAPE = (2, LENGTH, WIDTH)


class TestBattery(LayerBattery):
    layer_class = SSRU
    input_shapes = (SHAPE,)
    output_shape = SHAPE

    def test_rates_must_lie_below_one(self):
        assert "dropout_rate" not in self.layer().get_config()

    def test_dropout_acts_in_training_only(self, rng):
        layer, inputs = self.layer(), self.inputs(rng)
        silent, training = layer(*inputs), layer(*inputs, training=True)
        assert_close(training, ops.convert_to_numpy(silent))


def random_layer(rng):
    layer = SSRU()
    layer.build(SHAPE)
    return randomise(layer, rng)


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


def test_outputs_agree_with_the_reference(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    expected = reference.ssru(inputs, weights_of(layer, "ssru"))
    assert 0.2 < (expected > 0).mean() < 0.8
    assert_close(layer(inputs), expected)
    paths = {
        weight.path.partition("/")[2]: tuple(weight.shape) for weight in layer.weights
    }
    square = (WIDTH, WIDTH)
    assert paths == {
        "input/kernel": square, "forget/kernel": square, "forget/bias": (WIDTH,)
    }  # fmt: skip


def test_a_masked_position_leaves_the_state_as_it_is(rng):
    """What follows it is as if it were not there."""
    layer, inputs = random_layer(rng), random_inputs(rng)
    mask = np.ones((2, LENGTH), bool)
    mask[0, [0, 3, 4]] = False
    outputs = ops.convert_to_numpy(layer(inputs, mask=mask))
    shorter = ops.convert_to_numpy(layer(inputs[:1, mask[0]]))
    assert_close(outputs[:1, mask[0]], shorter)
    assert_close(outputs[1:], ops.convert_to_numpy(layer(inputs))[1:])
    np.testing.assert_array_equal(outputs[0, 4], outputs[0, 2])
    assert_close(layer(inputs, mask=mask[:, None]), outputs)


def test_later_position_changes_no_earlier_output(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    changed = inputs.copy()
    changed[:, 4:] += 5
    before, after = (ops.convert_to_numpy(layer(x)) for x in (inputs, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before != after)[:, 4:].any(axis=(0, 2)).all()


@pytest.mark.parametrize("mode", MODES)
def test_steps_equal_call_with_a_state_of_constant_size(rng, mode):
    layer, inputs = random_layer(rng), random_inputs(rng)
    expected = ops.convert_to_numpy(layer(inputs))
    for found in decode_steps(layer, inputs, hypotheses=2, mode=mode):
        assert_close(found, expected)
    for length in (7, 7000):
        (state,) = layer.initial_cache(2, 3, length)
        assert state.shape == (2, 3, WIDTH)


@pytest.mark.parametrize("mode", MODES)
def test_state_follows_the_hypotheses(rng, mode):
    check_state_follows_the_hypotheses(random_layer(rng), rng, mode)


def test_length_that_is_not_known_beforehand(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    given = keras.Input((None, WIDTH))
    model = keras.Model(given, layer(given))
    expected = ops.convert_to_numpy(layer(inputs))
    assert_close(model.predict(inputs, verbose=0), expected)


def test_half_precision_adds_up_in_float32():
    """With almost nothing forgotten, bfloat16 would soon add nothing more."""
    layer = SSRU(dtype="bfloat16")
    layer.build((1, None, 2))
    layer.input_dense.kernel.assign(np.eye(2))
    layer.forget_dense.kernel.assign(np.zeros((2, 2)))
    layer.forget_dense.bias.assign([6.0, 6.0])  # sigmoid(6) = 0.9975
    outputs = layer(np.ones((1, 800, 2), "float32"))
    last = ops.convert_to_numpy(ops.cast(outputs, "float32"))[0, -1]
    kept = 1 / (1 + np.exp(-6.0))
    np.testing.assert_allclose(last, 1 - kept**800, rtol=0.02)


def test_mask_of_queries_is_refused(rng):
    with pytest.raises(ValueError, match="`mask` must be the same for all queries"):
        random_layer(rng)(random_inputs(rng), mask=causal_mask(LENGTH))


def random_decoder_layer(rng, norm_first):
    layer = DecoderLayer(
        NUM_HEADS, d_ff=8, key_dim=5, norm_first=norm_first, attention="ssru"
    )
    layer.build(SHAPE, (2, 5, 13))
    return randomise(layer, rng)


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_layer_agrees_with_the_reference_and_its_steps(rng, norm_first):
    layer, inputs = random_decoder_layer(rng, norm_first), random_inputs(rng)
    source = rng.standard_normal((2, 5, 13)).astype("float32")
    expected = reference.decoder_layer(
        inputs, source, layer_weights_of(layer), NUM_HEADS, norm_first=norm_first
    )
    assert_close(layer(inputs, source), expected)
    cache = layer.initial_cache(2, 1, LENGTH)
    projected = layer.keys_and_values(ops.convert_to_tensor(source))
    weights = layer.step_weights()
    everything = prepare_mask(ops.ones((1, 1, 1, 1), "bool"), "float32")
    for index in range(LENGTH):
        output, cache, _ = layer.step(
            ops.convert_to_tensor(inputs[:, index : index + 1]), cache, projected,
            Place(index, None), (None, everything), weights,
        )  # fmt: skip
        assert_close(output[:, 0], expected[:, index])


def test_looking_ahead_is_refused(rng):
    with pytest.raises(ValueError, match="`use_causal_mask` must be True"):
        random_layer(rng)(random_inputs(rng), use_causal_mask=False)


def test_options_of_the_weights_reach_them():
    layer = SSRU(kernel_initializer="he_normal", bias_initializer="ones")
    layer = SSRU.from_config(layer.get_config())
    layer.build(SHAPE)
    assert (ops.convert_to_numpy(layer.forget_dense.bias) == 1).all()
    kernels = [layer.input_dense.kernel, layer.forget_dense.kernel]
    first, second = map(ops.convert_to_numpy, kernels)
    assert np.abs(first - second).max() > 0.1


def test_a_language_model_may_look_back_with_it(rng):
    class Layer(CausalLayer):
        def make_attention(self, name, d_model):
            return SSRU(dtype=self.dtype_policy, name=name)

    layer = Layer(num_heads=1, d_ff=8)
    assert layer(random_inputs(rng)).shape == SHAPE


def test_adapters_and_integers_stay_close(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    exact = ops.convert_to_numpy(layer(inputs))
    enable_lora(layer, 2)
    assert_close(layer(inputs), exact)  # B is zero at first.
    for dense in (layer.input_dense, layer.forget_dense):
        dense.lora_kernel_b.assign(rng.standard_normal((2, WIDTH)))
    adapted = ops.convert_to_numpy(layer(inputs))
    assert np.abs(adapted - exact).max() > 0.1
    (found,) = decode_steps(layer, inputs)
    assert_close(found, adapted)
    integers = random_layer(np.random.default_rng(5))
    expected = ops.convert_to_numpy(integers(inputs))
    for dense in (integers.input_dense, integers.forget_dense):
        dense.quantize("int8")
    quantized = ops.convert_to_numpy(integers(inputs))
    assert 0 < np.abs(quantized - expected).max() < 0.1
    (found,) = decode_steps(integers, inputs)
    assert_close(found, quantized)
