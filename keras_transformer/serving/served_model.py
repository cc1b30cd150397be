"""A SavedModel in memory, its signatures called in batches. Needs TensorFlow."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import tensorflow as tf

# Loading a SavedModel needs the text operations that this import registers.
import tensorflow_text  # noqa: F401
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.serving.batching import Batcher, Workers
from keras_transformer.serving.config import ServingConfig
from keras_transformer.serving.predict_request import TensorSpec

_MAX_BATCH_SIZE = 32
_SIZE_IN_FILE = re.compile(r"^\s*max_batch_size\s*:?\s*\{\s*value\s*:\s*(\d+)", re.M)


class Signature:
    """One signature of a SavedModel.

    Args:
        function: The signature's function.
        definition: Its `SignatureDef`.
        workers: The threads that run signatures.
        max_batch_size: Most rows of a run.
    """

    def __init__(self, function, definition, workers: Workers, max_batch_size: int):
        self._function = function
        self.inputs = _specs(definition.inputs)
        self.outputs = _specs(definition.outputs)
        self.call = Batcher(self.run, workers, max_batch_size, self.has_batch_axis)

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs of one run; strings are object arrays of bytes."""
        tensors = {
            name: tf.constant(array, self.inputs[name].dtype)
            for name, array in inputs.items()
        }
        outputs = self._function(**tensors)
        return {name: _to_array(tensor) for name, tensor in outputs.items()}

    @property
    def has_batch_axis(self) -> bool:
        """Whether every input and output may have any number of rows.

        An output of unknown rank is assumed to.
        """
        outputs = [spec.shape for spec in self.outputs.values()]
        inputs = [spec.shape for spec in self.inputs.values()]
        return all(shape and shape[0] == -1 for shape in inputs) and all(
            shape is None or shape[:1] == (-1,) for shape in outputs
        )


class ServedModel:
    """One version of a model, ready for concurrent requests.

    Args:
        path: Directory of the SavedModel.
        workers: The threads that run signatures.
        config: How requests are cut.

    Raises:
        OSError: If there is no SavedModel.
        Exception: Whatever TensorFlow raises for one that is damaged.
    """

    def __init__(self, path: str | Path, workers: Workers, config: ServingConfig):
        # Keeps the functions of the signatures alive.
        self._module = tf.saved_model.load(str(path))
        self._definitions = _read_definitions(Path(path))
        size = config.max_batch_size or _size_in_file(Path(path).parent)
        self.signatures = {
            name: Signature(function, self._definitions[name], workers, size)
            for name, function in self._module.signatures.items()
        }

    def metadata(self) -> dict:
        """Returns the `SignatureDef`s as TensorFlow Serving's JSON has them."""
        return {
            name: json_format.MessageToDict(
                definition,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            for name, definition in sorted(self._definitions.items())
        }


def _size_in_file(directory):
    """Returns the batch size in TensorFlow Serving's file beside the versions."""
    file = directory / "batching_parameters.txt"
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    found = _SIZE_IN_FILE.search(text)
    return max(1, int(found[1])) if found else _MAX_BATCH_SIZE


def _read_definitions(path):
    saved_model = saved_model_pb2.SavedModel()
    saved_model.ParseFromString((path / "saved_model.pb").read_bytes())
    [graph] = [g for g in saved_model.meta_graphs if "serve" in g.meta_info_def.tags]
    return dict(graph.signature_def)


def _specs(infos):
    return {name: _spec(info) for name, info in sorted(infos.items())}


def _spec(info):
    shape = info.tensor_shape
    known = None if shape.unknown_rank else tuple(dim.size for dim in shape.dim)
    return TensorSpec(tf.as_dtype(info.dtype).name, known)


def _to_array(tensor):
    array = tensor.numpy()
    return np.asarray(array, object if tensor.dtype == tf.string else None)
