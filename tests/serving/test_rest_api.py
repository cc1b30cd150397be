"""The contract with TensorFlow Serving: status codes and the shape of answers."""

from __future__ import annotations

import pytest
import tensorflow as tf
from starlette.testclient import TestClient

from keras_transformer.serving.app import make_app
from keras_transformer.serving.model import ServedModel
from tests.serving.tiny_models import write_model

URL = "/v1/models/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    return ServedModel(write_model(directory, 3))


@pytest.fixture(scope="module")
def app(model):
    return make_app(model, "box")


@pytest.fixture(scope="module")
def client(app):
    return TestClient(app, "http://localhost", raise_server_exceptions=False)


def predict(client, body, path=":predict"):
    content = {"content" if isinstance(body, bytes) else "json": body}
    return client.post(URL + path, **content)


@pytest.mark.parametrize("path", ["", "/versions/3", "/versions/03"])
def test_status_tells_the_version(client, path):
    response = client.get(URL + path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    status = {"error_code": "OK", "error_message": ""}
    version = {"version": "3", "state": "AVAILABLE", "status": status}
    assert response.json() == {"model_version_status": [version]}


@pytest.mark.parametrize("path", ["/metadata", "/versions/3/metadata"])
def test_metadata_tells_the_signatures(client, path):
    answer = client.get(URL + path).json()
    spec = {"name": "tiny", "signature_name": "", "version": "3"}
    assert answer["model_spec"] == spec
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    half = signatures["half"]
    sizes = [{"size": "-1", "name": ""}, {"size": "2", "name": ""}]
    assert half["inputs"] == {
        "x": {
            "dtype": "DT_FLOAT",
            "tensor_shape": {"dim": sizes, "unknown_rank": False},
            "name": half["inputs"]["x"]["name"],
        }
    }
    assert half["method_name"] == "tensorflow/serving/predict"
    assert "serving_default" in signatures


KINDS = {"flag": True, "wide": 2**53 + 1, "exact": 0.1, "small": 7}
KINDS_ANSWER = {"flag": False, "wide": -(2**53) - 1, "exact": 0.1, "small": 8}


@pytest.mark.parametrize("path", [":predict", "/versions/3:predict"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"instances": ["ab", "ß"]}, {"predictions": ["AB", "SS"]}),
        ({"instances": [{"text": "ab"}]}, {"predictions": ["AB"]}),
        ({"inputs": ["ab"]}, {"outputs": ["AB"]}),
        ({"inputs": {"text": ["ab"]}}, {"outputs": ["AB"]}),
        ({"inputs": []}, {"outputs": []}),
        ({"instances": ["ab"], "signature_name": ""}, {"predictions": ["AB"]}),
        (
            {"instances": [{"text": "ab", "times": 2}], "signature_name": "repeat"},
            {"predictions": [{"joined": "abab", "length": 4}]},
        ),
        (
            {"inputs": {"text": ["a"], "times": [3]}, "signature_name": "repeat"},
            {"outputs": {"joined": ["aaa"], "length": [3]}},
        ),
        (
            {"instances": [[0.4, 3]], "signature_name": "half"},
            {"predictions": [[0.2, 1.5]]},
        ),
        (
            {"instances": [KINDS, KINDS], "signature_name": "kinds"},
            {"predictions": [KINDS_ANSWER, KINDS_ANSWER]},
        ),
        (
            {"inputs": [1.5, 2], "signature_name": "total"},
            {"outputs": {"y": [1.5, 2.0], "sum": 3.5}},
        ),
        (
            {"instances": ["ü", {"b64": "/wA="}], "signature_name": "echo"},
            {"predictions": [{"b64": "w7w="}, {"b64": "/wA="}]},
        ),
        ({"inputs": [7, 8], "signature_name": "first"}, {"outputs": 7}),
    ],
)
def test_predict_answers_in_the_form_of_the_request(client, body, expected, path):
    response = predict(client, body, path)
    assert (response.status_code, response.json()) == (200, expected)
    assert response.headers["content-type"] == "application/json"


def test_not_a_number_goes_in_and_out(client):
    body = b'{"signature_name": "half", "instances": [[NaN, -Infinity]]}'
    assert predict(client, body).text == '{"predictions": [[NaN, -Infinity]]}'


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models/tiny", 404),
        ("GET", "/v1/foo", 400),
        ("GET", "/v1/models", 400),
        ("GET", "/v1/models/tiny/", 400),
        ("GET", "/v1/models/tiny:predict", 400),
        ("GET", "/v1/models/a/b", 400),
        ("GET", "/v1/models/tiny/versions/x", 400),
        ("GET", "/v1/models/tiny/versions/4", 404),
        ("GET", "/v1/models/x", 404),
        ("GET", "/v1/models/x%20y", 404),
        ("GET", "/v1/models/x/metadata", 404),
        ("GET", "/v1/models/tiny/versions/4/metadata", 404),
        ("GET", "/v1/models/tiny/labels/best", 400),
        ("POST", "/v1/models", 400),
        ("POST", "/v1/models/tiny", 400),
        ("POST", "/v1/models/tiny/metadata", 400),
        ("POST", "/v1/models/tiny:PREDICT", 400),
        ("POST", "/v1/models/tiny:explain", 400),
        ("POST", "/v1/models/x:predict", 404),
        ("POST", "/v1/models/tiny/versions/4:predict", 404),
        ("POST", "/v1/models/tiny/labels/a%2Fb:predict", 400),
        ("POST", "/v1/models/tiny:classify", 400),
        ("POST", "/v1/models/tiny:regress", 400),
        ("POST", "/v1/models/%74iny:predict", 200),
        ("PUT", "/v1/models/tiny:predict", 400),
        ("DELETE", "/v1/models/tiny", 400),
        ("BREW", "/v1/models/tiny", 400),
    ],
)
def test_paths_and_methods_have_their_status(client, method, path, status):
    response = client.request(method, path, content=b'{"instances": ["a"]}')
    assert response.status_code == status
    assert list(response.json()) == ["predictions" if status == 200 else "error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "must be JSON"),
        (b"{", "must be JSON"),
        ({"instances": ["a"], "signature_name": "x"}, "one of echo, first, half, "),
        ({"instances": ["a"], "signature_name": 1}, "Received: 1"),
        ({"instances": [1]}, "`text[0]` must be of type string. Received: 1"),
        ({"instances": [["a"]]}, "`text` must have the shape [None]"),
        ({"inputs": [1, 2, 3], "signature_name": "first"}, "Received: [3]"),
        (
            {"instances": [{"text": "a", "times": 0}], "signature_name": "repeat"},
            "times must be positive",
        ),
        ({"instances": [1.0], "signature_name": "total"}, "use `inputs`"),
    ],
)
def test_a_bad_body_is_told_in_words(client, body, message):
    response = predict(client, body)
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert "Graph execution error" not in response.text


def test_the_model_is_looked_up_after_the_json_is_read(client):
    assert predict(client, b"{", "/versions/99:predict").status_code == 400


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (tf.errors.ResourceExhaustedError, 429),
        (tf.errors.NotFoundError, 404),
        (tf.errors.UnimplementedError, 501),
        (tf.errors.InternalError, 500),
        (ZeroDivisionError, 500),
    ],
)
def test_an_error_of_a_run_has_its_status(client, model, monkeypatch, error, status):
    def fail(**inputs):
        is_of_tensorflow = issubclass(error, tf.errors.OpError)
        raise error(None, None, "broken") if is_of_tensorflow else error("broken")

    monkeypatch.setattr(model.signatures["serving_default"], "_function", fail)
    response = predict(client, {"instances": ["a"]})
    assert response.status_code == status
    assert "broken" in response.json()["error"]


def test_a_large_request_is_cut_and_answered_as_one(client):
    body = {"inputs": ["a"] * 64 + ["abc"], "signature_name": "letters"}
    outputs = predict(client, body).json()["outputs"]
    assert outputs["rows"] == [32] * 64 + [1]
    assert outputs["letters"] == [["a", "", ""]] * 64 + [["a", "b", "c"]]
    assert outputs["count"] == [1] * 64 + [3]


def test_a_signature_without_rows_in_its_outputs_runs_whole(client):
    body = {"inputs": [1.0] * 40, "signature_name": "total"}
    assert predict(client, body).json()["outputs"]["sum"] == 40


@pytest.mark.parametrize(
    ("own_name", "host", "status"),
    [
        ("127.0.0.1", "LocalHost:1", 200),
        ("127.0.0.1", "127.0.0.1:8501", 200),
        ("127.0.0.1", "[::1]:8501", 200),
        ("box", "BOX:8501", 200),
        ("fe80::1", "[fe80::1]", 200),
        ("0.0.0.0", "anything.example", 200),
        ("::", "anything.example", 200),
        ("127.0.0.1", "evil.example:8501", 400),
        ("127.0.0.1", "localhost.evil.example", 400),
        ("127.0.0.1", "evil.example@localhost", 400),
        ("127.0.0.1", "192.168.0.1", 400),
        ("box", "[::1", 400),
        ("box", "", 400),
    ],
)
def test_only_names_of_this_machine_are_answered(model, own_name, host, status):
    client = TestClient(make_app(model, own_name), "http://localhost")
    response = client.get(URL, headers={"Host": host})
    assert response.status_code == status
    assert ("AVAILABLE" in response.text) == (status == 200)
