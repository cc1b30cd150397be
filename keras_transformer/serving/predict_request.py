"""Bodies of predict requests: JSON to arrays, with TensorFlow Serving's rules.

The forms, checks and messages follow json_tensor.cc of TensorFlow Serving: clients see
them, and what it refuses must not pass here. Deliberate differences:

- JSON is parsed by Python: the text after "JSON Parse error:" is Python's, "Inf" must
  be written "Infinity", and of two equal keys the last one counts.
- A body that is not UTF-8 is refused; bytes are sent as {"b64": "..."}.
- Shapes are checked against the signature before anything runs, so a wrong one is
  always an error; TensorFlow Serving leaves it to the operations of the graph.
"""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

from keras_transformer.serving.errors import RequestError, bad_request
from keras_transformer.serving.json_arrays import (
    DTYPES,
    is_base64,
    quote,
    shape_text,
    to_array,
)


class TensorSpec(NamedTuple):
    """What a signature says of one input or output.

    Args:
        dtype: Name of the type, such as "string" or "float32".
        shape: Sizes, -1 where any is allowed; `None` if the rank is not known.
    """

    dtype: str
    shape: tuple[int, ...] | None


def parse_json(body: bytes) -> dict:
    """Returns the JSON object of a body.

    Raises:
        RequestError: If it is not valid JSON or no object.
    """
    if not body:
        raise bad_request("JSON Parse error: The document is empty")
    try:
        # TensorFlow Serving ignores a byte order mark.
        text = body.decode("utf-8-sig")
        document = json.loads(text, parse_float=_finite)
        if "\\ud" in text or "\\uD" in text:
            _check_surrogates(document)
    except UnicodeDecodeError as error:
        raise bad_request(
            f"JSON Parse error: Invalid encoding in string. at offset: {error.start}"
        ) from None
    except json.JSONDecodeError as error:
        raise bad_request(
            f"JSON Parse error: {error.msg} at offset: {error.pos}"
        ) from None
    except RecursionError:
        raise bad_request("JSON Parse error: nested too deeply") from None
    except ValueError as error:  # A number of thousands of digits.
        raise bad_request(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise bad_request(f"JSON Value: {quote(document)} Is not object")
    return document


def _finite(text):
    value = float(text)
    if math.isinf(value):
        raise ValueError("Number too big to be stored in double.")
    return value


def _check_surrogates(document):
    """Raises an error if a \\u escape gave half of a surrogate pair."""
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("The surrogate pair in string is invalid.") from None


def signature_name_of(document: dict) -> str:
    """Returns the signature that a request names, "serving_default" without one.

    Raises:
        RequestError: If the name is no string.
    """
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise bad_request(
            f"JSON Value: {quote(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name or "serving_default"


def read_predict(
    document: dict, specs: dict[str, TensorSpec]
) -> tuple[str, dict[str, np.ndarray]]:
    """Returns the form of a request and its arrays.

    Args:
        document: What `parse_json` returned.
        specs: The signature's inputs.

    Returns:
        "instances" (rows) or "inputs" (columns), and an array for each input; strings
        as object arrays of bytes.

    Raises:
        RequestError: If the values do not fit the inputs.
    """
    name, form = signature_name_of(document), _form_of(document)
    for spec in specs.values():
        if spec.dtype not in DTYPES:
            raise RequestError(501, f"Conversion of JSON Value to type: {spec.dtype}")
    if not specs:
        raise bad_request(f"Failed to get input map for signature: {name}")
    read = _read_rows if form == "instances" else _read_columns
    arrays = read(document[form], specs)
    for name, array in arrays.items():
        _check_shape(name, array.shape, specs[name].shape)
    return form, arrays


def _form_of(document):
    forms = [form for form in ("instances", "inputs") if form in document]
    if not forms:
        raise bad_request("Missing 'inputs' or 'instances' key")
    values = document[forms[0]]
    if len(forms) == 2:
        problem = (
            "Not formatted correctly expecting only one of 'inputs' or 'instances' "
            "keys to exist "
        )
    elif forms == ["instances"] and not isinstance(values, list):
        problem = "Excepting 'instances' to be an list/array"
    elif forms == ["instances"] and not values:
        problem = "No values in 'instances' array"
    else:
        return forms[0]
    raise bad_request(f"JSON Value: {quote(document)} {problem}")


def _read_rows(rows, specs):
    named = _is_named(rows[0])
    if not named and len(specs) > 1:
        raise bad_request(
            "instances is a plain list, but expecting list of objects as multiple "
            "input tensors required as per tensorinfo_map"
        )
    for index, row in enumerate(rows):
        if _is_named(row) != named:
            words = "object but got list" if named else "value/list but got object"
            raise bad_request(f"Expecting {words} at item {index} of input list")
        if named:
            _check_keys(index, row, specs)
    if not named:
        [(name, spec)] = specs.items()
        return {name: _read_column_of_rows(rows, spec.dtype)}
    return {
        name: _read_column_of_rows([row[name] for row in rows], spec.dtype, name)
        for name, spec in specs.items()
    }


def _is_named(row):
    return isinstance(row, dict) and not is_base64(row)


def _check_keys(index, row, specs):
    where = f"Failed to process element: {index}"
    for name in row:
        if name not in specs:
            raise bad_request(
                f"{where} key: {name} of 'instances' list. Error: JSON object: does "
                f"not have named input: {name}"
            )
    if len(row) != len(specs):
        raise bad_request(
            f"{where} of 'instances' list. JSON object: {quote(row)} keys must be "
            f"equal to: {','.join(sorted(specs))}"
        )


def _read_column_of_rows(rows, dtype, name=None):
    try:
        return to_array(rows, dtype)
    except ValueError:
        _raise_of_row(rows, dtype, name)
        raise


def _raise_of_row(rows, dtype, name):
    """Raises the error of the first row that is at fault."""
    first = None
    for index, row in enumerate(rows):
        try:
            array = to_array(row, dtype)
            first = array if first is None else first
            if array.size != first.size:
                raise ValueError(
                    f"Expecting tensor size: {first.size} but got: {array.size}"
                )
            if array.shape != first.shape:
                raise ValueError(
                    f"Expecting shape {shape_text(first.shape)} but got: "
                    f"{shape_text(array.shape)}"
                )
        except ValueError as error:
            key = "" if name is None else f" key: {name}"
            raise bad_request(
                f"Failed to process element: {index}{key} of 'instances' list. "
                f"Error: {error}"
            ) from None


def _read_columns(values, specs):
    if not isinstance(values, dict) or is_base64(values):
        if len(specs) > 1:
            raise bad_request(
                "inputs is a plain value/list, but expecting an object as multiple "
                "input tensors required as per tensorinfo_map"
            )
        values = {name: values for name in specs}
    arrays = {}
    for name, spec in specs.items():
        if name not in values:
            raise bad_request(f"Missing named input: {name} in 'inputs' object.")
        try:
            arrays[name] = to_array(values[name], spec.dtype)
        except ValueError as error:
            raise bad_request(str(error)) from None
    return arrays


def _check_shape(name, shape, expected):
    """Raises an error unless a shape has the rank and sizes of the signature."""
    if expected is None:
        return
    fits = len(shape) == len(expected) and all(
        wanted in (-1, size) for size, wanted in zip(shape, expected, strict=True)
    )
    if not fits:
        raise bad_request(
            f"Tensor name: {name} has shape {shape_text(shape)}, but the signature "
            f"expects {shape_text(expected)}"
        )
