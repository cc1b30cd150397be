"""A graph trains as an eager step does, in every type of weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import FeedForward, MultiHeadAttention
from keras_transformer.layers.basic import LayerNormalization

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="paths of TensorFlow's graph"
)
TOLERANCES = {
    "float32": 2e-6,
    "mixed_bfloat16": 4e-2,
    "bfloat16": 4e-2,
    "float16": 5e-3,
    "float64": 1e-12,
}
rng = np.random.default_rng(0)
INPUTS = rng.normal(size=(3, 5, 8)).astype("float32")
KEYS = rng.normal(size=(3, 6, 8)).astype("float32")
SLOPES = rng.normal(size=(3, 5, 8)).astype("float32")
MASK = rng.integers(0, 2, size=(3, 5, 6)).astype(bool)
MASK[1, 2] = False


def randomised(layer, *shapes):
    layer.build(*shapes)
    values = np.random.default_rng(1)
    for weight in layer.weights:
        if "seed" not in weight.name:
            weight.assign(values.normal(size=weight.shape) / 2)
    return layer


def step(layer, inputs, **options):
    """The output and the gradients of inputs and weights of a weighted sum of it."""
    import tensorflow as tf

    inputs = [tf.constant(x) for x in inputs]
    weights = [weight.value for weight in layer.trainable_weights]

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(*inputs, training=True, **options)
            total = 0.0
            for output in keras.tree.flatten(outputs):
                slopes = np.resize(SLOPES, output.shape)
                total += tf.reduce_sum(tf.cast(output, "float32") * slopes)
        return outputs, tape.gradient(total, [*inputs, *weights])

    return compute


def assert_graph_gives_the_same(layer, inputs, **options):
    import tensorflow as tf

    compute = step(layer, inputs, **options)
    expected = keras.tree.flatten(compute())
    tolerance = TOLERANCES[layer.dtype_policy.name]
    for how in ({}, {"jit_compile": True}):
        found = keras.tree.flatten(tf.function(compute, **how)())
        for ours, general in zip(found, expected, strict=True):
            ours, general = (
                np.asarray(ops.cast(x, "float64")) for x in (ours, general)
            )
            # A key's bias changes nothing: its gradient is rounding alone.
            atol = tolerance * max(5.0, np.abs(general).max())
            np.testing.assert_allclose(ours, general, rtol=0, atol=atol)


@pytest.fixture(params=list(TOLERANCES))
def policy(request):
    return request.param


def test_normalisation(policy):
    layer = randomised(LayerNormalization(dtype=policy), (None, None, 8))
    # Keras' own, the general version, does not cast its inputs.
    inputs = INPUTS.astype("float64") if policy == "float64" else INPUTS
    assert_graph_gives_the_same(layer, [inputs])


def test_normalisation_over_other_axes_is_keras_own():
    layer = randomised(LayerNormalization(axis=1), (None, 5, 8))
    assert_graph_gives_the_same(layer, [INPUTS])


# In bfloat16 the sign of a hidden unit, and so the slope of "relu", can be by chance.
@pytest.mark.parametrize(
    "policy, activation",
    (
        ("float32", "relu"),
        ("float32", "gelu"),
        ("mixed_bfloat16", "gelu"),
        ("bfloat16", "gelu"),
        ("float16", "gelu"),
        ("float64", "relu"),
    ),
)
def test_feed_forward(policy, activation):
    layer = FeedForward(7, activation=activation, dtype=policy)
    assert_graph_gives_the_same(randomised(layer, (None, None, 8)), [INPUTS])


@pytest.mark.one_case
@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("use_bias", (False, True))
def test_attention_and_its_weights(policy, masked, use_bias):
    layer = MultiHeadAttention(2, 4, use_bias=use_bias, dtype=policy)
    randomised(layer, (None, None, 8))
    mask = ops.convert_to_tensor(MASK) if masked else None
    options = {"mask": mask, "return_attention_scores": True}
    assert_graph_gives_the_same(layer, [INPUTS, KEYS], **options)


def test_self_attention_with_dropout_drops_the_same(policy):
    """The eager step, the graph and XLA each draw a mask: the same one."""
    import tensorflow as tf

    found = []
    for run in (lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True)):
        layer = MultiHeadAttention(2, 4, dropout=0.4, use_bias=False, dtype=policy)
        randomised(layer, (None, None, 8))
        state = layer.attention_dropout.seed_generator.state
        state.assign(np.array([5, 1]))
        found.append(keras.tree.flatten(run(step(layer, [INPUTS]))()))
        assert np.asarray(state)[1] == 2
    for general, *others in zip(*found, strict=True):
        general = np.asarray(ops.cast(general, "float64"))
        atol = TOLERANCES[policy] * max(1.0, np.abs(general).max())
        for other in others:
            other = np.asarray(ops.cast(other, "float64"))
            np.testing.assert_allclose(other, general, rtol=0, atol=atol)
