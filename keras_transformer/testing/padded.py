"""Whether padding changes what a layer computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.testing.inputs import (
    input_arrays,
    is_ids,
    lengths_of,
    padded,
)
from keras_transformer.testing.outputs import (
    carrying,
    check_close,
    name_of,
    output_of,
)
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
    """Checks that padding at the end of the rows changes nothing.

    Other vectors in the padded positions, more padded positions (of one input after
    the other), and each row alone, cut to its length, must give the same output at the
    positions that are not padding. An output without positions, such as a
    classifier's, is compared whole.

    Ids say themselves where padding is. With vectors the layer gets a boolean mask
    (B, T), True where a position is not padding: it is carried by the input, like that
    of a `keras.layers.Masking`, or given in the arguments that `mask_names` names.

    Args:
        layer: A layer, or any function of the inputs; a `keras.Model` takes several
            inputs as one tuple.
        inputs: As in `assert_causal`. The lengths of ids are those before `pad_id`;
            where it is not among them, and of vectors, lengths are drawn.
        shape: As in `assert_causal`.
        ids_below: As in `assert_causal`.
        pad_id: Id of padding.
        mask_names: Keyword arguments of the call for the masks, one for each input.
        seed: Of the random inputs, lengths and padding.
        tolerance: As in `assert_causal`.
        **call_options: Keyword arguments of the call.

    Raises:
        AssertionError: If padding changes the output, or it is NaN.
        ValueError: If the output has neither the positions of the first input nor none,
            or there are not as many names of masks as inputs.

    Example:
        >>> assert_padding_invariant(EncoderLayer(num_heads=2, d_ff=16))
    """
    rng = np.random.default_rng(seed)
    arrays = input_arrays(inputs, shape, ids_below, pad_id, rng)
    if mask_names is not None and len(mask_names) != len(arrays):
        raise ValueError(
            "`mask_names` must name one argument for each input. Received: "
            f"{list(mask_names)} for {len(arrays)} inputs"
        )
    call = _Call(layer, arrays, pad_id, mask_names, call_options, rng)
    check = _Check(call, tolerance)
    everything, rooms = slice(None), call.rooms
    if not all(map(is_ids, arrays)):
        check(everything, rooms, "other vectors in padded positions change the output")
    for i, room in enumerate(rooms):
        more = [*rooms[:i], room + _MORE, *rooms[i + 1 :]]
        what = f"{_MORE} more padded positions of input {i} change the output"
        check(everything, more, what)
    for row in range(len(arrays[0])):
        alone = [int(lengths[row]) for lengths in call.lengths]
        what = f"row {row} alone, cut to its length, has another output"
        check(slice(row, row + 1), alone, what)


class _Call:
    """A layer with its inputs, called with any rows and any padding."""

    def __init__(self, layer, arrays, pad_id, mask_names, options, rng):
        self.layer = layer
        self.arrays = arrays
        self.lengths = [lengths_of(array, pad_id, rng) for array in arrays]
        self.rooms = [array.shape[1] for array in arrays]
        self._pad_id, self._rng = pad_id, rng
        self._mask_names, self._options = mask_names, options

    def __call__(self, rows, rooms):
        """Returns the output of some rows, each input padded to its room."""
        inputs, masks = [], {}
        for i, room in enumerate(rooms):
            lengths = self.lengths[i][rows]
            array = padded(self.arrays[i][rows], lengths, room, self._pad_id, self._rng)
            mask = np.arange(room) < lengths[:, None]
            if self._mask_names is not None:
                masks[self._mask_names[i]] = ops.convert_to_tensor(mask)
            elif not is_ids(array):
                array = carrying(array, mask)
            inputs.append(array)
        return output_of(self.layer, inputs, self._options | masks)


class _Check:
    """Compares the output of a call with that of all rows as they were given."""

    def __init__(self, call, tolerance):
        self.call = call
        self.tolerance = tolerance
        everything, room = slice(None), call.rooms[0]
        self.expected = call(everything, call.rooms)
        longer = call(everything, [room + _MORE, *call.rooms[1:]])
        self.has_positions = longer.shape != self.expected.shape
        if self.has_positions and (
            self.expected.shape[1:2] + longer.shape[1:2] != (room, room + _MORE)
        ):
            raise ValueError(
                "The output must have the positions of the first input, or none. "
                f"Received: an output of shape {self.expected.shape} for {room} "
                f"positions, and {longer.shape} for {room + _MORE}"
            )

    def __call__(self, rows, rooms, what):
        actual, expected, real = self.call(rows, rooms), self.expected[rows], None
        if self.has_positions:
            shared = min(actual.shape[1], expected.shape[1])
            actual, expected = actual[:, :shared], expected[:, :shared]
            real = np.arange(shared) < self.call.lengths[0][rows][:, None]
        check_close(
            actual,
            expected,
            self.tolerance,
            f"{name_of(self.call.layer)} depends on padding: {what}",
            real,
            (rows.start or 0, 0),
            self.has_positions,
        )
