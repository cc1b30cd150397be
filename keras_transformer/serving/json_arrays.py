"""Nested JSON lists to arrays and back, with TensorFlow Serving's rules.

The rules and messages follow json_tensor.cc of TensorFlow Serving. Deliberate
differences: a number outside the range of int8, int16 or uint8 is refused, not
wrapped; lists may nest no deeper than the 254 dimensions of a tensor; a value is quoted
in an error up to 200 characters; text that is not valid UTF-8 is written with U+FFFD
in place of the bad bytes, since JSON can hold no others.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from typing import Any

import numpy as np

_MOST_DIMENSIONS = 254
_QUOTED_CHARACTERS = 200
# The type holds every whole number up to this one.
_WHOLE_NUMBERS = {"float32": 2**24 - 1, "float64": 2**53 - 1}
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
DTYPES = ("string", "bool", *_WHOLE_NUMBERS, *_INTEGERS)


def to_array(value: Any, dtype: str) -> np.ndarray:
    """Returns the array of nested JSON lists, or of a single value.

    Args:
        value: Values, or lists of equal length of them.
        dtype: Name of the type, such as "string".

    Raises:
        ValueError: If lists differ in length or depth or a value does not fit `dtype`.
    """
    shape = _shape_of(value)
    leaves = [value]
    # Level by level, without recursion: deep nesting cannot exhaust the stack.
    for level, size in enumerate(shape):
        for item in leaves:
            if not isinstance(item, list):
                raise ValueError(
                    f"JSON Value: {quote(item)} found at incorrect level: "
                    f"{level + 1} in the JSON DOM. Expected at level: {len(shape)}"
                )
            if len(item) != size:
                raise ValueError(
                    f"Encountered list at unexpected size: {len(item)} at level: "
                    f"{level} expected size: {size}"
                )
        leaves = list(itertools.chain.from_iterable(leaves))
    for item in leaves:
        if isinstance(item, list):
            raise ValueError(
                f"Encountered list at unexpected level: {len(shape)} expected < "
                f"{len(shape)}"
            )
    return _convert(leaves, dtype).reshape(shape)


def _shape_of(value):
    """Returns the lengths of the first list of each level, as the shape."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > _MOST_DIMENSIONS:
            raise ValueError(
                f"Lists nested deeper than the {_MOST_DIMENSIONS} dimensions of a "
                "tensor"
            )
        if not value:
            break
        value = value[0]
    return shape


def _convert(leaves, dtype):
    if dtype == "string":
        array = np.empty(len(leaves), object)
        array[:] = [_to_bytes(leaf) for leaf in leaves]
        return array
    if dtype in _WHOLE_NUMBERS:
        return np.array([_to_float(leaf, dtype) for leaf in leaves], dtype)
    if dtype in _INTEGERS:
        limits = np.iinfo(dtype)
        for leaf in leaves:
            if type(leaf) is not int or not limits.min <= leaf <= limits.max:
                raise _type_error(leaf, dtype)
        return np.array(leaves, dtype)
    if dtype == "bool":
        for leaf in leaves:
            if type(leaf) is not bool:
                raise _type_error(leaf, dtype)
        return np.array(leaves, bool)
    raise ValueError(f"`dtype` must be one of {DTYPES}. Received: dtype={dtype!r}")


def _to_bytes(leaf):
    if isinstance(leaf, str):
        return leaf.encode("utf-8")
    if not isinstance(leaf, dict):
        raise _type_error(leaf, "string")
    if not is_base64(leaf):
        raise ValueError(
            f"JSON Value: {quote(leaf)} not formatted correctly for base64 data"
        )
    text = "".join(leaf["b64"].split())
    try:
        # As TensorFlow Serving does, the padding may be left out.
        padding = "" if "=" in text else "=" * (-len(text) % 4)
        return base64.b64decode(text + padding, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("Unable to base64 decode") from None


def is_base64(value: dict) -> bool:
    """Whether a JSON object stands for bytes: {"b64": "..."} and nothing else."""
    return len(value) == 1 and isinstance(value.get("b64"), str)


def _to_float(leaf, dtype):
    if type(leaf) not in (int, float):
        raise _type_error(leaf, dtype)
    if isinstance(leaf, int) and -(2**63) <= leaf < 2**64:
        fits = abs(leaf) <= _WHOLE_NUMBERS[dtype]
    else:
        # TensorFlow Serving reads a longer whole number as a float.
        largest = float(np.finfo(dtype).max)
        fits = leaf != leaf or abs(leaf) == math.inf or abs(leaf) <= largest
    if not fits:
        raise ValueError(
            f"Cannot convert JSON value: {quote(leaf)} to "
            f"{'float' if dtype == 'float32' else 'double'} without loss of precision."
        )
    return float(leaf)


_TYPE_NAMES = {
    type(None): "Null",
    bool: "Bool",
    dict: "Object",
    list: "Array",
    str: "String",
    int: "Number",
    float: "Number",
}
_DTYPE_NAMES = {"float32": "float", "float64": "double"}


def _type_error(leaf, dtype):
    kind = str(leaf) if isinstance(leaf, bool) else _TYPE_NAMES[type(leaf)]
    return ValueError(
        f"JSON Value: {quote(leaf)} Type: {kind} is not of expected type: "
        f"{_DTYPE_NAMES.get(dtype, dtype)}"
    )


def quote(value: Any) -> str:
    """Returns the JSON of a value, cut short: it may be megabytes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "..."
    cut = len(text) > _QUOTED_CHARACTERS
    return text[:_QUOTED_CHARACTERS] + "..." if cut else text


def shape_text(shape: tuple[int, ...]) -> str:
    """Returns a shape as TensorFlow Serving writes it, such as "[2,3]"."""
    return "[" + ",".join(map(str, shape)) + "]"


def to_json(array: np.ndarray, as_base64: bool = False) -> Any:
    """Returns an array as nested lists, or a single value.

    Args:
        array: Values of one of `DTYPES`; strings as bytes in an object array.
        as_base64: Whether strings are written as {"b64": "..."}.

    Raises:
        ValueError: If the array has another type.
    """
    if array.dtype == object:
        write = _base64_object if as_base64 else _text
        written = np.empty(array.size, object)
        written[:] = [write(item) for item in array.ravel()]
        return written.reshape(array.shape).tolist()
    if array.dtype.name not in DTYPES:
        raise ValueError(
            f"Failed to write JSON value for tensor type: {array.dtype.name}"
        )
    if array.dtype == np.float32:
        if array.ndim > 1:  # Row by row: as text, a number takes 128 bytes.
            return [to_json(row) for row in array]
        # The shortest decimals that read back as this float32: 0.2, not 0.200000003.
        array = array.astype("U").astype(np.float64)
    return array.tolist()


def _text(item):
    return item.decode("utf-8", "replace")


def _base64_object(item):
    return {"b64": base64.b64encode(item).decode("ascii")}
