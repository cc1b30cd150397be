"""Training in float16: the loss is scaled, and the update is that of float32."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training.intervals import capture, restore
from keras_transformer.training.run_model import build_training_variables
from tests.models.backends import run_python
from tests.models.test_exact_training import (
    RATE,
    assert_same,
    change_of,
    fit,
    make_batches,
    make_model,
    state_of,
)
from tests.tiny_run import assert_equal


def scaled(optimizer=None, **options):
    inner = keras.optimizers.SGD(RATE) if optimizer is None else optimizer
    return keras.optimizers.LossScaleOptimizer(inner, **options)


def half(optimizer=None, steps=1, **options):
    return make_model(
        optimizer, dtype="mixed_float16", gradient_accumulation_steps=steps, **options
    )


def scale_of(model):
    return float(ops.convert_to_numpy(model.optimizer.dynamic_scale))


def heavy(batch, weight=1e6):
    """The batch with weights whose gradient is beyond float16, its loss is not."""
    inputs, targets, weights = batch
    return inputs, targets, np.full_like(weights, weight)


def test_some_updates_are_those_of_float32():
    batches = make_batches()
    expected = change_of(make_model(keras.optimizers.SGD(0.1)), batches)
    model = half(keras.optimizers.SGD(0.1))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert_same(change_of(model, batches), expected, 0.01)
    assert (model.updates, model.nonfinite_batches) == (3, 0)
    assert scale_of(model) == 2.0**15


@pytest.mark.parametrize("steps", (1, 3))
def test_an_update_scaled_too_much_is_dropped_and_the_scale_halved(steps):
    batches = make_batches()
    model = half(scaled(keras.optimizers.Adam(0.01), initial_scale=2.0**60), steps)
    before = model.get_weights()
    history = fit(model, batches)
    assert np.isfinite(history["loss"]).all()
    assert scale_of(model) == 2.0 ** (57 if steps == 1 else 59)
    assert (model.updates, model.nonfinite_batches) == (0, 0)
    assert_equal(model.get_weights(), before)


def test_the_scale_is_doubled_after_some_updates_and_saved(tmp_path):
    sgd = keras.optimizers.SGD(0.1)
    model = half(scaled(sgd, dynamic_growth_steps=2, initial_scale=4.0), steps=3)
    fit(model, make_batches())
    assert scale_of(model) == 4.0  # It counts updates, not batches.
    fit(model, make_batches())
    assert scale_of(model) == 8.0
    model.save(tmp_path / "half.keras")
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    assert (scale_of(loaded), loaded.updates) == (8.0, 2)


def test_a_gradient_that_no_scale_helps_is_a_bad_batch():
    model = half(scaled(initial_scale=1.0), nonfinite="skip")
    before = model.get_weights()
    fit(model, [heavy(batch, 1e12) for batch in make_batches()], weighted=True)
    assert (model.updates, model.nonfinite_batches, scale_of(model)) == (0, 3, 1.0)
    assert_equal(model.get_weights(), before)


def test_a_state_goes_on_to_the_bit():
    first, second, third = make_batches()

    def model():
        made = half(scaled(keras.optimizers.Adam(0.01), dynamic_growth_steps=2), 2)
        build_training_variables(made)
        return made

    whole, resumed = model(), model()
    fit(whole, [heavy(first), second, third], weighted=True)
    state = capture(whole, step=3)
    fit(whole, [first, second, third], weighted=True)
    restore(resumed, state)
    assert (resumed.updates, scale_of(resumed)) == (0, 2.0**14)
    fit(resumed, [first, second, third], weighted=True)
    assert resumed.updates == 2
    assert_equal(state_of(resumed), state_of(whole))


REPLICAS = """
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 2,
)
import keras, numpy as np
from tests.models.test_exact_training import joined
from tests.models.test_float16 import *
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
first = make_batches()[0]
(source, target_in), target, _ = joined([first, first])
target[3:] = np.roll(target[3:], 1)  # The replicas get targets of other numbers.
target[5] = 0
weights = np.ones(6, "float32")
inputs = (source, target_in), target

def change(model, weights):
    data = tf.data.Dataset.from_tensor_slices((*inputs, weights)).batch(6)
    before = model.get_weights()
    model.fit(data, verbose=0, epochs=3)
    return [new - old for new, old in zip(model.get_weights(), before)]

for clips in {"clipnorm": 0.02}, {"global_clipnorm": 0.05}:
    with strategy.scope():
        replicated = half(keras.optimizers.SGD(0.1, **clips), steps=3)
    expected = change(half(keras.optimizers.SGD(0.1, **clips), steps=3), weights)
    assert_same(change(replicated, weights), expected, 5e-3)
    assert replicated.updates == 1

with strategy.scope():
    model = half(scaled(initial_scale=2.0**30))
before = model.get_weights()
weights[4] = 1e6  # Of one replica alone.
change(model, weights)
assert scale_of(model) == 2.0**27, scale_of(model)
assert (model.updates, model.nonfinite_batches) == (0, 0)
assert_equal(model.get_weights(), before)
"""


@pytest.mark.slow
def test_replicas_agree_on_the_scale_and_the_update():
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a strategy is TensorFlow's")
    run_python("tensorflow", "-c", REPLICAS)
