"""The paper's learning rate: by hand, against the reference, inside optimizers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.schedules import TransformerSchedule
from tests.reference import numpy_transformer as reference


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
