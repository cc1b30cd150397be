"""A check that padding changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.testing import calls
from keras_transformer.types import TensorLike

# Positions of padding that are added.
_MORE = 3


def assert_padding_invariant(
    layer: Callable[..., Any],
    inputs: TensorLike | tuple[TensorLike, ...] | None = None,
    *,
    shape: Sequence[Any] | None = None,
    ids_below: int | None = None,
    pad_id: int = 0,
    mask_names: Sequence[str] | None = None,
    seed: int = 0,
    tolerance: float = 1e-5,
    **call_options: Any,
) -> None:
    """Checks that padding at the end of rows does not change the output.

    It compares the output at real positions with that of other vectors in padded
    positions, of more padding in one input after the other, and of each row by itself,
    cut to its length. An output without positions, such as a classifier's, is compared
    as a whole. With vectors the layer gets a boolean mask (B, T), True at real
    positions: the Keras mask of the input, or the argument in `mask_names`.

    Args:
        layer: A layer, or a function of the inputs; a `keras.Model` takes several
            inputs as one tuple.
        inputs: See `assert_causal`. The lengths of ids are those before `pad_id`; other
            lengths are random.
        shape: See `assert_causal`.
        ids_below: See `assert_causal`.
        pad_id: Id of padding.
        mask_names: Keyword arguments of the masks, one per input.
        seed: Seed of the random inputs, lengths and padding.
        tolerance: See `assert_causal`.
        **call_options: Keyword arguments of the call.

    Raises:
        AssertionError: If padding changes the output, or it is NaN.
        ValueError: If the output has other positions than the first input, or the
            number of `mask_names` is not that of inputs.

    Example:
        >>> assert_padding_invariant(EncoderLayer(num_heads=2, d_ff=16))
    """
    check_number("pad_id", pad_id, int, minimum=0)
    rng = calls.generator_of(seed, tolerance)
    arrays = calls.input_arrays(inputs, shape, ids_below, rng, pad_id)
    if mask_names is not None and len(mask_names) != len(arrays):
        raise ValueError(
            "`mask_names` must name one argument for each input. Received: "
            f"{list(mask_names)} for {len(arrays)} inputs"
        )
    lengths = [_lengths(array, pad_id, rng) for array in arrays]
    rooms = [array.shape[1] for array in arrays]

    def output(rows, rooms):
        """Returns the output of some rows, each input padded to its room."""
        inputs = []
        masks = {}
        for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
            is_real = np.arange(rooms[i]) < length[rows][:, None]
            is_real = ops.convert_to_tensor(is_real)
            array = _padded(array[rows], length[rows], rooms[i], pad_id, rng)
            if mask_names is not None:
                masks[mask_names[i]] = is_real
            elif not calls.is_ids(array):
                # A new tensor, because Keras sets the mask on the tensor itself.
                carrying = keras.layers.Lambda(
                    lambda x: x + 0, mask=is_real, dtype="float32"
                )
                array = carrying(array)
            inputs.append(array)
        return calls.output_of(layer, inputs, call_options | masks)

    everything = slice(None)
    room = rooms[0]
    expected = output(everything, rooms)
    longer = output(everything, [room + _MORE, *rooms[1:]])
    has_positions = longer.shape != expected.shape
    sizes = expected.shape[1:2] + longer.shape[1:2]
    if has_positions and sizes != (room, room + _MORE):
        raise ValueError(
            "The output must have the positions of the first input, or none. "
            f"Received: an output of shape {expected.shape} for {room} positions, and "
            f"{longer.shape} for {room + _MORE}"
        )

    def check(rows, rooms, what):
        actual = output(rows, rooms)
        wanted = expected[rows]
        real = None
        if has_positions:
            shared = min(actual.shape[1], wanted.shape[1])
            actual = actual[:, :shared]
            wanted = wanted[:, :shared]
            real = np.arange(shared) < lengths[0][rows][:, None]
        claim = f"{calls.name_of(layer)} depends on padding: {what}"
        first = (rows.start or 0, 0)
        calls.check_close(actual, wanted, tolerance, claim, real, first, has_positions)

    if not all(map(calls.is_ids, arrays)):
        check(everything, rooms, "other vectors in padded positions change the output")
    for i, room in enumerate(rooms):
        more = [*rooms[:i], room + _MORE, *rooms[i + 1 :]]
        what = f"{_MORE} more padded positions of input {i} change the output"
        check(everything, more, what)
    for row in range(len(arrays[0])):
        alone = [int(length[row]) for length in lengths]
        what = f"row {row} by itself, cut to its length, has another output"
        check(slice(row, row + 1), alone, what)


def _lengths(array, pad_id, rng):
    """Returns the length of each row: of its ids before padding, or random."""
    if calls.is_ids(array) and array.ndim == 2 and (array == pad_id).any():
        return (array != pad_id).sum(axis=1)
    lengths = rng.integers(1, array.shape[1] + 1, size=len(array))
    lengths[0] = array.shape[1]  # One row has no padding.
    return lengths


def _padded(array, lengths, room, pad_id, rng):
    """Returns rows cut to their lengths, padded with ids or random vectors."""
    shape = (len(array), room, *array.shape[2:])
    result = np.full(shape, pad_id, array.dtype)
    if not calls.is_ids(array):
        result = 3 * rng.standard_normal(shape).astype(array.dtype)
    for row, length in enumerate(lengths):
        result[row, :length] = array[row, :length]
    return result
