"""Outputs of a check: calling what is checked, and saying where outputs differ."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.testing.inputs import as_array


class _Carrying(keras.layers.Layer):
    """Gives its input a Keras mask: `keras.layers.Masking` would change the values."""

    def __init__(self, mask):
        super().__init__(dtype="float32")
        self.supports_masking = True
        self._mask = mask

    def call(self, inputs):
        # Another tensor, since Keras notes the mask on the tensor itself.
        return inputs + 0

    def compute_mask(self, inputs, previous_mask=None):
        return self._mask


def carrying(array, mask):
    """Returns an input as a tensor that carries a boolean mask (B, T)."""
    return _Carrying(ops.convert_to_tensor(mask))(ops.convert_to_tensor(array))


def name_of(layer):
    """Returns what a message calls a layer or a function."""
    return getattr(layer, "__name__", type(layer).__name__)


def output_of(layer, inputs, options):
    """Calls a layer, model or function, and returns its first output, an array.

    Args:
        layer: What is called; a `keras.Model` takes several inputs as one tuple.
        inputs: Arrays or tensors, one for each argument.
        options: Keyword arguments of the call.
    """
    tensors = [ops.convert_to_tensor(x) for x in inputs]
    if isinstance(layer, keras.Model) and len(tensors) > 1:
        tensors = [tuple(tensors)]
    return as_array(keras.tree.flatten(layer(*tensors, **options))[0])


def check_close(
    actual, expected, tolerance, claim, real=None, first=(0, 0), has_positions=True
):
    """Compares outputs and says where they differ most.

    Args:
        actual: Array (B, T, ...), or (B, ...) without positions.
        expected: Array of the same shape.
        tolerance: Largest difference allowed, as a share of the largest of `expected`.
        claim: What is wrong if they differ.
        real: Boolean (B, T), True where they are compared; everywhere if `None`.
        first: Row and position that the arrays begin with.
        has_positions: Whether the second axis is of positions.

    Raises:
        AssertionError: If they differ, or one is NaN.
    """
    if actual.shape != expected.shape:
        raise AssertionError(
            f"{claim}: the shapes are {actual.shape} and {expected.shape}"
        )
    if real is not None:
        wide = real.reshape(real.shape + (1,) * (actual.ndim - 2))
        actual, expected = (np.where(wide, x, 0) for x in (actual, expected))
    actual, expected = (np.asarray(x, "float64") for x in (actual, expected))
    with np.errstate(invalid="ignore"):
        differences = np.where(actual == expected, 0.0, np.abs(actual - expected))
    differences = np.where(np.isnan(differences), np.inf, differences)
    finite = np.abs(expected[np.isfinite(expected)])
    allowed = tolerance * (finite.max() if finite.size else 0.0)
    if differences.size and differences.max() > allowed:
        place = np.unravel_index(differences.argmax(), differences.shape)
        where = f"row {place[0] + first[0]}"
        if has_positions and len(place) > 1:
            where += f", position {place[1] + first[1]}"
        if len(place) > 1 + has_positions:
            units = [int(i) for i in place[1 + has_positions :]]
            where += f", unit {units[0] if len(units) == 1 else units}"
        raise AssertionError(
            f"{claim}. The largest difference, {differences.max():.3g}, is at {where}: "
            f"{actual[place]:.6g} in place of {expected[place]:.6g}. Allowed: "
            f"{allowed:.3g}"
        )
