"""The warm-up requests that an export writes for TensorFlow Serving."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.export.serving_files import write_warmup_requests
from keras_transformer.generation.pipeline import INPUTS
from tests import tiny_run

REQUESTS = "assets.extra/tf_serving_warmup_requests"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_run.saved_model(tmp_path_factory)


def read_requests(file):
    """The PredictRequests of a warm-up file."""
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.apis import prediction_log_pb2

    requests = []
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        # No field is unknown to the real classes.
        log.DiscardUnknownFields()
        assert len(log.SerializeToString()) == len(record)
        requests.append(log.predict_log.request)
    return requests


@pytest.fixture(scope="module")
def requests(path):
    return read_requests(path / REQUESTS)


def test_every_signature_is_warmed_up_alone_and_in_a_batch(requests):
    found = {}
    for request in requests:
        assert request.model_spec.name == "tiny"
        (size,) = {t.tensor_shape.dim[0].size for t in request.inputs.values()}
        found.setdefault(request.model_spec.signature_name, []).append(size)
    assert found == dict.fromkeys(INPUTS, [1, 1, 1, 8])


def test_every_warmup_request_runs_on_the_loaded_model(path, requests):
    loaded = tf.saved_model.load(str(path))
    for request in requests:
        signature = loaded.signatures[request.model_spec.signature_name]
        inputs = {
            name: tf.constant(tf.make_ndarray(tensor))
            for name, tensor in request.inputs.items()
        }
        specs = signature.structured_input_signature[1]
        assert {n: v.dtype for n, v in inputs.items()} == {
            n: spec.dtype for n, spec in specs.items()
        }
        texts = inputs["source" if "source" in inputs else "text"].numpy()
        assert all(len(text) > 5 for text in texts)
        outputs = signature(**inputs)
        (size,) = {len(values) for values in inputs.values()}
        assert {len(values) for values in outputs.values()} == {size}


def test_warmup_sentences_are_of_several_lengths_and_numbers_are_one(requests):
    lengths = {
        len(tf.make_ndarray(request.inputs["text"])[0].split())
        for request in requests
        if request.model_spec.signature_name == "serving_default"
        and request.inputs["text"].tensor_shape.dim[0].size == 1
    }
    assert min(lengths) <= 3 < 10 < max(lengths)
    sampled = [r for r in requests if r.model_spec.signature_name == "sample"]
    for request in sampled:
        for name, dtype in (("temperature", np.float32), ("seed", np.int64)):
            values = tf.make_ndarray(request.inputs[name])
            assert values.dtype == dtype
            assert (values == 1).all()


@pytest.mark.parametrize("length", [1, 127, 128, 129, 16_383, 16_384, 2_097_152])
def test_names_of_any_length_are_written_as_protocol_buffers(tmp_path, length):
    """A length takes one byte more at 128, 128^2 and 128^3."""
    name, signature = "n" * length, "s" * length
    spec = tf.TensorSpec([None], tf.string, name="text")
    function = tf.function(lambda text: text, input_signature=[spec])
    signatures = {signature: function.get_concrete_function()}
    write_warmup_requests(tmp_path, name, signatures)
    model_spec = read_requests(tmp_path / REQUESTS)[0].model_spec
    assert (model_spec.name, model_spec.signature_name) == (name, signature)
