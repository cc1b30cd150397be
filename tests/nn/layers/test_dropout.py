"""Hashed dropout: its statistics, its seeds, and one mask whoever computes it."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.layers import Dropout, MultiHeadAttention
from keras_transformer.nn.layers.dropout import COUNTER_BITS, STEPS, keep_mask
from tests.models.backends import run_python

ON_TORCH = keras.backend.backend() == "torch"
hashed_only = pytest.mark.skipif(ON_TORCH, reason="PyTorch has Keras' own dropout")
ROWS, COLUMNS, RATE = 509, 256, 0.1
THRESHOLD = round(RATE * STEPS)
EXACT_RATE = THRESHOLD / STEPS


def drop(inputs, seed=3, rate=RATE, calls=1, **options):
    """The output of the last of some calls of a new layer."""
    layer = Dropout(rate, seed=seed, **options)
    for _ in range(calls):
        outputs = layer(inputs, training=True)
    return ops.convert_to_numpy(outputs)


def dropped(seed, call):
    """1 where an element is dropped, less the rate, in units of the deviation."""
    state = ops.convert_to_tensor(np.array([seed, call], "int32"))
    keep = ops.convert_to_numpy(keep_mask(ROWS, COLUMNS, THRESHOLD, state))
    return (~keep - EXACT_RATE) / np.sqrt(EXACT_RATE * (1 - EXACT_RATE))


def score(products):
    """Sum of independent products of mean 0 and variance 1, in deviations."""
    return products.sum() / np.sqrt(products.size)


@pytest.mark.parametrize("rate", (0.003, 0.3, 0.9))
def test_share_dropped_is_the_rate_and_the_rest_is_scaled(rate):
    outputs = drop(np.ones((ROWS, COLUMNS), "float32"), rate=rate)
    deviation = np.sqrt(rate * (1 - rate) / outputs.size)
    assert abs((outputs == 0).mean() - rate) < 4 * deviation
    np.testing.assert_allclose(outputs[outputs != 0], 1 / (1 - rate), rtol=1e-3)


SHIFTS = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (3, 5), (0, 128), (64, 0))


@hashed_only
def test_neighbours_calls_seeds_and_replicas_are_independent():
    """The number of the replica stands in the upper bits of the call's."""
    scores = []
    for call in range(15):
        x, *masks = (
            dropped(5, call + replica * 2**COUNTER_BITS) for replica in range(4)
        )
        masks += [dropped(5, call + 1), dropped(6, call), dropped(1_000_000 + call, 0)]
        pairs = list(itertools.combinations([x, *masks], 2))
        pairs += [(x[r:, c:], x[: ROWS - r, : COLUMNS - c]) for r, c in SHIFTS]
        pairs += [(x[:-1:2, ::2] * x[1::2, ::2], x[:-1:2, 1::2] * x[1::2, 1::2])]
        scores.append([score(a * b) for a, b in pairs])
    assert np.abs(scores).max() < 4.5
    assert np.abs(np.sum(scores, axis=0)).max() / np.sqrt(15) < 4
    assert 0.9 < np.std(scores) < 1.1


# The devices of a process are fixed when TensorFlow starts.
IN_REPLICAS = """
import sys
import numpy as np
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
device = tf.config.LogicalDeviceConfiguration()
tf.config.set_logical_device_configuration(cpu, [device] * 2)
from keras_transformer.nn.layers import Dropout

def drop():
    layer = Dropout(0.5, seed=7)
    return lambda: layer(tf.ones((64, 128)), training=True)

strategy, found = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), [[drop()()] * 2]
for traced in (lambda call: call, tf.function):
    with strategy.scope():
        call = traced(drop())
    found.append(strategy.experimental_local_results(strategy.run(call)))
np.save(sys.argv[1], np.array(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow")
def test_replicas_of_a_strategy_drop_other_units(tmp_path):
    run_python("tensorflow", "-c", IN_REPLICAS, tmp_path / "masks.npy")
    (alone, _), *replicated = np.load(tmp_path / "masks.npy")
    for first, second in replicated:
        np.testing.assert_array_equal(first, alone)  # As without a strategy.
        assert 0.4 < (second == 0).mean() < 0.6
        products = ((first == 0) - 0.5) * ((second == 0) - 0.5) * 4
        assert abs(score(products)) < 4.5


@hashed_only
def test_rows_and_columns_have_no_structure():
    """Sums over lines vary as sums of independent numbers do."""
    masks = np.array([dropped(5, call) for call in range(15)])
    for axis, size in ((1, ROWS), (2, COLUMNS)):
        squares = masks.sum(axis=axis) ** 2 / size
        assert abs(squares.mean() - 1) < 4 * np.sqrt(2 / squares.size)
    # The largest singular value of a random matrix, and no more.
    largest = np.linalg.svd(masks[0], compute_uv=False)[0]
    assert largest < 1.03 * (np.sqrt(ROWS) + np.sqrt(COLUMNS))


def test_seed_and_call_determine_the_mask():
    inputs = np.ones((3, 7, 11), "float32")
    np.testing.assert_array_equal(drop(inputs), drop(inputs))
    assert (drop(inputs) != drop(inputs, seed=4)).any()
    assert (drop(inputs) != drop(inputs, calls=2)).any()
    layer, again = Dropout(0.5, seed=1), Dropout(0.5, seed=2)
    layer(inputs, training=True)
    again.seed_generator.state.assign(layer.seed_generator.state.value)
    found, expected = (layer(inputs, training=True) for layer in (again, layer))
    np.testing.assert_array_equal(*map(ops.convert_to_numpy, (found, expected)))


KNOWN_MASK = [[0, 0, 1, 0, 0], [0, 1, 0, 1, 1], [1, 1, 0, 1, 1]]


@hashed_only
def test_mask_is_known():
    """The same everywhere: a change of the hash would break resumed runs."""
    state = ops.convert_to_tensor(np.array([7, 2], "int32"))
    keep = ops.convert_to_numpy(keep_mask(3, 5, STEPS // 2, state))
    assert keep.astype(int).tolist() == KNOWN_MASK


def test_nothing_is_dropped_outside_training_and_no_number_drawn():
    layer, inputs = Dropout(0.5, seed=1), ops.ones((3, 5))
    before = ops.convert_to_numpy(layer.seed_generator.state.value).copy()
    for training in (False, None):
        assert layer.call(inputs, training=training) is inputs
        np.testing.assert_array_equal(layer(inputs, training=training), inputs)
    after = ops.convert_to_numpy(layer.seed_generator.state.value)
    np.testing.assert_array_equal(before, after)


def test_the_rest_is_as_of_keras():
    """Rates of none and all, a shape of the noise, the configuration."""
    inputs = np.ones((2, 64, 3), "float32")
    np.testing.assert_array_equal(drop(inputs, rate=0.0), inputs)
    np.testing.assert_array_equal(drop(inputs, rate=1.0), 0 * inputs)
    outputs = drop(inputs, rate=0.5, noise_shape=(2, 1, 3))
    np.testing.assert_array_equal(outputs, np.broadcast_to(outputs[:, :1], (2, 64, 3)))
    layer = Dropout(0.25, noise_shape=(2, 1), seed=9, name="named")
    saved = keras.saving.serialize_keras_object(layer)
    again = keras.saving.deserialize_keras_object(saved)
    assert type(again) is Dropout
    assert again.get_config() == layer.get_config()


def test_a_rate_near_0_or_1_still_drops_and_keeps_some():
    """In float16 the factor of what is kept is finite."""
    inputs = np.ones((64, 4096), "float16")
    for rate in (1 - 2**-16, 1 - 2**-24):
        outputs = drop(inputs, rate=rate, dtype="float16")
        assert (outputs == 0).mean() > 0.9999
        assert np.isfinite(outputs).all() or ON_TORCH  # Keras' own does not care.
    outputs = drop(inputs.astype("float32"), rate=2**-16, calls=3)
    assert 0 < (outputs == 0).sum() < 30


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow")
def test_a_graph_drops_attention_weights_as_an_eager_call_does(rng):
    """Whether the mask is made by us or the drop is Keras' own."""
    import tensorflow as tf

    inputs = tf.constant(rng.normal(size=(2, 5, 6)), "float32")
    for options in (
        {"rate": 1 - 2**-18},
        {"rate": 1.0},
        {"rate": 0.5, "noise_shape": (2, 1, 5, 5)},
    ):
        attention = MultiHeadAttention(2, 3)
        attention.attention_dropout = Dropout(**options, seed=1)
        kept = attention(inputs)
        for call in (attention, tf.function(attention)):
            found = call(inputs, training=True).numpy()
            if options["rate"] > 0.5:
                np.testing.assert_array_equal(found, np.zeros_like(found))
            assert np.abs(found - kept).max() > 0.01


SHAPES = ((6,), (5, 7), (2, 3, 8), (2, 3, 5, 7), (2, 3, 4, 6))


@pytest.mark.one_case("float32-shape3")
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_graph_and_xla_drop_and_pass_gradients_as_the_general_path(shape, dtype, rng):
    import tensorflow as tf

    inputs = tf.cast(rng.normal(size=shape), dtype)
    slopes = tf.cast(rng.normal(size=shape), dtype)

    layer = Dropout(0.3, seed=8, dtype=dtype)

    def traced(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
        return outputs, tape.gradient(outputs, inputs, slopes)

    state = layer.seed_generator.state.value + 0
    expected = traced(inputs)
    open_shape = [tf.TensorSpec([None] * len(shape), dtype)]
    for options in ({}, {"input_signature": open_shape}, {"jit_compile": True}):
        layer.seed_generator.state.assign(state)
        found = tf.function(traced, **options)(inputs)
        for one, other in zip(found, expected, strict=True):
            one, other = tf.cast(one, "float32"), tf.cast(other, "float32")
            np.testing.assert_allclose(one, other, rtol=1e-2 * (dtype != "float32"))
            assert (tf.equal(one, 0) == tf.equal(other, 0)).numpy().all()
