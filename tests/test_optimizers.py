"""Our Adam: the weights and moments of Keras', and one operation for each weight."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.optimizers import Adam

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a path of TensorFlow's graph"
)
OPTIONS = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-3}
SCHEDULE = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)


def table(rows):
    """Gradient of a lookup that reads row 1 of 4 twice."""
    import tensorflow as tf

    values = tf.constant(rows, "float32")
    return tf.IndexedSlices(
        values, tf.constant([1, 3, 1]), tf.constant([4, 2], "int64")
    )


def densified(gradient):
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


def results(make, compile_step, sparse=True, **options):
    """All weights and optimizer variables after five updates."""
    rng = np.random.default_rng(0)
    weights = [keras.Variable(rng.normal(size=s), name="w") for s in ((4, 2), (3,))]
    optimizer = make(SCHEDULE, **OPTIONS | options)
    optimizer.build(weights)
    step = compile_step(lambda gradients: optimizer.apply(gradients, weights))
    for _ in range(5):
        first = table(rng.normal(size=(3, 2)))
        if not sparse:
            first = densified(first)
        step([first, ops.convert_to_tensor(rng.normal(size=3), dtype="float32")])
    return [ops.convert_to_numpy(v) for v in (*weights, *optimizer.variables)]


@pytest.mark.parametrize("how", ({}, {"jit_compile": True}))
@pytest.mark.parametrize("sparse", (False, True))
@pytest.mark.parametrize(
    "options", ({}, {"amsgrad": True}, {"weight_decay": 0.1}, {"use_ema": True})
)
def test_five_updates_are_those_of_keras_with_dense_gradients(how, sparse, options):
    import tensorflow as tf

    def graph(function):
        return tf.function(function, **how)

    ours = results(Adam, graph, sparse, **options)
    expected = results(keras.optimizers.Adam, graph, False, **options)
    for left, right in zip(ours, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-7)


def test_updates_under_a_strategy_are_those_of_keras():
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        found = [
            results(make, in_replicas, sparse=False)
            for make in (Adam, keras.optimizers.Adam)
        ]
    for left, right in zip(*found, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-7)


def in_replicas(function):
    import tensorflow as tf

    strategy = tf.distribute.get_strategy()
    return tf.function(lambda gradients: strategy.run(function, args=(gradients,)))


def operations(**how):
    """Types of the operations of an update of one weight."""
    import tensorflow as tf

    weight = keras.Variable(np.ones(3), name="w")
    optimizer = Adam(0.1)
    optimizer.build([weight])

    @tf.function(input_signature=[tf.TensorSpec((3,))], **how)
    def step(gradient):
        optimizer.apply([gradient], [weight])

    return [op.type for op in step.get_concrete_function().graph.get_operations()]


def test_graph_has_one_update_a_weight_and_xla_none():
    assert operations().count("ResourceApplyAdam") == 1
    assert "ResourceApplyAdam" not in operations(jit_compile=True)


def test_configuration_comes_back():
    optimizer = Adam(1e-2, **OPTIONS)
    config = keras.optimizers.serialize(optimizer)
    again = keras.optimizers.deserialize(config)
    assert type(again) is Adam
    assert again.get_config() == optimizer.get_config()
    assert optimizer.name.startswith("adam")
