"""The stack of encoder layers."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.models.cases import CONFIG, stack_output
from tests.nn.layers.reference_weights import assert_close, randomise

PRE_NORM = CONFIG.replace(norm_first=True)
BOTH_NORMS = pytest.mark.parametrize(
    "config", [CONFIG, PRE_NORM], ids=["post-norm", "pre-norm"]
)


def random_stack(rng, config=CONFIG, stack_class=kt.EncoderStack):
    stack = stack_class(config)
    stack.build((None, None, config.d_model))
    return randomise(stack, rng)


def random_states(rng):
    return rng.standard_normal((2, 7, 13)).astype("float32")


@BOTH_NORMS
def test_the_stack_agrees_with_the_reference(rng, config):
    stack, states = random_stack(rng, config), random_states(rng)
    of_rows = np.arange(7) < np.array([[7], [4]])
    of_queries = rng.random((2, 7, 7)) < 0.6
    masks = {"none": (None, None), "rows": (of_rows, of_rows[:, None])}
    masks |= {"queries": (of_queries, of_queries)}
    for given, mask in masks.values():
        found = stack(states, mask=given)
        assert found.shape == stack.compute_output_shape(states.shape)
        assert_close(found, stack_output(stack, states, mask))


def test_layers_are_replaced_by_overriding_one_method(rng):
    class Blind(kt.EncoderLayer):
        def call(self, inputs, mask=None, training=None):
            return inputs

    class BlindStack(kt.EncoderStack):
        def make_encoder_layer(self, name):
            return Blind(num_heads=1, d_ff=2, name=name)

    states = random_states(rng)
    assert_close(random_stack(rng, stack_class=BlindStack)(states), states)
