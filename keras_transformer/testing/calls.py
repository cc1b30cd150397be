"""Inputs and outputs of the layers that are checked."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from keras_transformer.config.options import check_number


def as_array(tensor):
    """Returns a tensor of any backend and float type as a NumPy array."""
    if isinstance(tensor, np.ndarray):
        return tensor
    tensor = ops.convert_to_tensor(tensor)
    if "float" in str(tensor.dtype):
        tensor = ops.cast(tensor, "float32")
    return ops.convert_to_numpy(tensor)


def generator_of(seed, tolerance):
    """Returns a random generator; refuses a wrong seed or tolerance."""
    check_number("tolerance", tolerance, minimum=0)
    check_number("seed", seed, int, minimum=0)
    return np.random.default_rng(seed)


def input_arrays(inputs, shape, ids_below, rng, pad_id=0):
    """Returns the given or random arrays of a call, one per argument."""
    check_number("ids_below", ids_below, int, optional=True, minimum=1)
    if inputs is not None and shape is not None:
        raise ValueError(
            f"Give `inputs` or `shape`, not both. Received: shape={shape} and inputs"
        )
    if inputs is not None:
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        arrays = [as_array(x) for x in given]
    else:
        shape = shape or ((2, 7, 8) if ids_below is None else (2, 7))
        shapes = [shape] if isinstance(shape[0], int) else shape
        arrays = [drawn(one, ids_below, pad_id, rng) for one in shapes]
    for array in arrays:
        if array.ndim < 2 or not array.size:
            raise ValueError(
                "Every input must have rows and positions, (B, T) or (B, T, ...). "
                f"Received: shape {array.shape}"
            )
    return arrays


def drawn(shape, ids_below, pad_id, rng):
    """Returns random ids other than `pad_id`, or normal floats without `ids_below`."""
    if ids_below is None:
        return rng.standard_normal(shape).astype("float32")
    ids = rng.integers(max(ids_below - 1, 1), size=shape)
    return (ids + (ids >= pad_id)).astype("int32")


def is_ids(array):
    """Whether an array is integer."""
    return array.dtype.kind in "iu"


def name_of(layer):
    """Returns the name of a layer or function for messages."""
    return getattr(layer, "__name__", type(layer).__name__)


def output_of(layer, inputs, options):
    """Returns the first output of a layer, model or function, as an array."""
    tensors = [ops.convert_to_tensor(x) for x in inputs]
    if isinstance(layer, keras.Model) and len(tensors) > 1:
        tensors = [tuple(tensors)]
    return as_array(keras.tree.flatten(layer(*tensors, **options))[0])


def check_close(
    actual, expected, tolerance, claim, real=None, first=(0, 0), has_positions=True
):
    """Raises an `AssertionError` with the `claim` and the place if outputs differ."""
    # Compares where `real` (B, T); `first` is the row and position of the first output.
    if actual.shape != expected.shape:
        shapes = f"the shapes are {actual.shape} and {expected.shape}"
        raise AssertionError(f"{claim}: {shapes}")
    if real is not None:
        wide = real.reshape(real.shape + (1,) * (actual.ndim - 2))
        actual, expected = (np.where(wide, x, 0) for x in (actual, expected))
    actual, expected = (np.asarray(x, "float64") for x in (actual, expected))
    with np.errstate(invalid="ignore"):
        differences = np.where(actual == expected, 0.0, np.abs(actual - expected))
    differences[np.isnan(differences)] = np.inf
    finite = np.abs(expected[np.isfinite(expected)])
    allowed = tolerance * finite.max(initial=0.0)
    if differences.max(initial=0.0) > allowed:
        place = np.unravel_index(differences.argmax(), differences.shape)
        row, *rest = map(int, place)
        where = f"row {row + first[0]}"
        if has_positions and rest:
            where += f", position {rest.pop(0) + first[1]}"
        if rest:
            where += f", unit {', '.join(map(str, rest))}"
        raise AssertionError(
            f"{claim}. The largest difference, {differences.max():.3g}, is at {where}: "
            f"{actual[place]:.6g} in place of {expected[place]:.6g}. Allowed: "
            f"{allowed:.3g}"
        )
