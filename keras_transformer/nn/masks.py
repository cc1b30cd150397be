"""Boolean attention masks, True where a position may be attended to.

Public functions return masks that broadcast to (B, T, S): B batch, T queries, S keys.
Combine them with `&`. Keras' own masks are (B, S).
"""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.keras_private import learns_shapes
from keras_transformer.types import Tensor, TensorLike


def padding_mask(ids: TensorLike, pad_id: int = 0) -> Tensor:
    """Returns a mask of the keys that are not padding.

    Args:
        ids: Integer tensor (B, S).
        pad_id: Id of padding.

    Returns:
        Boolean tensor (B, 1, S).

    Raises:
        ValueError: If `pad_id` is not an integer.

    Example:
        >>> padding_mask(np.array([[5, 7, 0]]))  # [[[True, True, False]]]
    """
    check_number("pad_id", pad_id, int, or_tensor=True)
    return ops.expand_dims(ops.not_equal(ids, pad_id), axis=1)


def causal_mask(
    length: int | TensorLike, num_keys: int | TensorLike | None = None
) -> Tensor:
    """Returns the mask in which query t attends to keys 0 to t.

    Section 3.1 of Vaswani et al., 2017.

    Args:
        length: Number of queries, T; an integer or a scalar tensor.
        num_keys: Number of keys, S; default `length`.

    Returns:
        Boolean tensor (1, T, S).

    Raises:
        ValueError: If a number is negative.

    Example:
        >>> causal_mask(2)  # [[[True, False], [True, True]]]
    """
    _check_count("length", length)
    _check_count("num_keys", num_keys, optional=True)
    keys = ops.arange(length if num_keys is None else num_keys, dtype="int32")
    return (ops.arange(length, dtype="int32")[:, None] >= keys)[None]


def valid_length_mask(valid_lengths: TensorLike, length: int | TensorLike) -> Tensor:
    """Returns a mask of the first `valid_lengths` keys.

    Args:
        valid_lengths: Integer tensor (B,), or (B, T) with one length per query.
        length: Number of keys, S; an integer or a scalar tensor.

    Returns:
        Boolean tensor (B, 1, S) or (B, T, S).

    Raises:
        ValueError: If `valid_lengths` has another rank, or `length` is negative.

    Example:
        >>> valid_length_mask(np.array([1, 2]), 2)  # [[[True, False]], [[True, True]]]
    """
    _check_count("length", length)
    valid_lengths = ops.convert_to_tensor(valid_lengths, dtype="int32")
    shape = tuple(valid_lengths.shape)
    if len(shape) not in (1, 2):
        expected = "`valid_lengths` must have the shape (B,) or (B, T)"
        raise ValueError(f"{expected}. Received: shape {shape}")
    valid_lengths = valid_lengths[:, None] if len(shape) == 1 else valid_lengths
    return ops.arange(length, dtype="int32") < valid_lengths[:, :, None]


def _check_count(name, count, optional=False):
    check_number(name, count, int, optional=optional, or_tensor=True, minimum=0)


def attention_mask(mask: TensorLike | None) -> Tensor | None:
    """Returns a mask (B, S), (B, 1, S) or (B, T, S) as (B, 1, S) or (B, T, S).

    Raises:
        TypeError, ValueError: If it is not boolean, or has another rank.
    """
    if mask is None:
        return None
    mask = _boolean("mask", mask)
    shape = tuple(mask.shape)
    if len(shape) not in (2, 3):
        expected = "`mask` must have the shape (B, S) or (B, T, S)"
        raise ValueError(f"{expected}. Received: shape {shape}")
    if len(shape) == 3:
        return mask
    return ops.expand_dims(mask, axis=1)


def mask_of_keys(mask):
    """Returns a mask (..., 1, S) as (..., S).

    Raises:
        ValueError: If it differs between queries.
    """
    if mask.shape[-2] != 1:
        expected = "`mask` must be the same for all queries, (B, S) or (B, 1, S)"
        raise ValueError(f"{expected}. Received: shape {tuple(mask.shape)}")
    return ops.squeeze(mask, axis=-2)


def combined_mask(
    query, value, key, mask=None, value_mask=None, key_mask=None, scores_mask=None
):
    """Returns the masks of a call of attention as one that broadcasts to (B, H, T, S).

    `mask` replaces `value_mask` and `key_mask`, which Keras fills in.

    Raises:
        TypeError, ValueError: If a mask has a wrong type or does not fit the inputs.
    """
    parts = {}  # (B, H or 1, T or 1, S)
    if mask is not None:  # (B, S), (B, 1, S) or (B, T, S)
        parts["mask"] = ops.expand_dims(attention_mask(mask), axis=1)
    else:
        for name, one in (("value_mask", value_mask), ("key_mask", key_mask)):
            if one is not None:  # (B, S)
                one = _boolean(name, one, or_integers=True)
                parts[name] = ops.expand_dims(one, axis=(1, 2))
    if scores_mask is not None:  # `attention_mask`, (T, S), (B, T, S) or (B, H, T, S)
        one = _boolean("attention_mask", scores_mask, or_integers=True)
        missing = {2: (0, 1), 3: (1,)}.get(len(one.shape))  # The batch or the heads.
        parts["attention_mask"] = ops.expand_dims(one, missing) if missing else one
    # `None`: not known here.
    sizes = query.shape[0], None, query.shape[1], value.shape[1]
    combined = None
    for name, one in parts.items():
        shape = tuple(one.shape)
        fits = len(shape) == 4
        for own, size in zip(shape, sizes, strict=False):
            fits = fits and (None in (own, size) or own in (1, size))
        if not fits:
            expected = f"`{name}` must fit the inputs, (B, H, T, S) = {sizes}"
            raise ValueError(f"{expected}. Received: a mask that broadcasts as {shape}")
        combined = one if combined is None else ops.logical_and(combined, one)
    return combined


def _boolean(name, mask, or_integers=False):
    mask = mask if hasattr(mask, "shape") else ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    # When Keras infers shapes, all inputs are floats.
    if learns_shapes() or (or_integers and "int" in dtype):
        return ops.cast(mask, "bool")
    kind = "boolean or of integers" if or_integers else "boolean"
    expected = f"`{name}` must be {kind}, True where a position may be attended to"
    raise TypeError(f"{expected}. Received: dtype {dtype}")
