"""A SavedModel whose signatures take and return NumPy arrays. Needs TensorFlow."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.apps.serving.tensors import RequestError
from keras_transformer.files import read_json
from keras_transformer.formats.versions import load_saved_model

_ROWS = 32  # of one run, to limit its memory
_PAGE = "assets.extra/page.json"  # as `export_saved_model` writes it
# HTTP statuses of the codes of `tf.errors.OpError`, as in TensorFlow Serving's
# http_server.cc; 500 for others.
_STATUS = {3: 400, 4: 504, 5: 404, 8: 429, 9: 400, 11: 400, 12: 501, 14: 503}
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

    def __init__(self, path: Path):
        self.name = path.parent.resolve().name
        self.version = int(path.name)
        self.page = {"languages": None, "examples": []}
        if (path / _PAGE).exists():
            self.page = read_json(path / _PAGE)
        # Keeps the functions of the signatures alive.
        self._module = load_saved_model(path)
        most = most_rows(path.parent)
        self.signatures = {
            name: Signature(function, most)
            for name, function in self._module.signatures.items()
        }
        saved = saved_model_pb2.SavedModel()
        saved.ParseFromString((path / "saved_model.pb").read_bytes())
        graphs = [g for g in saved.meta_graphs if "serve" in g.meta_info_def.tags]
        if len(graphs) != 1:
            raise ValueError(
                f"{path} must have one graph for serving, with the tag 'serve'. "
                f"Received: {len(graphs)}"
            )
        [graph] = graphs
        self.definitions = {
            name: json_format.MessageToDict(
                definition,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            for name, definition in sorted(graph.signature_def.items())
        }


class Signature:
    """A signature; `inputs` has the `tf.TensorSpec` of each input."""

    def __init__(self, function, most_rows: int | None = None):
        self._most_rows = most_rows
        self.inputs = function.structured_input_signature[1]
        self._function = function
        # Whether rows are independent and their number is free.
        specs = [*self.inputs.values(), *function.structured_outputs.values()]
        self._has_rows = all(s.shape.rank and s.shape[0] is None for s in specs)

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs; strings are bytes in object arrays.

        An operation that fails raises a `RequestError` with its status.
        """
        rows = {len(array) for array in inputs.values()} if self._has_rows else ()
        if self._most_rows is not None and max(rows, default=0) > self._most_rows:
            raise RequestError(
                f"A request must have at most {self._most_rows} rows, `max_batch_size` "
                f"in batching_parameters.txt. Received: {max(rows)}"
            )
        try:
            if len(rows) != 1:
                return self._run(inputs)
            # Texts of similar length together need little padding.
            first = next(iter(inputs.values()))
            is_text = first.dtype == object and first.ndim == 1
            order = np.argsort([len(x) if is_text else 0 for x in first], kind="stable")
            parts = [
                self._run({n: x[order[i : i + _ROWS]] for n, x in inputs.items()})
                for i in range(0, max(*rows, 1), _ROWS)
            ]
        except tf.errors.OpError as error:
            message = _AROUND.sub("", error.message).strip()
            status = _STATUS.get(error.error_code, 500)
            raise RequestError(message, status) from error
        places = np.argsort(order)
        return {n: _joined([part[n] for part in parts])[places] for n in parts[0]}

    def _run(self, inputs):
        tensors = {
            name: tf.constant(array, self.inputs[name].dtype)
            for name, array in inputs.items()
        }
        return {
            name: np.asarray(x.numpy(), object if x.dtype == tf.string else None)
            for name, x in self._function(**tensors).items()
        }


def _joined(parts):
    """Returns the rows of several runs, padded to the longest."""
    shape = np.max([part.shape for part in parts], axis=0)
    shape[0] = sum(map(len, parts))
    padding = b"" if parts[0].dtype == object else 0
    joined = np.full(shape, padding, parts[0].dtype)
    start = 0
    for part in parts:
        rows = slice(start, start + len(part))
        joined[(rows, *map(slice, part.shape[1:]))] = part
        start += len(part)
    return joined
