"""The state of decoding step by step, with caches of the positions before.

A dictionary: "index" is the position (); "caches" are the keys and values of the
positions before, a pair a layer, or what else a layer keeps of them; "ancestors"
(B, N, L) says, for each hypothesis and position, which of the N cache entries of that
position is in its own past.

B sentences, N hypotheses of each, L positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.decoding import cache_place, of_parents
from keras_transformer.kernels.few_passes import PreparedMask, prepare_mask


def new_state(layers, sentences, hypotheses, length):
    """Returns the state before the first position.

    Args:
        layers: Layers with `initial_cache`.
        sentences: B, an integer or a scalar tensor.
        hypotheses: N.
        length: Most positions that will be decoded, L (tokens).
    """
    return {
        "index": ops.zeros((), dtype="int32"),
        "ancestors": ops.zeros((sentences, hypotheses, length), dtype="int32"),
        "caches": tuple(
            layer.initial_cache(sentences, hypotheses, length) for layer in layers
        ),
    }


def resized_state(state, layers, sentences, length):
    """Returns the state of some sentences, with room for more positions.

    Args:
        state: As `new_state` made it or a step returned it; its other entries are
            tensors of B sentences.
        layers: Layers with `resize_cache`.
        sentences: Integer tensor (B',), places of the sentences to keep.
        length: Positions, an integer or a scalar tensor, at least as many as now.

    Returns:
        The state of B' sentences.
    """
    kept = keras.tree.map_structure(
        lambda leaf: ops.take(leaf, sentences, axis=0),
        {name: state[name] for name in state if name not in ("index", "caches")},
    )
    _, hypotheses, room = ops.shape(kept["ancestors"])
    more = length - room
    kept["ancestors"] = ops.pad(kept["ancestors"], ((0, 0), (0, 0), (0, more)))
    caches = tuple(
        layer.resize_cache(cache, sentences, more * hypotheses)
        for layer, cache in zip(layers, state["caches"], strict=True)
    )
    return kept | {"index": state["index"], "caches": caches}


class Past(NamedTuple):
    """What one step of decoding needs to know of the steps before.

    Attributes:
        ancestors: Integer tensor (B, N, L), with this position.
        mask: `PreparedMask` that broadcasts to (B, H, N, L * N), True for a
            hypothesis's past and for itself.
        places: For each layer's caches, the `Place` of this position.
    """

    ancestors: Any
    mask: PreparedMask
    places: list


def past_of(state, parents, dtype):
    """Finds the past of each hypothesis.

    Args:
        state: The state before this position.
        parents: Integer tensor (B, N), the hypothesis of the step before that each
            one continues.
        dtype: Float type of the scores.

    Returns:
        A `Past`.
    """
    index, hypotheses = state["index"], parents.shape[1]
    batch, _, length = ops.shape(state["ancestors"])
    positions = ops.arange(length, dtype="int32")
    if hypotheses == 1:
        mask = ops.reshape(positions <= index, (1, 1, 1, length))
        places = _places(state, hypotheses, None)
        return Past(state["ancestors"], prepare_mask(mask, dtype), places)
    places = _places(state, hypotheses, parents)
    slots = ops.arange(hypotheses, dtype="int32")
    before = of_parents(state["ancestors"], parents)
    ancestors = ops.where(positions == index, slots[:, None], before)
    is_own = ops.equal(ops.expand_dims(ancestors, -1), slots)  # (B, N, L, N)
    mask = ops.logical_and(is_own, (positions <= index)[:, None])
    mask = ops.reshape(mask, (batch, 1, hypotheses, length * hypotheses))
    return Past(ancestors, prepare_mask(mask, dtype), places)


def _places(state, hypotheses, parents):
    """`cache_place` for each layer's caches, worked out once for each size.

    Layers may differ: in their heads, or in what they keep of the past.
    """
    of_size, places = {}, []
    for cache, *_ in state["caches"]:
        size = (len(cache.shape), *cache.shape[1:3])
        if size not in of_size:
            of_size[size] = cache_place(cache, hypotheses, state["index"], parents)
        places.append(of_size[size])
    return places


def check_length(config, length):
    """Raises `ValueError` if learned positions are fewer than a known `length`."""
    too_long = isinstance(length, int) and length > config.max_positions
    if config.positions == "learned" and too_long:
        raise ValueError(
            "`length` must not exceed the learned positions. Received: "
            f"length={length}, max_positions={config.max_positions}"
        )
