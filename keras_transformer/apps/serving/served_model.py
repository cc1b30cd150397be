"""A SavedModel whose signatures take and return NumPy arrays. Needs TensorFlow."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.apps.serving.tensors import RequestError
from keras_transformer.formats.versions import load_saved_model
from keras_transformer.search.run_directory import read_if_there
from keras_transformer.text.in_graph import with_limit

_PAGE = "assets.extra/page.json"  # as `export_saved_model` writes it
# HTTP statuses of the codes of `tf.errors.OpError`, as in TensorFlow Serving's
# http_server.cc; 500 for others.
_STATUS = {3: 400, 4: 504, 5: 404, 8: 429, 9: 400, 11: 400, 12: 501, 14: 503}
# Most bytes of all texts of a request. No token is shorter than a byte.
MOST_BYTES = 20_000
# The line of batching_parameters.txt with the most rows of a request.
_MOST_ROWS = re.compile(r"^\s*max_batch_size\s*{\s*value:\s*(\d+)", re.MULTILINE)
# What TensorFlow adds to the message of an operation in Python.
_AROUND = re.compile(
    r"\AGraph execution error:.*?<stack traces unavailable>\s*| \[Op:\w+\]\Z", re.DOTALL
)


def most_rows(directory: Path) -> int | None:
    """Returns the most rows of a request by batching_parameters.txt, if it says so."""
    file = directory / "batching_parameters.txt"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = _MOST_ROWS.search(text)
    return None if found is None else int(found[1])


class ServedModel:
    """One version of an export: the SavedModel in NAME/VERSION.

    `page` has the `languages` and `examples` that the export wrote for a page.
    """

    def __init__(self, path: Path, doubt_above: float | None = None):
        self.name = path.parent.resolve().name
        self.version = int(path.name)
        self.page = read_if_there(path / _PAGE, {"languages": None, "examples": []})
        # Keeps the functions of the signatures alive.
        self._module = load_saved_model(path)
        most = most_rows(path.parent)
        self.signatures = {
            name: Signature(function, most, doubt_above)
            for name, function in self._module.signatures.items()
        }
        saved = saved_model_pb2.SavedModel()
        saved.ParseFromString((path / "saved_model.pb").read_bytes())
        [graph] = saved.meta_graphs  # of more than one loading fails
        self.definitions = {
            name: json_format.MessageToDict(
                definition,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            for name, definition in sorted(graph.signature_def.items())
        }


def check_bytes(inputs: dict[str, np.ndarray]):
    """Raises a `RequestError` unless the texts of a request are short enough."""
    texts = (array for array in inputs.values() if array.dtype == object)
    size = sum(len(text) for array in texts for text in array.flat)
    if size > MOST_BYTES:
        raise RequestError(
            f"A request must have at most {MOST_BYTES:,} bytes of text (UTF-8): "
            f"send the text in parts. Received: {size:,}"
        )


class Signature:
    """A signature; `inputs` has the `tf.TensorSpec` of each input."""

    def __init__(
        self,
        function,
        most_rows: int | None = None,
        doubt_above: float | None = None,
    ):
        self._most_rows = most_rows
        self._doubt_above = doubt_above
        self.inputs = function.structured_input_signature[1]
        self._function = function

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs; strings are bytes in object arrays.

        An operation that fails raises a `RequestError` with its status.
        """
        rows = max((len(array) for array in inputs.values() if array.ndim), default=0)
        if self._most_rows is not None and rows > self._most_rows:
            raise RequestError(
                f"A request must have at most {self._most_rows} rows, `max_batch_size` "
                f"in batching_parameters.txt. Received: {rows}"
            )
        check_bytes(inputs)
        tensors = {
            name: tf.constant(array, self.inputs[name].dtype)
            for name, array in inputs.items()
        }
        try:
            outputs = with_limit(self._function(**tensors), self._doubt_above)
        except tf.errors.OpError as error:
            message = _AROUND.sub("", error.message).strip()
            status = _STATUS.get(error.error_code, 500)
            raise RequestError(message, status) from error
        return {
            name: np.asarray(x.numpy(), object if x.dtype == tf.string else None)
            for name, x in outputs.items()
        }
