"""Inputs of a check: given ones as arrays, or random ones of a shape."""

from __future__ import annotations

import numpy as np
from keras import ops


def as_array(tensor):
    """Returns a tensor of any backend and float type as a NumPy array."""
    if isinstance(tensor, np.ndarray):
        return tensor
    tensor = ops.convert_to_tensor(tensor)
    if "float" in str(tensor.dtype):
        tensor = ops.cast(tensor, "float32")
    return ops.convert_to_numpy(tensor)


def input_arrays(inputs, shape, ids_below, pad_id, rng):
    """Returns the arrays of a call, one for each of its arguments.

    Args:
        inputs: An array, a tuple of them, or `None` for random ones.
        shape: A shape, a tuple of them, or `None`.
        ids_below: Number of different ids, or `None` for floats.
        pad_id: An id that is not drawn.
        rng: A `numpy.random.Generator`.

    Raises:
        ValueError: If both or neither of inputs and shape can be used.
    """
    if inputs is not None:
        if shape is not None:
            raise ValueError(
                "Give `inputs` or `shape`, not both. Received: "
                f"shape={shape} and inputs"
            )
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        arrays = [as_array(x) for x in given]
    else:
        if shape is None:
            shape = (2, 7, 8) if ids_below is None else (2, 7)
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
    """Returns random ids other than `pad_id`, or normal floats if they have no end."""
    if ids_below is None:
        return rng.standard_normal(shape).astype("float32")
    ids = rng.integers(max(ids_below - 1, 1), size=shape)
    return (ids + (ids >= pad_id)).astype("int32")


def is_ids(array):
    """Whether an input is of integers."""
    return array.dtype.kind in "iu"


def lengths_of(array, pad_id, rng):
    """Returns the length of each row: of its ids before padding, or drawn.

    Args:
        array: Input (B, T) or (B, T, ...).
        pad_id: Id of padding.
        rng: A `numpy.random.Generator`.

    Returns:
        Integers (B,); a row of the whole length is among those drawn.
    """
    if is_ids(array) and array.ndim == 2 and (array == pad_id).any():
        return (array != pad_id).sum(axis=1)
    lengths = rng.integers(1, array.shape[1] + 1, size=len(array))
    lengths[0] = array.shape[1]
    return lengths


def padded(array, lengths, room, pad_id, rng):
    """Returns rows cut to their lengths, then padded to `room` positions.

    Args:
        array: Input (B, T) or (B, T, ...).
        lengths: Integers (B,).
        room: Positions of the result, at least the longest of `lengths`.
        pad_id: What pads ids; floats are padded with random ones.
        rng: A `numpy.random.Generator`.
    """
    shape = (len(array), room, *array.shape[2:])
    if is_ids(array):
        result = np.full(shape, pad_id, array.dtype)
    else:
        result = 3 * rng.standard_normal(shape).astype(array.dtype)
    for row, length in enumerate(lengths):
        result[row, :length] = array[row, :length]
    return result
