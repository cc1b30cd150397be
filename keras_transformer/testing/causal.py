"""Whether a layer sees the future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer.testing import calls
from keras_transformer.types import TensorLike


def assert_causal(
    layer: Callable[..., Any],
    inputs: TensorLike | tuple[TensorLike, ...] | None = None, *,
    shape: Sequence[Any] | None = None, ids_below: int | None = None, seed: int = 0,
    tolerance: float = 1e-6, **call_options: Any,
) -> None:  # fmt: skip
    """Checks that no position of the output depends on a later one of the first input.

    It is changed at one position after the other, and the outputs before that position
    are compared. Of several outputs, the first is looked at.

    Args:
        layer: A layer, or any function of the inputs. A decoder layer takes a second
            input; for a model of pairs write a function of the target, such as
            `lambda target_in, source: model((source, target_in))`.
        inputs: An array of ids (B, T) or of vectors (B, T, D), or a tuple of arrays,
            one for each argument of the call; made from `shape` if not given.
        shape: Shape of the input, or a tuple of shapes, one for each argument; default
            (2, 7, 8), or (2, 7) of ids.
        ids_below: Number of ids, which are 0 to `ids_below` - 1; for given ids default
            one more than the largest. The input is of vectors if it is not given.
        seed: Of the random inputs and changes. Id 0, often padding, is not drawn.
        tolerance: Largest difference allowed, as a share of the largest output.
        **call_options: Keyword arguments of the call, such as `use_causal_mask=True`.

    Raises:
        AssertionError: If an output depends on a later position, is NaN, or
            depends on none of the positions that are changed.
        ValueError: If the inputs cannot show it: fewer than 2 positions or 3 ids.

    Example:
        >>> assert_causal(keras.layers.GRU(8, return_sequences=True))
    """
    rng, name = np.random.default_rng(seed), calls.name_of(layer)
    first, *others = calls.input_arrays(inputs, shape, ids_below, 0, rng)
    length = first.shape[1]
    if length < 2:
        raise ValueError(
            "The first input must have 2 positions or more, (B, T, ...). Received: "
            f"shape {first.shape}"
        )
    before = calls.output_of(layer, [first, *others], call_options)
    if before.shape[:2] != first.shape[:2]:
        raise ValueError(
            "The output must have the rows and positions of the first input, "
            f"{first.shape[:2]}. Received: an output of shape {before.shape}"
        )
    has_changed = False
    for position in range(1, length):
        changed = first.copy()
        changed[:, position] = _others(first[:, position], first, ids_below, rng)
        after = calls.output_of(layer, [changed, *others], call_options)
        calls.check_close(
            after[:, :position],
            before[:, :position],
            tolerance,
            f"{name} is not causal: a change of the input at position {position} "
            "changes an earlier output",
        )
        has_changed = has_changed or (after != before).any()
    if not has_changed:
        raise AssertionError(
            f"{name} gives the same output whatever its first input is from position 1 "
            "on, so nothing can be said of it"
        )


def _others(values, array, ids_below, rng):
    """Returns random values of which none is the one in its place."""
    if not calls.is_ids(array):
        return values + calls.drawn(values.shape, None, None, rng)
    count = int(array.max()) + 1 if ids_below is None else ids_below
    if count < 3:
        raise ValueError(
            "There must be two ids or more beside 0 to change one into the other: give "
            f"`ids_below`. Received: ids_below={count}"
        )
    # From 1 to count - 1, like the ids that are drawn.
    moved = values + rng.integers(1, count - 1, size=values.shape)
    return (moved - 1) % (count - 1) + 1
