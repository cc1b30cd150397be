"""Decoding one position at a time: the state, and a step through all layers.

The state is a dictionary. "index" is the position (). "caches" holds each layer's keys
and values of the past, or a recurrent state. "ancestors" (B, N, L) holds, for each
hypothesis and position, which of the N cache entries of that position belongs to it: so
hypotheses change places and caches do not move.

B sentences, N hypotheses of each, L positions.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.decoding import (
    cache_place,
    pick,
    prepare_mask,
    resize_cache,
)
from keras_transformer.layers.projections import affine


def new_state(model, sentences, hypotheses, length):
    """Returns the state before the first of at most `length` positions.

    Raises `ValueError` if there are fewer learned positions than `length`.
    """
    size = sentences, hypotheses, length
    if isinstance(length, int):
        model.config.check_positions(length, "`length`")
    return {
        "index": ops.zeros((), dtype="int32"),
        "ancestors": ops.zeros(size, dtype="int32"),
        "caches": tuple(layer.initial_cache(*size) for layer in model.decoder_layers),
    }


def resized_state(state, sentences, length):
    """Returns the state of some sentences (B',), with room for `length` positions."""
    # All other entries are nested tensors (B, ...).
    kept = keras.tree.map_structure(
        lambda leaf: ops.take(leaf, sentences, axis=0),
        {name: state[name] for name in state if name not in ("index", "caches")},
    )
    _, hypotheses, room = ops.shape(kept["ancestors"])
    more = length - room
    kept["ancestors"] = ops.pad(kept["ancestors"], ((0, 0), (0, 0), (0, more)))
    caches = keras.tree.map_structure(
        lambda cache: resize_cache(cache, sentences, more * hypotheses), state["caches"]
    )
    return kept | {"index": state["index"], "caches": caches}


def step_through(model, norm, x, parents, state, weights):
    """Returns logits (R, V) and the new state, from one position (R, 1, D)."""
    # parents (B, N): the hypothesis of the last step that each one continues.
    layers, index = model.decoder_layers, state["index"]
    hypotheses, width = parents.shape[1], x.shape[-1]
    x = ops.reshape(x, (-1, hypotheses, width))  # (B, N, D)
    ancestors, mask = _past(state, parents)
    # A `Transformer` also has "sources", one a layer, and "source_mask" (B, 1, 1, S).
    sources = state.get("sources", (None,) * len(layers))
    source_mask, dtype = state.get("source_mask"), layers[0].compute_dtype
    if source_mask is not None:
        source_mask = prepare_mask(source_mask, dtype)
    masks = prepare_mask(mask, dtype), source_mask
    caches, places = [], {}
    for layer, cache, source, layer_weights in zip(
        layers, state["caches"], sources, weights["layers"], strict=True
    ):
        # Computed once for all caches of a size.
        size = (len(cache[0].shape), *cache[0].shape[1:3])
        if size not in places:
            who = None if hypotheses == 1 else parents
            places[size] = cache_place(cache[0], hypotheses, index, who)
        x, cache = layer.step(x, cache, places[size], masks, layer_weights, source)
        caches.append(cache)
    new = {"index": index + 1, "ancestors": ancestors, "caches": tuple(caches)}
    x = ops.reshape(x if norm is None else norm(x), (-1, width))
    # Without prepared weights the output matrix is quantised.
    output = weights["output"]
    return affine(x, *output) if output else model.logits(x), state | new


def _past(state, parents):
    """Returns the new ancestors and a mask (B, 1, N, L * N) of each one's past."""
    index, hypotheses = state["index"], parents.shape[1]
    batch, _, length = ops.shape(state["ancestors"])
    positions = ops.arange(length, dtype="int32")
    if hypotheses == 1:
        mask = ops.reshape(positions <= index, (1, 1, 1, length))
        return state["ancestors"], mask
    slots = ops.arange(hypotheses, dtype="int32")
    before = pick(state["ancestors"], parents)
    ancestors = ops.where(positions == index, slots[:, None], before)
    is_own = ops.equal(ops.expand_dims(ancestors, -1), slots)  # (B, N, L, N)
    mask = ops.logical_and(is_own, (positions <= index)[:, None])
    return ancestors, ops.reshape(mask, (batch, 1, hypotheses, length * hypotheses))
