"""Matrix products with a bias."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.execution import in_tensorflow_graph, shape_of


def affine(inputs, kernel, bias=None, training=False):
    """Multiplies rows by a matrix and adds a bias.

    Args:
        inputs: Float tensor (R, D).
        kernel: Float tensor (D, E).
        bias: Float tensor (E,), or `None`.
        training: Whether a gradient will be asked for.

    Returns:
        Float tensor (R, E).
    """
    if bias is None:
        return ops.matmul(inputs, kernel)
    if training and in_tensorflow_graph():
        return _affine_in_graph(inputs, *map(ops.convert_to_tensor, (kernel, bias)))
    return ops.matmul(inputs, kernel) + bias


@ops.custom_gradient
def _affine_in_graph(inputs, kernel, bias):
    """As `affine`, with a gradient that makes few passes over memory."""

    def gradient(upstream):
        return (
            ops.matmul(upstream, ops.transpose(kernel)),
            ops.matmul(ops.transpose(inputs), upstream),
            sum_of_rows(upstream),
        )

    return ops.matmul(inputs, kernel) + bias, gradient


def sum_of_rows(rows):
    """(R, D) --> (D,), as a product: on a CPU it takes half the time of a sum."""
    ones = ops.ones((1, shape_of(rows)[0]), dtype=rows.dtype)
    return ops.reshape(ops.matmul(ones, rows), rows.shape[1:])


def prepared(kernel, bias=None):
    """Returns the arguments of `affine` after its input, for many calls.

    oneDNN multiplies a single row in bfloat16 twice as fast where a bias is added, so a
    missing one becomes zeros.
    """
    if bias is None and keras.backend.standardize_dtype(kernel.dtype) == "bfloat16":
        bias = ops.zeros(kernel.shape[-1:], kernel.dtype)
    return (kernel,) if bias is None else (kernel, bias)
