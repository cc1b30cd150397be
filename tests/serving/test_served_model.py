"""SavedModels read and called with arrays."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.serving import ServingConfig
from keras_transformer.serving.batching import Workers
from keras_transformer.serving.errors import run_error
from keras_transformer.serving.served_model import ServedModel
from tests.serving.tiny_models import write_model


def load(path):
    return ServedModel(path, Workers(1), ServingConfig())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(write_model(tmp_path_factory.mktemp("tiny"), 1))


def test_inputs_and_outputs_are_told(model):
    half = model.signatures["half"]
    assert half.inputs == {"x": ("float32", (-1, 2))}
    assert half.outputs == {"y": ("float32", (-1, 2))}
    assert model.signatures["total"].outputs["sum"] == ("float32", ())
    assert set(model.signatures["repeat"].inputs) == {"text", "times"}


def test_strings_are_bytes_of_any_shape(model):
    text = np.array([b"a\0", b"\xff", b""], object)
    outputs = model.signatures["echo"].run({"data": text})
    assert outputs["same_bytes"].dtype == object
    assert outputs["same_bytes"].tolist() == text.tolist()
    letters = model.signatures["letters"].run({"text": np.array([b"ab", b"c"], object)})
    assert letters["letters"].tolist() == [[b"a", b"b"], [b"c", b""]]
    assert letters["count"].tolist() == [2, 1]


@pytest.mark.parametrize("name", ["serving_default", "repeat", "half", "letters"])
def test_signatures_with_rows_have_a_batch_axis(model, name):
    assert model.signatures[name].has_batch_axis


def test_an_output_of_fixed_size_is_no_batch_axis(model):
    assert not model.signatures["total"].has_batch_axis


@pytest.mark.parametrize("shape", [[], [2], [2, None], None])
def test_an_input_of_fixed_size_is_no_batch_axis(tmp_path, shape):
    module = tf.Module()
    module.same = tf.function(
        lambda x: {"y": tf.ensure_shape(tf.reshape(x, [-1]), [None])},
        input_signature=[tf.TensorSpec(shape, tf.int32, name="x")],
    )
    tf.saved_model.save(module, str(tmp_path), signatures={"same": module.same})
    assert not load(tmp_path).signatures["same"].has_batch_axis


def test_an_error_of_an_operation_has_its_code_and_its_own_words(model):
    inputs = {"text": np.array([b"a"], object), "times": np.array([0], "int32")}
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        model.signatures["repeat"].run(inputs)
    answer = run_error(error.value)
    assert answer.status == 400
    assert "times must be positive" in answer.message
    assert "Graph execution error" not in answer.message


@pytest.mark.parametrize("content", [None, b"", b"no SavedModel"])
def test_a_damaged_model_does_not_load(tmp_path, content):
    if content is not None:
        (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises((OSError, IndexError, RuntimeError, ValueError)):
        load(tmp_path)
