"""Which keys a query may attend to, by all that a call of attention says of it.

The masks of `keras.layers.MultiHeadAttention` and this package's `mask` become one
that broadcasts to the scores: (B, H, T, S) of inputs of rank 3, else (B, others..., H,
T..., S...).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.kernels.keras_private import learns_shapes
from keras_transformer.layers.arguments import check_mask
from keras_transformer.layers.attention_axes import scores_shape
from keras_transformer.masks import attention_mask as with_queries
from keras_transformer.masks import carried_mask, within_window


def combined_mask(inputs, mask, **more):
    """Combines the masks of a layer's call: what one forbids is forbidden.

    Args:
        inputs: Float tensor (B, S, D), what is attended to. The Keras mask that it
            carries counts unless another `mask` or a padding mask is given.
        mask: Boolean tensor (B, S), (B, 1, S) or (B, T, S), or `None`.
        **more: Masks under the names of `keras_hub.layers`, boolean or of integers, or
            `None`: (B, S) if the name ends with "padding_mask", else (B, T, S).

    Returns:
        Boolean tensor (B, 1, S) or (B, T, S), or `None`.

    Raises:
        TypeError: If a mask is neither boolean nor, with such a name, of integers.
        ValueError: If a mask has another rank.
    """
    given = {name: one for name, one in more.items() if one is not None}
    carried = carried_mask(inputs)
    # What Keras hands over as `encoder_output_mask` is what `encoder_output` carries.
    if mask is None or mask is carried:
        is_replaced = any(name.endswith("padding_mask") for name in given)
        mask = None if is_replaced else carried
    combined = with_queries(mask)
    for name, one in given.items():
        one = as_boolean(name, one)
        shape = "(B, S)" if name.endswith("padding_mask") else "(B, T, S)"
        if len(one.shape) != len(shape.split()):
            raise ValueError(
                f"`{name}` must have the shape {shape}. Received: shape "
                f"{tuple(one.shape)}"
            )
        one = with_queries(one)
        combined = one if combined is None else ops.logical_and(combined, one)
    return combined


class CallMasks(NamedTuple):
    """The arguments of a call that say what may be attended to."""

    mask: Any = None
    attention_mask: Any = None
    query_mask: Any = None
    value_mask: Any = None
    key_mask: Any = None
    use_causal_mask: bool = False
    sliding_window: int | None = None


def allowed_keys(masks, axes, num_heads, query, value, key):
    """Combines all that a call says of what may be attended to.

    A mask that `query` merely carries says nothing about keys and plays no part.

    Args:
        masks: `CallMasks`.
        axes: The axes attended over, from `attended_axes`.
        num_heads: Heads, H.
        query: Float tensor (B, ..., D_query).
        value: Float tensor (B, ..., D_value).
        key: Float tensor (B, ..., D_key).

    Returns:
        Boolean tensor that broadcasts to the scores (B, others..., H, T..., S...), or
        `None` if everything is allowed.

    Raises:
        TypeError: If a mask has another type than its rule says.
        ValueError: If a mask does not fit the inputs.
    """
    parts = _key_masks(masks, axes, query, value, key)
    # What Keras hands over as `query_mask` may be no more than the query carries.
    if masks.query_mask is not None and masks.query_mask is not carried_mask(query):
        parts.append(_of_positions("query_mask", masks.query_mask, axes, query))
    if masks.attention_mask is not None:
        parts.append(_of_scores(masks.attention_mask, axes, num_heads, query, value))
    if masks.use_causal_mask or masks.sliding_window is not None:
        parts.append(_of_distances(masks, axes, query, value))
    combined = None
    for part in parts:
        combined = part if combined is None else ops.logical_and(combined, part)
    return combined


def _key_masks(masks, axes, query, value, key):
    """Returns the masks of keys, each as one of the scores."""
    pairs = (
        (masks.value_mask, carried_mask(value)), (masks.key_mask, carried_mask(key)),
    )  # fmt: skip
    parts = []
    if masks.mask is None:
        given = [own if one is None else one for one, own in pairs]
    else:
        # This package's `mask` replaces what the inputs carry, which Keras hands over.
        given = [None if one is own else one for one, own in pairs]
        parts.append(_of_keys(masks.mask, axes, query, value))
    value_mask, key_mask = given
    if value_mask is not None:
        parts.append(_of_positions("value_mask", value_mask, axes, value))
    if key_mask is not None and key_mask is not value_mask:
        parts.append(_of_positions("key_mask", key_mask, axes, key))
    return parts


def _of_keys(mask, axes, query, value):
    """This package's `mask`, of the keys or of queries and keys."""
    if len(value.shape) > 3:
        return _of_positions("mask", mask, axes, value)
    mask = with_queries(mask)
    check_mask("mask", mask, query, value)
    return ops.expand_dims(mask, axis=1)  # (B, 1, 1 or T, S), for all heads


def _of_positions(name, mask, axes, inputs):
    """A mask (B, T) or (B, S), with the further axes of the inputs if there are any."""
    mask = as_boolean(name, mask)
    rank = len(inputs.shape) - 1
    if len(mask.shape) == 2 and axes == (1,):
        for _ in range(rank - 2):
            mask = ops.expand_dims(mask, -1)
    _check_fit(name, mask, inputs.shape[:-1])
    if rank > 2:
        others = [i for i in range(1, rank) if i not in axes]
        mask = ops.transpose(mask, (0, *others, *axes))
    heads = rank - len(axes)
    if name == "query_mask":
        mask = ops.expand_dims(mask, heads)
        for _ in axes:
            mask = ops.expand_dims(mask, -1)
        return mask
    for _ in (heads, *axes):
        mask = ops.expand_dims(mask, heads)
    return mask


def _of_scores(mask, axes, num_heads, query, value):
    """Keras' `attention_mask`: what is missing stands before the axes attended over."""
    mask = as_boolean("attention_mask", mask)
    attended = 2 * len(axes)
    sizes = scores_shape(axes, num_heads, query.shape, value.shape)
    if not attended <= len(mask.shape) <= len(sizes):
        raise ValueError(
            "`attention_mask` must have the shape (T, S), (B, T, S) or (B, H, T, S), "
            "with each axis attended over in place of T and S. Received: shape "
            f"{tuple(mask.shape)}"
        )
    for _ in range(len(sizes) - len(mask.shape)):
        mask = ops.expand_dims(mask, -attended - 1)
    _check_fit("attention_mask", mask, sizes)
    return mask


def _of_distances(masks, axes, query, value):
    """The causal mask and the window, by how far queries and keys are apart."""
    if len(axes) > 1:
        asked = "use_causal_mask" if masks.use_causal_mask else "sliding_window"
        raise ValueError(
            f"`{asked}` needs an order, so attention over one axis: choose it by "
            f"`attention_axes`. Received: inputs of rank {len(query.shape)}"
        )
    queries, keys = (
        ops.arange(shape_of(inputs)[axes[0]], dtype="int32")
        for inputs in (query, value)
    )
    queries, keys = queries[:, None], keys[None]
    if masks.sliding_window is None:
        near = queries >= keys
    else:
        window = masks.sliding_window - 1
        near = within_window(queries, keys, window, masks.use_causal_mask)
    for _ in range(len(query.shape) - 1):
        near = ops.expand_dims(near, 0)
    return near


def as_boolean(name, mask):
    if not hasattr(mask, "shape"):
        mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    if "int" in dtype or learns_shapes():
        return ops.not_equal(mask, 0)
    raise TypeError(
        f"`{name}` must be boolean or of integers, True or 1 where a position may be "
        f"attended to; cast one of 0.0 and 1.0 to bool. Received: dtype {dtype}"
    )


def _check_fit(name, mask, sizes):
    shape = tuple(mask.shape)
    fits = len(shape) == len(sizes) and all(
        own in (None, 1, size) or size is None
        for own, size in zip(shape, sizes, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must fit the inputs: each axis 1 or as in {tuple(sizes)}. "
            f"Received: shape {shape}"
        )
