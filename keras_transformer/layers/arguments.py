"""Checks of the arguments that several layers share.

Those of tensors read shapes and types that are known when a graph is traced, so they
add no operation to it.
"""

from __future__ import annotations

import keras
from keras import ops

# What a list or tuple that is no shape may hold.
_NO_SIZES = (tuple, list, dict, str, float)


def check_size(name, value, optional=False):
    """Raises `ValueError` unless `value` is a positive integer (or an allowed None)."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}"
        )


def check_rate(name, value):
    """Raises `ValueError` unless `value` is a number in [0, 1)."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a number in [0, 1). Received: {name}={value!r}"
        )


def aliased(name, value, alias, given, default):
    """Returns what an argument and another name for it say together.

    Args:
        name: The argument's name.
        value: What was given by it.
        alias: Its other name.
        given: What was given by that, or `None`.
        default: The argument's default.

    Raises:
        ValueError: If both were given and differ.
    """
    if given is None:
        return value
    if value not in (default, given):
        raise ValueError(
            f"`{alias}` is another name for `{name}`: give one of them. Received: "
            f"{name}={value!r}, {alias}={given!r}"
        )
    return given


def check_positions(start, length, max_length):
    """Raises `ValueError` if a table of learned positions is too short for an input.

    If `start` is a tensor, only the length is checked: it comes from a decoding loop,
    for which `start_decoding` has checked the longest output.

    Args:
        start: Position of the first element, an integer or a scalar tensor.
        length: Elements of the input, or `None` if they are known only at run time.
        max_length: Rows of the table.
    """
    first = start if isinstance(start, int) else 0
    if length is not None and first + length > max_length:
        raise ValueError(
            "The input is longer than the learned positions; raise `max_length` or "
            f"use sinusoidal ones. Received: {length} positions, start={first}, "
            f"max_length={max_length}"
        )


def check_axes(name, given, *axes):
    """Raises `TypeError` or `ValueError` unless an argument is a tensor of these axes.

    Args:
        name: Name of the argument.
        given: What came: a tensor, or as Keras gives it to `build`, a shape.
        *axes: Letters of the axes; "..." stands for any number of them.
    """
    if type(given).__name__ == "RaggedTensor":
        raise TypeError(
            f"`{name}` must be a dense tensor, padded: `to_tensor()` makes one of a "
            f"ragged tensor. Received: a RaggedTensor of shape {tuple(given.shape)}"
        )
    shape = getattr(given, "shape", given)
    if getattr(shape, "rank", 0) is None:
        return  # TensorFlow does not know the number of axes.
    if isinstance(shape, dict) or not hasattr(shape, "__iter__"):
        _raise_not_one(name, given, axes)
    shape = tuple(shape)
    if any(isinstance(n, _NO_SIZES) or hasattr(n, "shape") for n in shape):
        _raise_not_one(name, given, axes)
    least = len(axes) - axes.count("...")
    if len(shape) < least or (len(shape) > least and "..." not in axes):
        raise ValueError(
            f"`{name}` must have the shape ({', '.join(axes)}). Received: shape {shape}"
        )


def check_inputs(query, value, key, *axes):
    """Raises unless the inputs of an attention are tensors whose axes agree.

    Args:
        query: A tensor or its shape.
        value: Likewise.
        key: Likewise.
        *axes: The query's, as for `check_axes`; the others have S in place of T.

    Raises:
        TypeError: If one is no tensor.
        ValueError: If one has other axes, or two disagree on one.
    """
    check_axes("query", query, *axes)
    if value is query and key is query:
        return
    axes = ["S" if axis == "T" else axis for axis in axes]
    check_axes("value", value, *axes)
    check_axes("key", key, *axes)
    shapes = [tuple(getattr(one, "shape", one)) for one in (query, value, key)]
    received = "query {}, value {}, key {}".format(*shapes)
    query, value, key = shapes
    if len(query) != len(value) or not _agree(value[1:-1], key[1:-1]):
        raise ValueError(
            "`value` and `key` must have as many axes as `query`, and the same sizes "
            f"but for the last. Received: shapes {received}"
        )
    if not _agree(query[:1], value[:1]) or not _agree(query[:1], key[:1]):
        raise ValueError(
            "`query`, `value` and `key` must have as many rows (the first axis). "
            f"Received: shapes {received}"
        )


def _agree(first, second):
    """Whether two lists of sizes are the same where both are known."""
    known = zip(first, second, strict=False)
    return len(first) == len(second) and all(
        one is None or other is None or one == other for one, other in known
    )


def default_inputs(query, value, key, *axes):
    """Returns value and key of a call: by default those of self-attention.

    Args:
        query: Float tensor (B, ..., D_query).
        value: Float tensor (B, ..., D_value); default `query`.
        key: Float tensor (B, ..., D_key); default `value`.
        *axes: As for `check_inputs`.

    Raises:
        TypeError: If one is no tensor.
        ValueError: If there is a key without a value, one has other axes, or two
            disagree on one.
    """
    if value is None and key is not None:
        raise ValueError(
            "`key` needs a `value` beside it. Received: a `key` and no `value`"
        )
    value = query if value is None else value
    key = value if key is None else key
    check_inputs(query, value, key, *axes)
    return value, key


def _raise_not_one(name, value, axes):
    raise TypeError(
        f"`{name}` must be one tensor of shape ({', '.join(axes)}). Received: "
        f"{_described(value)}"
    )


def _described(value):
    if isinstance(value, dict):
        return f"a dictionary with the keys {', '.join(map(repr, value))}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "shape"):
        return f"one tensor of shape {tuple(value.shape)}"
    return f"{value!r:.80}"


def integer_ids(name, ids, *axes):
    """Checks ids and returns them as integers.

    A `keras.Sequential` without an `Input` gives float32 in their place, which holds
    all ids up to 2^24; those are cast, as Keras' own `Embedding` does.

    Args:
        name: Name of the argument.
        ids: What came.
        *axes: As for `check_axes`.

    Returns:
        Integer tensor.

    Raises:
        TypeError: If they are no numbers, or numbers in half precision.
        ValueError: If they have other axes.
    """
    check_axes(name, ids, *axes)
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" in dtype:
        return ids
    if dtype not in ("float32", "float64"):
        # Under mixed precision Keras rounds floats: to bfloat16, 257 becomes 256.
        raise TypeError(
            f"`{name}` must be integers; a model of Keras gives them with `keras.Input("
            f"shape, dtype='int32')`. Received: dtype {dtype}"
        )
    return ops.cast(ids, "int32")


def check_mask(name, mask, query, key):
    """Raises `ValueError` unless a mask fits what it masks.

    Args:
        name: Name of the argument.
        mask: Boolean tensor (B, 1, S) or (B, T, S), as `attention_mask` returns it, or
            `None`.
        query: Float tensor (B, T, D).
        key: Float tensor (B, S, D).
    """
    if mask is None or len(mask.shape) != 3:
        return
    sizes = query.shape[0], query.shape[1], key.shape[1]
    allowed = ({1, sizes[0]}, {1, sizes[1]}, {sizes[2]})
    for size, fits in zip(mask.shape, allowed, strict=True):
        if size is not None and None not in fits and size not in fits:
            raise ValueError(
                f"`{name}` must have the shape (B, S), (B, 1, S) or (B, T, S) with "
                "(B, T, S) = {}. Received: shape {}".format(sizes, tuple(mask.shape))
            )


def mask_of_keys(mask):
    """Returns a mask that is the same for all queries, without their axis.

    Args:
        mask: Boolean tensor (B, 1, S).

    Returns:
        Boolean tensor (B, S).

    Raises:
        ValueError: If it has another shape.
    """
    if mask.shape[1] != 1:
        raise ValueError(
            "`mask` must be the same for all queries, (B, S) or (B, 1, S); what is "
            "causal is so by itself. Received: shape "
            f"{tuple(mask.shape)}"
        )
    return mask[:, 0]


def check_pair(name, value, *parts):
    """Raises `TypeError` unless `value` is a tuple or list of two.

    Args:
        name: Name of the argument.
        value: What came.
        *parts: What the two are.
    """
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(
            f"`{name}` must be a pair, ({', '.join(parts)}). Received: "
            f"{_described(value)}"
        )
