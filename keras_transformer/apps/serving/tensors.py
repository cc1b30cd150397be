"""Conversion of predict requests and answers between JSON and arrays.

As in TensorFlow Serving, rows (`instances`) yield `predictions`, columns (`inputs`)
yield `outputs`, and bytes are {"b64": "..."}: UTF-8, unless a name ends in "_bytes".
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np


class RequestError(Exception):
    """An error that is answered with a status and {"error": message}."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


def read_json(body: bytes, encoding: str = "identity") -> dict[str, Any]:
    """Returns the JSON object of a body, or raises a `RequestError`."""
    if body.startswith(b"\x1f\x8b"):
        encoding = "gzip"
    if encoding != "identity":
        raise RequestError(
            "The body must not be compressed: send JSON without `Content-Encoding`. "
            f"Received: {encoding}"
        )
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body must be JSON: {error}") from None
    if not isinstance(document, dict):
        raise RequestError(
            f"The body must be a JSON object. Received: {_shown(document)}"
        )
    return document


def read_inputs(document: dict, specs: dict) -> tuple[str, dict[str, np.ndarray]]:
    """Returns "instances" or "inputs", and an array for each `tf.TensorSpec`.

    Strings are bytes in object arrays. Invalid values raise a `RequestError`.
    """
    forms = [form for form in ("instances", "inputs") if form in document]
    if len(forms) != 1:
        raise RequestError(
            "A request must have either `instances`, a list of rows, or `inputs`, an "
            f"object of columns. Received: {_shown(sorted(document))}"
        )
    [form] = forms
    columns = (_rows if form == "instances" else _columns)(document[form], list(specs))
    return form, {name: _array(name, columns[name], specs[name]) for name in specs}


def _rows(rows, names):
    """Returns the columns of rows: objects, or plain values of a single input."""
    if not isinstance(rows, list) or not rows:
        raise RequestError(
            f"`instances` must be a list of rows. Received: {_shown(rows)}"
        )
    if len(names) == 1 and not any(map(_has_names, rows)):
        return {names[0]: rows}
    for place, row in enumerate(rows):
        if not _has_names(row) or sorted(row) != sorted(names):
            raise RequestError(
                f"`instances[{place}]` must be an object with {', '.join(names)}. "
                f"Received: {_shown(row)}"
            )
    return {name: [row[name] for row in rows] for name in names}


def _columns(columns, names):
    """Returns the columns: an object, or the values of a single input."""
    if len(names) == 1 and not _has_names(columns):
        return {names[0]: columns}
    if not _has_names(columns) or not set(names) <= set(columns):
        raise RequestError(
            f"`inputs` must be an object with {', '.join(names)}. Received: "
            f"{_shown(columns)}"
        )
    return columns


def _has_names(value):
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value):
    return list(value) == ["b64"] and isinstance(value["b64"], str)


def _array(name, values, spec):
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    leaves = np.array(values, object)  # Lists of unequal lengths stay lists.
    flat = leaves.reshape(-1)  # a view
    for place, leaf in enumerate(flat):
        if isinstance(leaf, list):
            raise RequestError(f"The lists of `{name}` must have equal lengths.")
        try:
            flat[place] = _value(leaf, dtype, may_be_bytes=name.endswith("_bytes"))
        except UnicodeDecodeError:
            raise RequestError(
                f"`{_where(name, leaves, place)}` must be UTF-8: other bytes are for "
                f"inputs whose name ends in _bytes. Received: {_shown(leaf)}"
            ) from None
        except UnicodeEncodeError:
            raise RequestError(
                f"`{_where(name, leaves, place)}` must be whole characters, and a lone "
                "surrogate is half of one: do not cut a text between the two of a "
                f"pair. Received: {leaf!r:.200}"
            ) from None
        except (ArithmeticError, KeyError, TypeError, ValueError):
            raise RequestError(
                f"`{_where(name, leaves, place)}` must be of type {spec.dtype.name}. "
                f"Received: {_shown(leaf)}"
            ) from None
    if not spec.shape.is_compatible_with(leaves.shape):
        raise RequestError(
            f"`{name}` must have the shape {spec.shape.as_list()}. Received: "
            f"{list(leaves.shape)}"
        )
    return leaves.astype(dtype)


def _where(name, leaves, place):
    """Returns how to name a place of an array, such as text[0]."""
    places = np.unravel_index(place, leaves.shape)
    return name + "".join(f"[{i}]" for i in places)


def _value(leaf, dtype, may_be_bytes):
    """Returns a JSON value for an array, or raises if it does not fit the type."""
    if dtype.kind == "O" and isinstance(leaf, dict) and _is_base64(leaf):
        text = "".join(leaf["b64"].split())
        content = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        if not may_be_bytes:
            content.decode("utf-8")
        return content
    types = {"O": [str], "b": [bool], "i": [int], "u": [int], "f": [int, float]}
    if type(leaf) not in types[dtype.kind]:
        raise TypeError
    if dtype.kind == "O":
        return leaf.encode("utf-8")
    with np.errstate(over="raise"):
        return dtype.type(leaf)


def _shown(value):
    """Returns the JSON of a value, cut after 200 characters."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text if len(text) <= 200 else f"{text[:200]}..."


def write_outputs(outputs: dict[str, np.ndarray], form: str) -> bytes:
    """Returns the body of an answer; a single output has no name."""
    # Outputs whose name ends in "_bytes" are {"b64": "..."}.
    columns = {
        name: _json(array, name.endswith("_bytes"))
        for name, array in sorted(outputs.items())
    }
    answer = columns if len(columns) > 1 else next(iter(columns.values()))
    if form == "inputs":
        document = {"outputs": answer}
    else:
        sizes = {array.shape[:1] for array in outputs.values()}
        if len(sizes) > 1 or () in sizes:
            raise RequestError(
                "This signature does not return a row for each of `instances`: use "
                "`inputs`."
            )
        if len(columns) > 1:
            rows = zip(*columns.values(), strict=True)
            answer = [dict(zip(columns, row, strict=True)) for row in rows]
        document = {"predictions": answer}
    # NaN and infinities are written as such, although JSON has no words for them.
    return json.dumps(document, ensure_ascii=False).encode("utf-8")


def _json(array, as_base64):
    """Returns an array as nested lists, or a single value."""
    if array.dtype == object:
        write = _base64_object if as_base64 else _text
        return np.asarray(np.frompyfunc(write, 1, 1)(array), object).tolist()
    if array.dtype == np.float32:
        if array.ndim > 1:  # Row by row, because a number takes 128 bytes as text.
            return [_json(row, as_base64) for row in array]
        # The shortest decimals of a float32: 0.2, not 0.200000003.
        array = array.astype("U").astype(np.float64)
    return array.tolist()


def _text(item):
    return item.decode("utf-8", "replace")


def _base64_object(item):
    return {"b64": base64.b64encode(item).decode("ascii")}
