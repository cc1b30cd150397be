"""Our Adam, with the weights and moments of Keras'; the paper's learning rate."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.optimizers import Adam, TransformerSchedule
from tests.reference import numpy_transformer as reference

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a path of TensorFlow's graph"
)
OPTIONS = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-3}
SCHEDULE = keras.optimizers.schedules.InverseTimeDecay(0.1, 1, 0.5)


def results(make, compile_step, sparse=True, **options):
    """All weights and optimizer variables after five updates."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    weights = [keras.Variable(rng.normal(size=s), name="w") for s in ((4, 2), (3,))]
    optimizer = make(SCHEDULE, **OPTIONS | options)
    optimizer.build(weights)
    step = compile_step(lambda gradients: optimizer.apply(gradients, weights))
    for _ in range(5):
        # Of a lookup that reads row 1 of 4 twice.
        first = tf.IndexedSlices(
            tf.constant(rng.normal(size=(3, 2))),
            [1, 3, 1],
            tf.constant([4, 2], "int64"),
        )
        if not sparse:
            first = tf.convert_to_tensor(first)
        step([first, ops.convert_to_tensor(rng.normal(size=3))])
    return [ops.convert_to_numpy(v) for v in (*weights, *optimizer.variables)]


@pytest.mark.one_case
@pytest.mark.parametrize("how", ({}, {"jit_compile": True}))
@pytest.mark.parametrize("sparse", (False, True))
@pytest.mark.parametrize(
    "options",
    (
        {},
        {"amsgrad": True},
        {"weight_decay": 0.1},
        {"use_ema": True},
        {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
        {"gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 3, "weight_decay": 0.1, "use_ema": True},
        {"clipnorm": 0.5},
        {"clipvalue": 0.3},
        {"global_clipnorm": 0.7},
        {"loss_scale_factor": 8.0},
        {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
    ),
)
def test_five_updates_are_those_of_keras_with_dense_gradients(how, sparse, options):
    """Of a sparse one Keras clips the parts before they are summed, or fails."""
    import tensorflow as tf

    changed = {"clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor"}
    sparse = sparse and changed.isdisjoint(options)

    def graph(function):
        return tf.function(function, **how)

    ours = results(Adam, graph, sparse, **options)
    expected = results(keras.optimizers.Adam, graph, False, **options)
    for left, right in zip(ours, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float64"))
def test_updates_of_weights_of_another_type_are_those_of_keras(dtype):
    import tensorflow as tf

    gradients = [[0.5, -1.0, 0.1 * number] for number in range(5)]

    def updated(make):
        weight = keras.Variable(np.ones(3), dtype=dtype, name="w")
        optimizer = make(SCHEDULE, **OPTIONS)
        optimizer.build([weight])
        step = tf.function(lambda gradient: optimizer.apply([gradient], [weight]))
        for gradient in gradients:
            step(tf.cast(tf.constant(gradient), dtype))
        variables = [weight, *optimizer.variables]
        return [ops.convert_to_numpy(ops.cast(v, "float64")) for v in variables]

    found = [updated(make) for make in (Adam, keras.optimizers.Adam)]
    exact = 1e-12 if dtype == "float64" else 0.0
    assert np.abs(found[0][0] - 1).max() > 0.1
    for left, right in zip(*found, strict=True):
        np.testing.assert_allclose(left, right, rtol=exact, atol=exact)


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


# The paper's learning rate: by hand, against the reference, inside optimizers.


def value(rate):
    return float(ops.convert_to_numpy(rate))


@pytest.mark.parametrize(
    "update, expected",
    (
        # 16^-0.5 = 1/4 and 100^-1.5 = 1/1000: 1/4 * 1/1000 on the way up,
        (1, 0.25 / 1000),
        # 1/4 * 100^-0.5 at the peak,
        (100, 0.025),
        # 1/4 * 400^-0.5, half of the peak, four times as late.
        (400, 0.0125),
    ),
)
def test_rate_by_hand(update, expected):
    schedule = TransformerSchedule(d_model=16, warmup_steps=100)
    scaled = TransformerSchedule(d_model=16, warmup_steps=100, scale=2.5)
    for dtype in ("int32", "int64"):
        rate = schedule(ops.convert_to_tensor(update - 1, dtype=dtype))
        assert keras.backend.standardize_dtype(rate.dtype) == "float32"
        assert value(rate) == pytest.approx(expected, rel=1e-6)
    assert value(scaled(update - 1)) == pytest.approx(2.5 * expected, rel=1e-6)


@pytest.mark.parametrize("update", (1, 2, 3, 1999, 4000, 4001, 100_000, 300_000))
def test_rates_agree_with_the_reference(update):
    schedule = TransformerSchedule(d_model=512, warmup_steps=4000)
    expected = reference.learning_rate(update, 512, 4000)
    np.testing.assert_allclose(value(schedule(update - 1)), expected, rtol=1e-6)


def test_weights_move_by_the_rates_of_the_updates_made():
    """Plain gradient descent on a gradient of one: the sum of rates 1 to 5."""
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = keras.optimizers.SGD(TransformerSchedule(16, warmup_steps=3))
    for _ in range(5):
        optimizer.apply([ops.ones_like(variable)], [variable])
    expected = sum(reference.learning_rate(update, 16, 3) for update in range(1, 6))
    moved = -ops.convert_to_numpy(variable)
    np.testing.assert_allclose(moved, np.full(3, expected), rtol=1e-6)


def test_saved_model_continues_the_schedule(tmp_path):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    schedule = TransformerSchedule(16, warmup_steps=100, scale=2.0)
    model.compile(optimizer=keras.optimizers.Adam(schedule), loss="mse")
    model.fit(np.ones((6, 2)), np.zeros((6, 1)), batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer._learning_rate.get_config() == schedule.get_config()
    # Three updates are made; what is shown is the rate of the next one.
    expected = 2.0 * reference.learning_rate(4, 16, 100)
    assert value(loaded.optimizer.learning_rate) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    (
        ({"d_model": 0}, "`d_model` must be a positive number. Received: d_model=0"),
        ({"d_model": -4}, "`d_model` must be a positive number. Received: d_model=-4"),
        ({"warmup_steps": 0}, "`warmup_steps` must be a positive number"),
        ({"scale": 0.0}, "`scale` must be a positive number. Received: scale=0.0"),
        (
            {"scale": float("nan")},
            "`scale` must be a positive number. Received: scale=nan",
        ),
    ),
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TransformerSchedule(**({"d_model": 16} | arguments))
