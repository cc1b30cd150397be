"""A check that a layer is causal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_transformer.testing import calls
from keras_transformer.types import TensorLike


def assert_causal(
    layer: Callable[..., Any],
    inputs: TensorLike | tuple[TensorLike, ...] | None = None,
    *,
    shape: Sequence[Any] | None = None,
    ids_below: int | None = None,
    seed: int = 0,
    tolerance: float = 1e-6,
    **call_options: Any,
) -> None:
    """Checks that no output position depends on a later position of the first input.

    It changes one position after the other and compares the earlier outputs, of the
    first output if there are several.

    Args:
        layer: A layer, or a function of the inputs. A decoder layer takes a second
            input; for a model of pairs pass a function of the target, such as
            `lambda target_in, source: model((source, target_in))`.
        inputs: An array of ids (B, T) or vectors (B, T, D), or a tuple of arrays, one
            per argument; default random, of `shape`.
        shape: Shape of the input, or a tuple of shapes; default (2, 7, 8), or (2, 7)
            for ids.
        ids_below: Ids are below it; if not given, inputs are vectors, and given ids are
            at most their largest.
        seed: Seed of the random inputs and changes, which do not use the id 0.
        tolerance: Largest difference, as a share of the largest output.
        **call_options: Keyword arguments of the call, such as `use_causal_mask=True`.

    Raises:
        AssertionError: If an output depends on a later position, is NaN, or depends on
            no changed position.
        ValueError: If there are fewer than 2 positions or 3 ids.

    Example:
        >>> assert_causal(keras.layers.GRU(8, return_sequences=True))
    """
    rng = calls.generator_of(seed, tolerance)
    name = calls.name_of(layer)
    first, *others = calls.input_arrays(inputs, shape, ids_below, rng)
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
        claim = (
            f"{name} is not causal: a change of the input at position {position} "
            "changes an earlier output"
        )
        earlier = after[:, :position], before[:, :position]
        calls.check_close(*earlier, tolerance, claim)
        has_changed = has_changed or (after != before).any()
    if not has_changed:
        raise AssertionError(
            f"The output of {name} does not depend on its first input from position 1 "
            "on, so its causality cannot be checked"
        )


def _others(values, array, ids_below, rng):
    """Returns random values, each different from the one in its place."""
    if not calls.is_ids(array):
        return values + calls.drawn(values.shape, None, None, rng)
    count = int(array.max()) + 1 if ids_below is None else ids_below
    if count < 3:
        raise ValueError(
            "`ids_below` must be at least 3, because id 0 is not used. "
            f"Received: ids_below={count}"
        )
    moved = values + rng.integers(1, count - 1, size=values.shape)
    return (moved - 1) % (count - 1) + 1
