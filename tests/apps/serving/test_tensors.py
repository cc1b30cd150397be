"""JSON values to arrays and back."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.apps.serving.tensors import (
    RequestError,
    read_inputs,
    read_json,
    write_outputs,
)

TEXT = {"text": tf.TensorSpec([None], tf.string)}
PAIRS = {"x": tf.TensorSpec([None, 2], tf.float32)}
TWO = {"a": tf.TensorSpec([None], tf.int32), "b": tf.TensorSpec(None, tf.string)}
NESTED = []
for _ in range(300):
    NESTED = [NESTED]


def value(dtype, shape=None):
    return {"x": tf.TensorSpec(shape, dtype)}


@pytest.mark.parametrize(
    ("body", "specs", "expected"),
    [
        ({"instances": ["a", "b"]}, TEXT, {"text": [b"a", b"b"]}),
        ({"instances": [{"text": "a"}]}, TEXT, {"text": [b"a"]}),
        ({"instances": [{"b64": "YQ=="}]}, TEXT, {"text": [b"a"]}),
        ({"instances": [{"text": {"b64": "YQ=="}}]}, TEXT, {"text": [b"a"]}),
        ({"instances": [[1, 2], [3, 4]]}, PAIRS, {"x": [[1, 2], [3, 4]]}),
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
    form, arrays = read_inputs(body, specs)
    assert form in body
    assert {name: array.tolist() for name, array in arrays.items()} == expected


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (3, "int32", np.int32(3)),
        ([[1, 2], [3, 4], [5, 6]], "int64", np.array([[1, 2], [3, 4], [5, 6]])),
        ([1, 2.5, -0.1], "float32", np.array([1, 2.5, -0.1], "float32")),
        ([np.nan, np.inf, -np.inf], "float64", np.array([np.nan, np.inf, -np.inf])),
        ([True, False], "bool", np.array([True, False])),
        ([2**64 - 1], "uint64", np.array([2**64 - 1], "uint64")),
        ([-128, 127], "int8", np.array([-128, 127], "int8")),
        ([], "float32", np.zeros([0], "float32")),
        ([[], []], "int32", np.zeros([2, 0], "int32")),
    ],
)
def test_values_become_an_array_of_the_type(values, dtype, expected):
    array = read_inputs({"inputs": values}, value(dtype))[1]["x"]
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ü\0\N{GRINNING FACE}", "ü\0\N{GRINNING FACE}".encode()),
        ("", b""),
        ({"b64": "aGVsbG8="}, b"hello"),
        ({"b64": "aGVsbG8"}, b"hello"),
        ({"b64": " aGVs bG8=\n"}, b"hello"),
        ({"b64": ""}, b""),
    ],
)
def test_strings_become_bytes(text, expected):
    assert read_inputs({"inputs": [text]}, TEXT)[1]["text"].tolist() == [expected]


def test_other_bytes_than_utf_8_are_for_names_that_end_in_bytes():
    body = {"inputs": [{"b64": "YQ=="}, {"b64": "/wA="}]}
    specs = {"x_bytes": TEXT["text"]}
    assert read_inputs(body, specs)[1]["x_bytes"].tolist() == [b"a", b"\xff\0"]
    with pytest.raises(RequestError, match=r"`text\[1\]` must be UTF-8: other bytes"):
        read_inputs(body, TEXT)


@pytest.mark.parametrize(
    "body",
    [b"", b"  ", b'{"x": 1} y', b'{"x": "\xff"}', b'{"x": "a\x00b"}', b"[1]", b'"a"',
     b'{"x": ' + b"9" * 5000 + b"}", b"[" * 100_000, b'{"a":' * 100_000],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(RequestError, match="The body must be (JSON|a JSON object)"):
        read_json(body)
    # A byte order mark is passed over.
    assert read_json(b'\xef\xbb\xbf{"inputs": 1}') == {"inputs": 1}


@pytest.mark.parametrize(
    ("body", "specs", "words"),
    [
        ({}, TEXT, "either `instances`"),
        ({"inputs": [], "instances": []}, TEXT, "either `instances`"),
        ({"instances": {"text": "a"}}, TEXT, "`instances` must be a list"),
        ({"instances": []}, TEXT, "`instances` must be a list"),
        ({"instances": ["a"]}, TWO, "`instances[0]` must be an object with a, b"),
        ({"instances": [{"b64": "YQ=="}]}, TWO, "`instances[0]`"),
        ({"instances": [{"text": "a"}, "b"]}, TEXT, '`instances[1]` must be an obj'),
        ({"instances": ["a", {"text": "b"}]}, TEXT, "`instances[0]` must be an object"),
        ({"instances": [{"text": "a"}, {"x": "b"}]}, TEXT, "`instances[1]`"),
        ({"instances": [{"a": 1}]}, TWO, "`instances[0]`"),
        ({"instances": [{"a": 1, "b": "x"}, {"a": "y", "b": "x"}]}, TWO, "`a[1]`"),
        ({"instances": [[1, 2], [1]]}, PAIRS, "equal lengths"),
        ({"instances": [[1, 2], [[1, 2]]]}, PAIRS, "equal lengths"),
        ({"instances": [[1, 2, 3]]}, PAIRS, "[None, 2]. Received: [1, 3]"),
        ({"instances": [1]}, PAIRS, "[None, 2]. Received: [1]"),
        ({"inputs": "a"}, TEXT, "[None]. Received: []"),
        ({"inputs": {"b64": "YQ=="}}, TEXT, "[None]. Received: []"),
        ({"inputs": [1]}, TWO, "`inputs` must be an object with a, b"),
        ({"inputs": {"a": [1]}}, TWO, "`inputs` must be an object with a, b"),
        ({"inputs": ["a"]}, value("int32"), '`x[0]` must be of type int32. Received'),
        ({"inputs": [[1], [1.0]]}, value("int32"), "`x[1][0]` must be of type int32"),
        ({"inputs": [True]}, value("int32"), "Received: true"),
        ({"inputs": [1]}, value("bool"), "`x[0]` must be of type bool"),
        ({"inputs": [None]}, TEXT, "Received: null"),
        ({"inputs": [True]}, value("float32"), "of type float32"),
        ({"inputs": ["1"]}, value("float64"), "of type float64"),
        ({"inputs": [{"b64": "AA"}]}, value("float32"), "of type float32"),
        ({"inputs": [2**31]}, value("int32"), "of type int32"),
        ({"inputs": [256]}, value("uint8"), "of type uint8"),
        ({"inputs": [-1]}, value("uint64"), "of type uint64"),
        ({"inputs": [3.5e38]}, value("float32"), "of type float32"),
        ({"inputs": [10**400]}, value("float64"), "of type float64"),
        ({"inputs": [{"b64": "a"}]}, TEXT, "of type string"),
        ({"inputs": [{"b64": "YQ=*="}]}, TEXT, "of type string"),
        ({"inputs": [{"b64": "\N{SNOWMAN}"}]}, TEXT, "of type string"),
        ({"inputs": [{"b64": 1}]}, TEXT, "of type string"),
        ({"inputs": [{}]}, TEXT, "of type string"),
        ({"inputs": ["\ud800"]}, TEXT, "whole characters"),
        ({"inputs": NESTED}, value("int32"), "equal lengths"),
        ({"inputs": ["x" * 10_000]}, value("int32"), "..."),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_named(body, specs, words):
    with pytest.raises(RequestError) as error:
        read_inputs(body, specs)
    assert error.value.status == 400
    assert words in str(error.value)
    assert len(str(error.value).encode("utf-8")) < 400


def answer(outputs, form):
    return json.loads(write_outputs(outputs, form))


ROWS = {"b": np.array([[1], [2]], "int32"), "a": np.array([b"x", b"\xff"], object)}


def test_outputs_are_named_where_there_are_several():
    single = {"a": ROWS["a"]}
    assert answer(single, "instances") == {"predictions": ["x", "\ufffd"]}
    assert answer(single, "inputs") == {"outputs": ["x", "\ufffd"]}
    rows = [{"a": "x", "b": [1]}, {"a": "\ufffd", "b": [2]}]
    assert answer(ROWS, "instances") == {"predictions": rows}
    columns = {"a": ["x", "\ufffd"], "b": [[1], [2]]}
    assert answer(ROWS, "inputs") == {"outputs": columns}
    assert list(answer(ROWS, "inputs")["outputs"]) == ["a", "b"]


def test_names_that_end_in_bytes_are_base64():
    outputs = {"a_bytes": np.array([[b"\xff"], [b""]], object), "b_bytes": ROWS["b"]}
    encoded = [[{"b64": "/w=="}], [{"b64": ""}]]
    expected = {"a_bytes": encoded, "b_bytes": [[1], [2]]}
    assert answer(outputs, "inputs") == {"outputs": expected}
    single = {"a": np.array(b"x", object)}
    assert answer(single, "inputs") == {"outputs": "x"}
    body = write_outputs({"a": np.array(["ü".encode()], object)}, "inputs")
    assert body == '{"outputs": ["ü"]}'.encode()


@pytest.mark.parametrize("more", [np.ones([]), np.zeros(3)])
def test_outputs_that_make_no_rows_are_refused(more):
    for outputs in ({"c": np.ones([])}, ROWS | {"c": more}):
        with pytest.raises(RequestError, match="use `inputs`"):
            write_outputs(outputs, "instances")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", [0.2, 1 / 3, 16777216.0, 1e-7, 3.4e38, -0.0, 9e6])
def test_floats_are_written_in_the_fewest_digits_that_read_back(dtype, number):
    array = np.full((2, 3), number, dtype)
    written = answer({"x": array}, "inputs")["outputs"]
    np.testing.assert_array_equal(np.array(written, dtype), array)
    assert len(json.dumps(written[0][0])) <= len(json.dumps(number))


def test_numbers_and_truth_values_stay():
    for array in (np.int64(-3), np.array([[2**63]], "uint64"), np.array([True])):
        assert answer({"x": np.asarray(array)}, "inputs") == {"outputs": array.tolist()}
    array = np.array([[np.nan, np.inf, -np.inf]], "float32")
    expected = b'{"outputs": [[NaN, Infinity, -Infinity]]}'
    assert write_outputs({"x": array}, "inputs") == expected
