"""The loss by chunks of tokens is the loss of all logits, and so is its gradient."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.kernels import crossentropy
from keras_transformer.nn.kernels.crossentropy import fused_crossentropy
from tests.nn.kernels.ways import called, every_way, with_gradients

ROWS, LENGTH, WIDTH, SIZE = 3, 11, 7, 29


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks, the last one not full."""
    monkeypatch.setattr("keras_transformer.nn.kernels.crossentropy.CHUNK_TOKENS", 8)


def arrays(tokens=ROWS * LENGTH):
    rng = np.random.default_rng(3)
    states = rng.normal(size=(tokens, WIDTH)).astype("float32")
    matrix = rng.normal(size=(SIZE, WIDTH)).astype("float32")
    targets = rng.integers(1, SIZE, tokens).astype("int32")
    weights = rng.uniform(0.5, 2.0, tokens).astype("float32")
    weights[::5] = 0.0
    return states, matrix, targets, weights


def reference(states, matrix, targets, weights, smoothing, bias=0.0):
    """All in float64, from the softmax of all logits: total, scores, gradients."""
    states, matrix = states.astype("float64"), matrix.astype("float64")
    logits = states @ matrix.T + bias
    log_softmax = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = np.full(logits.shape, smoothing / SIZE)
    expected[np.arange(len(targets)), targets] += 1 - smoothing
    slopes = (np.exp(log_softmax) - expected) * weights[:, None]
    total = -(expected * log_softmax * weights[:, None]).sum()
    crossentropies = -log_softmax[np.arange(len(targets)), targets]
    correct = logits.argmax(axis=-1) == targets
    gradients = slopes @ matrix, slopes.T @ states, slopes.sum(axis=0)
    return total, crossentropies, correct, *gradients


def run(way, function, states, *others):
    """`with_gradients` of a number of tokens that a graph does not know."""

    def both(states):
        return with_gradients(function, states, *others)

    return called(way, both, states)


@every_way
@pytest.mark.parametrize(
    "smoothing, tokens, biased",
    [(0.1, 33, False), (0.0, 16, False), (0.1, 1, False), (0.0, 33, True),
     (0.1, 33, True)],
)  # fmt: skip
def test_it_is_the_loss_and_gradient_of_all_logits(way, smoothing, tokens, biased):
    """With a bias of -1000, of a class that cannot be, too."""
    states, matrix, targets, weights = arrays(tokens)
    learned, bias = [states, matrix], 0.0
    if biased:
        bias = np.random.default_rng(5).normal(size=SIZE).astype("float32")
        bias[3] = -1000.0
        targets[targets == 3] = 4
        learned.append(bias)

    def function(states, matrix, *bias):
        given = dict(zip(("bias",), bias, strict=False))
        return fused_crossentropy(states, matrix, targets, weights, smoothing, **given)

    actual = run(way, function, *learned)
    wanted = reference(states, matrix, targets, weights, smoothing, bias)
    factors = (1, 1, 1, 3, 3, 3)[: len(actual)]
    for value, expected, factor in zip(actual, wanted, factors, strict=False):
        np.testing.assert_allclose(
            ops.convert_to_numpy(value), factor * expected, rtol=2e-5, atol=5e-5
        )


@every_way
def test_bfloat16_products_give_float32_sums(way):
    states, matrix, targets, weights = arrays()

    def function(states, matrix):
        states = ops.cast(states, "bfloat16")
        return fused_crossentropy(states, matrix, targets, weights, 0.1)

    *outputs, of_states, of_matrix = run(way, function, states, matrix)
    wanted = reference(states, matrix, targets, weights, 0.1)
    assert keras.backend.standardize_dtype(of_matrix.dtype) == "float32"
    np.testing.assert_allclose(ops.convert_to_numpy(outputs[0]), wanted[0], rtol=5e-3)
    for value, expected in ((of_states, wanted[3]), (of_matrix, wanted[4])):
        error = np.abs(ops.convert_to_numpy(value) - 3 * expected).max()
        assert error < 0.02 * np.abs(3 * expected).max()


def test_a_token_without_weight_may_have_an_infinite_loss():
    states, matrix, targets, weights = arrays(10)
    assert weights[5] == 0.0
    expected = reference(states, matrix, targets, weights, 0.0)[0]
    states[5] = 3e38 * np.sign(matrix[0])
    total = fused_crossentropy(states, matrix, targets, weights)[0]
    np.testing.assert_allclose(ops.convert_to_numpy(total), expected, rtol=1e-5)


def test_chunks_of_a_gpu_give_the_same(monkeypatch):
    tensors = arrays()

    def loss(states, matrix):
        return fused_crossentropy(states, matrix, *tensors[2:], 0.1)

    found = with_gradients(loss, *tensors[:2])
    monkeypatch.setattr(
        "keras_transformer.nn.kernels.crossentropy.has_gpu", lambda: True
    )
    bytes_of_20 = 20 * 4 * SIZE
    monkeypatch.setattr(
        "keras_transformer.nn.kernels.crossentropy.GPU_CHUNK_BYTES", bytes_of_20
    )
    assert crossentropy.chunk_tokens(SIZE) == 20
    for of_gpu, of_cpu in zip(with_gradients(loss, *tensors[:2]), found, strict=True):
        np.testing.assert_allclose(
            ops.convert_to_numpy(of_gpu), ops.convert_to_numpy(of_cpu), 1e-5, 1e-5
        )
