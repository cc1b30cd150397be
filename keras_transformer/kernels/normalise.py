"""Layer normalisation."""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.affine import sum_of_rows
from keras_transformer.kernels.execution import in_tensorflow_graph, shape_of
from keras_transformer.kernels.softmax import wide_dtype


def normalise(inputs, gamma, beta, epsilon, training=False):
    """Normalises each row to mean 0 and variance 1, then scales and shifts it.

    Ba et al., 2016, https://arxiv.org/abs/1607.06450, over the last axis.

    Args:
        inputs: Float tensor (..., D).
        gamma: Float tensor (D,).
        beta: Float tensor (D,).
        epsilon: Added to the variance.
        training: Whether a gradient will be asked for.

    Returns:
        Float tensor (..., D).
    """
    if training and in_tensorflow_graph():
        gamma, beta = map(ops.convert_to_tensor, (gamma, beta))
        return _normalise_in_graph(inputs, gamma, beta, epsilon)
    return ops.layer_normalization(
        inputs, gamma=gamma, beta=beta, axis=-1, epsilon=epsilon
    )


def _normalise_in_graph(inputs, gamma, beta, epsilon):
    """As `normalise`, in at least float32 and in few passes over memory.

    With the normalised row h and u = gamma * upstream, the gradient of the input is
    (u - mean(u) - h mean(u h)) / deviation.
    """
    dtype = wide_dtype(inputs.dtype, gamma.dtype)

    @ops.custom_gradient
    def normalised(inputs, gamma, beta):
        rows = _rows(ops.cast(inputs, dtype))
        scale, shift = (ops.cast(x, dtype) for x in (gamma, beta))
        centred = rows - _mean(rows)
        inverse = ops.rsqrt(_mean(centred * centred) + epsilon)
        unit = centred * inverse

        def gradient(upstream):
            upstream = _rows(ops.cast(upstream, dtype))
            slopes = upstream * scale
            changes = slopes - _mean(slopes) - unit * _mean(slopes * unit)
            return (
                ops.cast(_like(changes * inverse, inputs), inputs.dtype),
                ops.cast(sum_of_rows(upstream * unit), gamma.dtype),
                ops.cast(sum_of_rows(upstream), beta.dtype),
            )

        return _like(unit * scale + shift, inputs), gradient

    return normalised(inputs, gamma, beta)


def _mean(rows):
    return ops.mean(rows, axis=-1, keepdims=True)


def _rows(tensor):
    """(..., D) --> (R, D)."""
    return ops.reshape(tensor, (-1, tensor.shape[-1]))


def _like(rows, tensor):
    return ops.reshape(rows, shape_of(tensor))
