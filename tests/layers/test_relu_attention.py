"""Attention with ReLU in place of softmax."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.score_attentions import ReluAttention, masked_relu
from keras_transformer.masks import causal_mask
from tests.layers.layer_battery import ATTENTION_OPTIONS, AttentionBattery
from tests.layers.reference_weights import assert_close, randomise, weights_of
from tests.layers.step_by_step import MODES, decode_steps
from tests.reference import numpy_attention as reference

NUM_HEADS, KEY_DIM, LENGTH = 6, 4, 7
SHAPE = (2, LENGTH, 11)


class TestBattery(AttentionBattery):
    layer_class = ReluAttention
    options = ATTENTION_OPTIONS | {"positions": "alibi"}
    input_shapes = (SHAPE,)
    output_shape = (2, LENGTH, 23)


def random_layer(rng, **options):
    layer = ReluAttention(NUM_HEADS, KEY_DIM, **({"use_bias": False} | options))
    layer.build(SHAPE)
    return randomise(layer, rng)


def random_inputs(rng):
    return rng.standard_normal(SHAPE).astype("float32")


def test_weights_closed_form():
    scores = ops.convert_to_tensor([[3.0, -1.0, 6.0], [2.0, 4.0, 8.0]])
    assert_close(masked_relu(scores), [[1, 0, 2], [2 / 3, 4 / 3, 8 / 3]])
    mask = np.array([[True, True, False], [False, False, False]])
    assert_close(masked_relu(scores, mask), [[1.5, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("num_key_value_heads", [None, 2])
def test_agrees_with_the_reference(rng, num_key_value_heads):
    layer = random_layer(rng, num_key_value_heads=num_key_value_heads)
    inputs = random_inputs(rng)
    mask = rng.random((2, LENGTH, LENGTH)) < 0.7
    mask[1, 3] = False
    output, attention_weights = layer(inputs, mask=mask, return_attention_weights=True)
    expected = reference.self_attention(
        inputs, weights_of(layer, "attention"), NUM_HEADS, num_key_value_heads, mask,
        weigh=reference.relu_weights,
    )  # fmt: skip
    assert_close(output, expected[0])
    assert_close(attention_weights, expected[1])
    assert not ops.convert_to_numpy(output)[1, 3].any()


def test_training_pass_agrees_with_the_reference(rng):
    """In a TensorFlow graph the softmax has a way of its own, which is not taken."""
    layer, inputs = random_layer(rng), random_inputs(rng)
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    weights = weights_of(layer, "attention")
    mask = np.ones((1, 1, LENGTH), bool)
    expected, _ = reference.self_attention(
        inputs, weights, NUM_HEADS, mask=mask, weigh=reference.relu_weights
    )
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    loss = model.train_on_batch(inputs, np.zeros(expected.shape))
    assert loss == pytest.approx((expected**2).mean(), rel=1e-5)


@pytest.mark.one_case
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"positions": "rotary"}])
@pytest.mark.parametrize("hypotheses", [1, 3])
def test_steps_equal_call_under_the_causal_mask(rng, hypotheses, options, mode):
    layer, inputs = random_layer(rng, **options), random_inputs(rng)
    expected = ops.convert_to_numpy(layer(inputs, mask=causal_mask(LENGTH)))
    for found in decode_steps(layer, inputs, hypotheses, mode=mode):
        assert_close(found, expected)


def test_padding_changes_nothing(rng):
    layer, inputs = random_layer(rng), random_inputs(rng)
    padded = np.pad(inputs, ((0, 0), (0, 3), (0, 0)), constant_values=5)
    mask = np.tile(np.arange(LENGTH + 3) < LENGTH, (2, 1))
    expected = ops.convert_to_numpy(layer(inputs))
    assert_close(layer(padded, mask=mask)[:, :LENGTH], expected)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's graphs"
)
def test_a_graph_need_not_know_the_length(rng):
    import tensorflow as tf

    layer = random_layer(rng)
    x = rng.normal(size=SHAPE).astype("float32")
    signature = [tf.TensorSpec((None, None, SHAPE[-1]), "float32")]
    graph = tf.function(layer, input_signature=signature, autograph=False)
    assert_close(graph(x), layer(x))


def test_the_weights_of_a_softmax_are_not_taken_over():
    with pytest.raises(TypeError, match="weighs with a softmax"):
        ReluAttention.from_keras(keras.layers.MultiHeadAttention(2, 4))
