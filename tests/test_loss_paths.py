"""The loss as a graph, XLA and other backends compute it, against the closed form."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import MaskedAccuracy, MaskedCrossentropy, Perplexity
from keras_transformer.kernels.crossentropy import first_largest
from tests.reference import numpy_transformer as reference

VOCABULARY_SIZE = 7
TARGETS = np.array([[3, 6, 1, 2, 5], [4, 2, 0, 0, 0], [1, 1, 2, 0, 0]], "int32")
MODES = {"eager": None, "graph": {}, "xla": {"jit_compile": True}}
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-2}
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow"
)


def logits_of(dtype, scale=2.0):
    """Logits that `dtype` holds exactly, as a tensor and as float64."""
    rng = np.random.default_rng(5)
    rounded = ops.cast(rng.normal(0, scale, (*TARGETS.shape, VOCABULARY_SIZE)), dtype)
    return rounded, ops.convert_to_numpy(ops.cast(rounded, "float32")).astype("float64")


def loss_and_gradient(loss, logits):
    """On the backend at hand: the loss and its gradient by the logits, in float32."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = loss(TARGETS, logits)
        return value, tf.cast(tape.gradient(value, logits), "float32")
    if backend == "jax":
        import jax

        function = jax.jit(jax.value_and_grad(lambda logits: loss(TARGETS, logits)))
        value, gradient = function(logits)
        return value, gradient.astype("float32")
    logits = logits.detach().requires_grad_()
    value = loss(ops.convert_to_tensor(TARGETS), logits)
    value.backward()
    return value.detach(), logits.grad.float()


def assert_closed_form(value, gradient, exact, label_smoothing, tolerance):
    expected = reference.label_smoothed_cross_entropy(exact, TARGETS, label_smoothing)
    np.testing.assert_allclose(ops.convert_to_numpy(value), expected, rtol=2e-6)
    expected = reference.label_smoothed_cross_entropy_gradient(
        exact, TARGETS, label_smoothing
    )
    gradient = ops.convert_to_numpy(gradient)
    np.testing.assert_allclose(gradient, expected, rtol=tolerance, atol=1e-7)
    assert not gradient[TARGETS == 0].any()


@on_tensorflow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("label_smoothing", (0.0, 0.1))
def test_every_mode_agrees_with_the_closed_form(mode, dtype, label_smoothing):
    import tensorflow as tf

    def run(logits):
        return loss_and_gradient(MaskedCrossentropy(label_smoothing), logits)

    options = MODES[mode]
    logits, exact = logits_of(dtype)
    value, gradient = (run if options is None else tf.function(run, **options))(logits)
    assert_closed_form(value, gradient, exact, label_smoothing, TOLERANCES[dtype])


@on_tensorflow
@pytest.mark.parametrize("mode", MODES)
def test_large_logits_stay_finite_in_every_mode(mode):
    import tensorflow as tf

    def run(logits):
        return loss_and_gradient(MaskedCrossentropy(0.1), logits)

    options = MODES[mode]
    logits, exact = logits_of("float32", scale=1e4)
    value, gradient = (run if options is None else tf.function(run, **options))(logits)
    assert_closed_form(value, gradient, exact, 0.1, 1e-5)


@on_tensorflow
@pytest.mark.parametrize("mode", MODES)
def test_first_of_equal_logits_is_the_largest(mode):
    import tensorflow as tf

    logits = tf.constant([[1.0, 3.0, 3.0], [-0.0, 0.0, -1.0], [2.0, 2.0, 2.0]])
    options = MODES[mode]
    function = first_largest if options is None else tf.function(**options)
    function = function if options is None else function(first_largest)
    for dtype in ("float32", "bfloat16"):
        places = ops.convert_to_numpy(function(tf.cast(logits, dtype)))
        assert places.tolist() == [1, 0, 0]


@on_tensorflow
@pytest.mark.parametrize("mode", MODES)
def test_metrics_agree_with_the_reference_in_every_mode(mode):
    import tensorflow as tf

    metrics = MaskedAccuracy(), Perplexity()

    def update(logits):
        for metric in metrics:
            metric.update_state(TARGETS, logits)

    options = MODES[mode]
    logits, exact = logits_of("float32")
    (update if options is None else tf.function(update, **options))(logits)
    accuracy, perplexity = (float(metric.result()) for metric in metrics)
    assert accuracy == pytest.approx(reference.masked_accuracy(exact, TARGETS))
    assert perplexity == pytest.approx(reference.perplexity(exact, TARGETS), rel=1e-5)


@pytest.mark.one_case
@pytest.mark.parametrize("backend", ("jax", "torch"))
def test_other_backends_agree_with_the_closed_form(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.test_loss_paths"], env=environment,
        cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert finished.returncode == 0, (finished.stdout + finished.stderr)[-4000:]


def main():
    """Compares all data types and rates on the backend that is set."""
    for dtype, tolerance in TOLERANCES.items():
        for label_smoothing in (0.0, 0.1):
            logits, exact = logits_of(dtype)
            loss = MaskedCrossentropy(label_smoothing)
            value, gradient = loss_and_gradient(loss, logits)
            assert_closed_form(value, gradient, exact, label_smoothing, tolerance)


if __name__ == "__main__":
    main()
