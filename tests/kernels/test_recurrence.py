"""The recurrence over a sequence, and its gradient, one position at a time."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.recurrence import _by_doubling, linear_recurrence
from tests.kernels.ways import called, every_way, with_gradients

LENGTHS = (1, 2, 7)


def arrays(length):
    rng = np.random.default_rng(3)
    decays = rng.uniform(0.0, 1.0, (length, 3, 5))
    decays[0] = 7.0  # There is nothing before the first position to multiply.
    inputs, slopes = rng.standard_normal((2, length, 3, 5))
    return [x.astype("float32") for x in (decays, inputs, slopes)]


def reference(decays, inputs, slopes):
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
    decays, inputs, slopes = arrays(length)

    def function(decays, inputs, slopes):
        def total(decays, inputs):
            states = linear_recurrence(decays, inputs)
            return ops.sum(states * slopes), states

        _, states, *gradients = with_gradients(total, decays, inputs)
        return states, *gradients

    states, of_decays, of_inputs = called(way, function, decays, inputs, slopes)
    expected = reference(decays, inputs, slopes)
    for found, wanted, times in zip(
        (states, of_decays, of_inputs), expected, (1, 3, 3), strict=True
    ):
        found = ops.convert_to_numpy(found)
        np.testing.assert_allclose(found, times * wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 19])
def test_the_way_of_litert_gives_the_same(length):
    decays, inputs, slopes = arrays(length)
    tensors = map(ops.convert_to_tensor, (decays, inputs))
    states = ops.convert_to_numpy(_by_doubling(*tensors))
    expected = reference(decays, inputs, slopes)[0]
    np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-5)


def test_float64_stays_float64():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 unless it is told to")
    decays, inputs, slopes = (x.astype("float64") for x in arrays(7))
    states = linear_recurrence(decays, inputs)
    expected = reference(decays, inputs, slopes)[0]
    np.testing.assert_allclose(ops.convert_to_numpy(states), expected, rtol=1e-14)
