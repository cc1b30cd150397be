"""Caches, the recurrence and training: every way gives what the general line does."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.kernels.caches import (
    cache_place,
    new_cache,
    resize_cache,
    write_position,
)
from keras_transformer.nn.kernels.recurrence import _by_doubling, linear_recurrence
from keras_transformer.nn.layers import FeedForward, MultiHeadAttention
from keras_transformer.nn.layers.basic import LayerNormalization
from keras_transformer.nn.layers.dropout import Dropout
from tests.nn.kernels.ways import called, every_way, on_tensorflow, with_gradients

B, H, L, K = 2, 3, 5, 7


def positions(rng, hypotheses, count=L):
    """What is written: (count, B, H, N, K)."""
    return rng.normal(size=(count, B, H, hypotheses, K)).astype("float32")


def written(cache, new, position):
    """Writes (B, H, N, K) at a position, an integer or a scalar tensor."""
    return write_position(cache, new, cache_place(cache, new.shape[2], position))


def written_in_order(new, order, hypotheses):
    """Writes positions one after the other into a cache made in the same way."""
    cache = new_cache((B, H, L * hypotheses, K), "float32")
    for index in order:
        cache = written(cache, new[index], ops.convert_to_tensor(index, "int32"))
    return cache


def expected_cache(new, order, hypotheses):
    cache = np.zeros((B, H, L, hypotheses, K), "float32")
    for index in order:
        cache[:, :, index] = new[index]
    return cache.reshape(B, H, L * hypotheses, K)


@every_way
@pytest.mark.parametrize("hypotheses", [1, 4])
def test_a_position_is_written_and_no_other_changes(rng, way, hypotheses):
    order = (0, 3, 1, 4)
    new = positions(rng, hypotheses)
    cache = called(way, lambda x: written_in_order(x, order, hypotheses), new)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(cache), expected_cache(new, order, hypotheses)
    )


@on_tensorflow
def test_a_graph_writes_in_place_and_starts_empty_each_time(rng):
    import tensorflow as tf

    @tf.function(autograph=False)
    def write_all(new, count):
        cache = new_cache((B, H, L * 2, K), "float32")

        def write(i, cache):
            return i + 1, written(cache, tf.gather(new, i), i)

        return tf.while_loop(lambda i, _: i < count, write, (0, cache))[1]

    new = positions(rng, 2)
    for count in (5, 2, 5):
        cache = write_all(tf.constant(new), tf.constant(count)).numpy()
        np.testing.assert_array_equal(cache, expected_cache(new, range(count), 2))
    graph = write_all.get_concrete_function(tf.constant(new), tf.constant(5)).graph
    names = {
        node.op for f in graph.as_graph_def().library.function for node in f.node_def
    }
    assert "InplaceUpdate" in names
    assert not names & {"ConcatV2", "TensorScatterUpdate", "Pad", "SelectV2"}


@every_way
def test_a_resized_cache_keeps_what_was_written(rng, way):
    new = positions(rng, 2)
    places = np.array([1, 0, 1], "int32")

    def resized(new, places):
        cache = resize_cache(written_in_order(new, range(L), 2), places, 6)
        return written(cache, new[0][:1, :, :, :] + 0.0 * cache[:, :, :2], L + 1)

    result = ops.convert_to_numpy(called(way, resized, new, places))
    full = expected_cache(new, range(L), 2)[places]
    np.testing.assert_array_equal(result[:, :, : L * 2], full)
    np.testing.assert_array_equal(
        result[:, :, L * 2 : L * 2 + 2], np.zeros((3, H, 2, K))
    )
    np.testing.assert_allclose(
        result[:, :, L * 2 + 2 : L * 2 + 4], np.repeat(new[0][:1], 3, axis=0)
    )
    assert result.shape == (3, H, L * 2 + 6, K)


# The recurrence over a sequence, and its gradient, one position at a time.

LENGTHS = (1, 2, 7)


def recurrence(length):
    rng = np.random.default_rng(3)
    decays = rng.uniform(0.0, 1.0, (length, 3, 5))
    decays[0] = 7.0  # There is nothing before the first position to multiply.
    inputs, slopes = rng.standard_normal((2, length, 3, 5))
    return [x.astype("float32") for x in (decays, inputs, slopes)]


def states_by_hand(decays, inputs, slopes):
    """States, and gradients of their sum with `slopes`, by the chain rule."""
    decays, inputs, slopes = (x.astype("float64") for x in (decays, inputs, slopes))
    length = len(decays)
    states = np.zeros_like(inputs)
    for t in range(length):
        states[t] = decays[t] * (states[t - 1] if t else 0.0) + inputs[t]
    of_decays, of_inputs = np.zeros_like(decays), np.zeros_like(inputs)
    for t in range(length):
        for later in range(t, length):
            # What state `later` changes by, of a unit at t.
            share = slopes[later] * np.prod(decays[t + 1 : later + 1], axis=0)
            of_inputs[t] += share
            of_decays[t] += share * (states[t - 1] if t else 0.0)
    return states, of_decays, of_inputs


@every_way
@pytest.mark.parametrize("length", LENGTHS)
def test_states_and_gradients_agree_with_the_reference(way, length):
    decays, inputs, slopes = recurrence(length)

    def function(decays, inputs, slopes):
        def total(decays, inputs):
            states = linear_recurrence(decays, inputs)
            return ops.sum(states * slopes), states

        _, states, *gradients = with_gradients(total, decays, inputs)
        return states, *gradients

    states, of_decays, of_inputs = called(way, function, decays, inputs, slopes)
    expected = states_by_hand(decays, inputs, slopes)
    for found, wanted, times in zip(
        (states, of_decays, of_inputs), expected, (1, 3, 3), strict=True
    ):
        found = ops.convert_to_numpy(found)
        np.testing.assert_allclose(found, times * wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 19])
def test_the_way_of_litert_gives_the_same(length):
    decays, inputs, slopes = recurrence(length)
    tensors = map(ops.convert_to_tensor, (decays, inputs))
    states = ops.convert_to_numpy(_by_doubling(*tensors))
    expected = states_by_hand(decays, inputs, slopes)[0]
    np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-5)


def test_float64_stays_float64():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 unless it is told to")
    decays, inputs, slopes = (x.astype("float64") for x in recurrence(7))
    states = linear_recurrence(decays, inputs)
    expected = states_by_hand(decays, inputs, slopes)[0]
    np.testing.assert_allclose(ops.convert_to_numpy(states), expected, rtol=1e-14)


# A graph trains as an eager step does, in every type of weights.

TOLERANCES = {
    "float32": 2e-6,
    "mixed_bfloat16": 4e-2,
    "bfloat16": 4e-2,
    "float16": 5e-3,
    "float64": 1e-12,
}
RNG = np.random.default_rng(0)
INPUTS, SLOPES = RNG.normal(size=(2, 3, 5, 8)).astype("float32")
MASK = RNG.integers(0, 2, size=(3, 5, 5)).astype(bool)
MASK[1, 2] = False
ATTENTION = functools.partial(MultiHeadAttention, 2, 4, dropout=0.4, use_bias=False)
LAYERS = {
    "normalisation": (LayerNormalization, {}),
    "over another axis": (functools.partial(LayerNormalization, axis=1), {}),
    "feed-forward": (functools.partial(FeedForward, 7, "gelu", dropout_rate=0.4), {}),
    "attention": (ATTENTION, {}),
    "masked attention": (ATTENTION, {"mask": MASK}),
}
# The casts of these are those of the others.
PLAIN = ("over another axis", "feed-forward", "attention")
OF_TYPES = [
    (name, policy)
    for name in LAYERS
    for policy in TOLERANCES
    if name not in PLAIN or policy == "float32"
]


def randomised(layer):
    layer.build((None, 5, 8))
    values = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(values.normal(size=weight.shape) / 2)
    return layer


def step(layer, **options):
    """The output and the gradients of inputs and weights of a weighted sum of it."""
    import tensorflow as tf

    # Keras' own normalisation, the general version, does not cast its inputs.
    inputs = tf.constant(INPUTS, "float64" if layer.dtype == "float64" else "float32")
    weights = [weight.value for weight in layer.trainable_weights]

    def compute():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True, **options)
            total = tf.reduce_sum(tf.cast(outputs, "float32") * SLOPES)
        return [outputs, *tape.gradient(total, [inputs, *weights])]

    return compute


@on_tensorflow
@pytest.mark.parametrize("name, policy", OF_TYPES)
def test_a_graph_trains_as_an_eager_step_does(name, policy):
    """Each draws a mask of dropout, and so does XLA: the same one."""
    import tensorflow as tf

    (make, options), found = LAYERS[name], []
    for run in (lambda f: f, tf.function, lambda f: tf.function(f, jit_compile=True)):
        layer = randomised(make(dtype=policy))
        parts = [p for p in layer._flatten_layers() if isinstance(p, Dropout)]
        for part in parts:
            part.seed_generator.state.assign(np.array([5, 1]))
        found.append(run(step(layer, **options))())
        assert all(np.asarray(p.seed_generator.state)[1] == 2 for p in parts)
    for values in zip(*found, strict=True):
        general, *others = (np.asarray(ops.cast(x, "float64")) for x in values)
        atol = TOLERANCES[policy] * max(1.0, np.abs(general).max())
        for other in others:
            np.testing.assert_allclose(other, general, rtol=0, atol=atol)
