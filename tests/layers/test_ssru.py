"""The simpler simple recurrent unit against the NumPy reference, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import SSRU
from keras_transformer.layers.adaptation import enable_lora
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import (
    MODES,
    check_state_follows_the_hypotheses,
    decode_steps,
)
from tests.reference import numpy_transformer as reference

WIDTH, LENGTH = 11, 7
SHAPE = (2, LENGTH, WIDTH)


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


@pytest.mark.parametrize("mode", MODES)
def test_steps_equal_call_with_a_state_of_constant_size(rng, mode):
    layer, inputs = random_layer(rng), random_inputs(rng)
    expected = ops.convert_to_numpy(layer(inputs))
    for found in decode_steps(layer, inputs, hypotheses=2, mode=mode):
        assert_close(found, expected)
    for length in (7, 7000):
        (state,) = layer.initial_cache(2, 3, length)
        assert state.shape == (2, 3, WIDTH)
    check_state_follows_the_hypotheses(layer, rng, mode)


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
