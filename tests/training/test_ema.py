"""The moving average of the weights: its values, and where it is used."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_transformer.training.checkpoints import KeepCheckpoints
from keras_transformer.training.ema import ValidateAverage, averaged_weights

DECAY = 0.7


def small_model(**options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(0.1, **options), loss="mse")
    return model


def ema_model():
    return small_model(use_ema=True, ema_momentum=DECAY)


class Record(keras.callbacks.Callback):
    """Notes the weights after each update."""

    def on_train_begin(self, logs=None):
        self.weights = []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(self.model.get_weights())


@pytest.fixture
def data(rng):
    x = rng.standard_normal((20, 3)).astype("float32")
    return x, (x[:, :2] ** 2).astype("float32")


def recursion(weights):
    """m_1 = w_1, m_t = d m_(t-1) + (1 - d) w_t, in float64."""
    average = [np.asarray(w, "float64") for w in weights[0]]
    for step in weights[1:]:
        average = [
            DECAY * m + (1 - DECAY) * w for m, w in zip(average, step, strict=True)
        ]
    return average


def assert_equal(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, **{"rtol": 0, "atol": 0, **tolerance})


def test_the_average_is_the_recursion_and_the_weights_come_back_exactly(data):
    model, record = ema_model(), Record()

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raw = self.model.get_weights()
            with averaged_weights(self.model):
                averages.append(self.model.get_weights())
            assert_equal(self.model.get_weights(), raw)

    averages = []
    model.fit(*data, batch_size=4, epochs=2, callbacks=[record, Look()], verbose=0)
    assert len(averages) == 10
    for count, average in enumerate(averages, start=1):
        assert_equal(average, recursion(record.weights[:count]), rtol=1e-5, atol=1e-6)
    assert np.abs(averages[-1][0] - record.weights[-1][0]).max() > 0.01


def test_the_training_goes_on_with_the_weights_themselves(data, tmp_path):
    """Looking at the average changes no update: as without it, to the bit."""
    runs = []
    for options in ({}, {"use_ema": True, "ema_momentum": DECAY}):
        keras.utils.set_random_seed(3)
        model, record = small_model(**options), Record()
        callbacks = [record, ValidateAverage(), KeepCheckpoints(tmp_path / "c", 1)]
        model.fit(
            *data, batch_size=4, epochs=3, callbacks=callbacks, validation_data=data,
            shuffle=False, verbose=0,
        )  # fmt: skip
        runs.append(record.weights)
    for plain, averaged in zip(*runs, strict=True):
        assert_equal(averaged, plain)


def test_the_average_is_what_is_validated_and_saved(data, tmp_path):
    model, record = ema_model(), Record()
    keep = KeepCheckpoints(tmp_path, 1)
    history = model.fit(
        *data, batch_size=4, callbacks=[record, ValidateAverage(), keep],
        validation_data=data, verbose=0,
    )  # fmt: skip
    expected = recursion(record.weights)
    (path,) = keep.paths()
    model.load_weights(path)
    assert_equal(model.get_weights(), expected, rtol=1e-5, atol=1e-6)
    loss = model.evaluate(*data, verbose=0)
    assert history.history["val_loss"] == pytest.approx([loss], rel=1e-5)
    model.set_weights(record.weights[-1])
    assert model.evaluate(*data, verbose=0) != pytest.approx(loss, rel=1e-3)


def test_a_validation_that_breaks_off_leaves_the_weights_in_the_model(data):
    model, callback = ema_model(), ValidateAverage()
    model.fit(*data, batch_size=4, verbose=0)
    raw = [np.full_like(w, 7.0) for w in model.get_weights()]
    model.set_weights(raw)
    callback.set_model(model)
    callback.on_test_begin()
    assert np.abs(model.get_weights()[0] - 7.0).min() > 0.1
    callback.on_train_end()
    assert_equal(model.get_weights(), raw)


def test_without_an_average_nothing_changes(data):
    uncompiled = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    for model in (small_model(), uncompiled, ema_model()):  # the last has no update
        weights = model.get_weights()
        with averaged_weights(model):
            assert_equal(model.get_weights(), weights)
