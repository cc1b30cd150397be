"""Bodies of predict requests, and the answers' bodies."""

from __future__ import annotations

import json

import numpy as np
import pytest

from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.predict_request import (
    TensorSpec,
    parse_json,
    read_predict,
)
from keras_transformer.serving.predict_response import write_outputs

TEXT = {"text": TensorSpec("string", (-1,))}
PAIRS = {"x": TensorSpec("float32", (-1, 2))}
TWO = {"a": TensorSpec("int32", (-1,)), "b": TensorSpec("string", None)}


def read(body, specs):
    return read_predict(parse_json(json.dumps(body).encode()), specs)[1]


@pytest.mark.parametrize(
    ("body", "specs", "expected"),
    [
        ({"instances": ["a", "b"]}, TEXT, {"text": [b"a", b"b"]}),
        ({"instances": [{"text": "a"}]}, TEXT, {"text": [b"a"]}),
        ({"instances": [{"b64": "YQ=="}]}, TEXT, {"text": [b"a"]}),
        ({"instances": [{"text": {"b64": "YQ=="}}]}, TEXT, {"text": [b"a"]}),
        (
            {"instances": [[1, 2], [3, 4], [5, 6]]},
            PAIRS,
            {"x": [[1, 2], [3, 4], [5, 6]]},
        ),
        (
            {"instances": [{"a": 1, "b": ["x"]}, {"b": ["y"], "a": 2}]},
            TWO,
            {"a": [1, 2], "b": [[b"x"], [b"y"]]},
        ),
        ({"inputs": ["a", "b"]}, TEXT, {"text": [b"a", b"b"]}),
        ({"inputs": {"text": ["a"]}}, TEXT, {"text": [b"a"]}),
        ({"inputs": []}, TEXT, {"text": []}),
        # A column may hold names that the signature does not know, as it may there.
        ({"inputs": {"a": [1], "b": "x", "c": 3}}, TWO, {"a": [1], "b": b"x"}),
    ],
)
def test_rows_and_columns_become_arrays(body, specs, expected):
    arrays = read(body, specs)
    assert {name: array.tolist() for name, array in arrays.items()} == expected


def test_a_byte_order_mark_is_passed_over():
    assert parse_json(b'\xef\xbb\xbf{"inputs": 1}') == {"inputs": 1}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        (b"  ", "JSON Parse error: Expecting value at offset: 2"),
        (b"instances = [1]", "JSON Parse error: Expecting value at offset: 0"),
        (b'{"instances": [1]} x', "JSON Parse error: Extra data at offset: 19"),
        (b'{"instances": ["\xff"]}', "Invalid encoding in string. at offset: 16"),
        (b'{"instances": ["\\ud800"]}', "The surrogate pair in string is invalid."),
        (b'{"instances": ["a\x00b"]}', "JSON Parse error: Invalid control character"),
        (b'{"instances": [1e999]}', "Number too big to be stored in double."),
        (b'{"x": ' + b"9" * 5000 + b"}", "JSON Parse error: Exceeds the limit"),
        (b"[" * 100_000, "JSON Parse error: nested too deeply"),
        (b'{"a":' * 100_000, "JSON Parse error: nested too deeply"),
        (b"[1]", "JSON Value: [1] Is not object"),
        (b'"a"', 'JSON Value: "a" Is not object'),
    ],
)
def test_what_is_no_json_object_is_named(body, message):
    with pytest.raises(RequestError) as error:
        parse_json(body)
    assert error.value.status == 400
    assert message in error.value.message


def test_a_whole_surrogate_pair_is_text():
    assert parse_json(b'{"x": "\\ud83d\\ude00"}') == {"x": "\N{GRINNING FACE}"}


@pytest.mark.parametrize(
    ("body", "specs", "message"),
    [
        ({}, TEXT, "Missing 'inputs' or 'instances' key"),
        ({"inputs": [], "instances": []}, TEXT, "expecting only one of 'inputs' or"),
        ({"instances": {"text": "a"}}, TEXT, "'instances' to be an list/array"),
        ({"instances": []}, TEXT, "No values in 'instances' array"),
        ({"instances": ["a"], "signature_name": 1}, TEXT, "must be a string value"),
        ({"instances": ["a"]}, TWO, "instances is a plain list"),
        ({"instances": [{"b64": "YQ=="}]}, TWO, "instances is a plain list"),
        ({"instances": [{"text": "a"}, "b"]}, TEXT, "Expecting object but got list at"),
        ({"instances": ["a", {"text": "b"}]}, TEXT, "got object at item 1 of input"),
        (
            {"instances": [{"text": "a"}, {"x": "b"}]},
            TEXT,
            "Failed to process element: 1 key: x of 'instances' list. Error: JSON "
            "object: does not have named input: x",
        ),
        ({"instances": [{"a": 1}]}, TWO, "keys must be equal to: a,b"),
        (
            {"instances": [{"a": 1, "b": "x"}, {"a": "y", "b": "x"}]},
            TWO,
            "Failed to process element: 1 key: a of 'instances' list. Error: JSON "
            'Value: "y" Type: String',
        ),
        ({"instances": ["a", 1]}, TEXT, "Failed to process element: 1 of 'instances'"),
        ({"instances": [[1, 2], [1]]}, PAIRS, "Expecting tensor size: 2 but got: 1"),
        ({"instances": [[1, 2], [[1, 2]]]}, PAIRS, "shape [2] but got: [1,2]"),
        ({"instances": [[1, 2, 3]]}, PAIRS, "x has shape [1,3], but the signature"),
        (
            {"instances": [1]},
            PAIRS,
            "x has shape [1], but the signature expects [-1,2]",
        ),
        ({"inputs": "a"}, TEXT, "text has shape [], but the signature expects [-1]"),
        ({"inputs": {"b64": "YQ=="}}, TEXT, "text has shape [], but the signature"),
        ({"inputs": [1]}, TWO, "inputs is a plain value/list, but expecting an object"),
        ({"inputs": {"a": [1]}}, TWO, "Missing named input: b in 'inputs' object."),
        ({"inputs": [[1, 2], [3]]}, PAIRS, "unexpected size: 1 at level: 1 expected"),
        ({"inputs": [1]}, {}, "Failed to get input map for signature: serving_default"),
    ],
)
def test_values_that_do_not_fit_the_signature_are_named(body, specs, message):
    with pytest.raises(RequestError) as error:
        read(body, specs)
    assert error.value.status == 400
    assert message in error.value.message


def test_an_input_type_without_json_is_unimplemented():
    with pytest.raises(RequestError, match="to type: bfloat16") as error:
        read({"inputs": [1]}, {"x": TensorSpec("bfloat16", None)})
    assert error.value.status == 501


def answer(outputs, form):
    return json.loads(write_outputs(outputs, form))


ROWS = {"b": np.array([[1], [2]], "int32"), "a": np.array([b"x", b"y"], object)}


def test_a_single_output_is_not_named():
    single = {"a": ROWS["a"]}
    assert answer(single, "instances") == {"predictions": ["x", "y"]}
    assert answer(single, "inputs") == {"outputs": ["x", "y"]}


def test_several_outputs_are_named_in_each_row_or_once():
    rows = [{"a": "x", "b": [1]}, {"a": "y", "b": [2]}]
    assert answer(ROWS, "instances") == {"predictions": rows}
    columns = {"a": ["x", "y"], "b": [[1], [2]]}
    assert answer(ROWS, "inputs") == {"outputs": columns}
    assert list(answer(ROWS, "inputs")["outputs"]) == ["a", "b"]


def test_names_that_end_in_bytes_are_base64():
    outputs = {"image_bytes": ROWS["a"], "size_bytes": ROWS["b"][:, 0]}
    columns = {"image_bytes": [{"b64": "eA=="}, {"b64": "eQ=="}], "size_bytes": [1, 2]}
    assert answer(outputs, "inputs") == {"outputs": columns}


def test_text_is_written_in_utf8():
    body = write_outputs({"a": np.array(["ü".encode()], object)}, "inputs")
    assert body == '{"outputs": ["ü"]}'.encode()


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "Cannot convert empty tensor map to JSON"),
        ({"s": np.float32(1)}, "Tensor name: s has no shape information "),
        ({"s": np.zeros([0])}, "Tensor name: s has invalid batch size: 0"),
        ({**ROWS, "c": np.zeros(3)}, "has inconsistent batch size: 3 expecting: 2"),
        ({"s": np.zeros(1, "complex64")}, "for tensor type: complex64"),
    ],
)
def test_outputs_that_make_no_rows_are_named(outputs, message):
    with pytest.raises(RequestError) as error:
        write_outputs(outputs, "instances")
    assert error.value.status == 400
    assert message in error.value.message
