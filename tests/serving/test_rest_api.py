"""The REST interface over the loopback address, with real SavedModels."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import socket
import threading

import httpx
import pytest
import tensorflow as tf

from keras_transformer.export.serving_files import write_serving_files
from keras_transformer.serving import ServingConfig
from keras_transformer.serving.batching import Workers
from keras_transformer.serving.served_model import ServedModel
from tests.serving.tiny_models import running, wait_until, write_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    write_model(directory, 3)
    return directory


@pytest.fixture(scope="module")
def server(directory):
    with running(directory) as server:
        yield server


def available(version, state="AVAILABLE"):
    status = {"error_code": "OK", "error_message": ""}
    return {"version": str(version), "state": state, "status": status}


@pytest.mark.parametrize(
    "path", ["", "/versions/3", "/versions/03", f"/versions/{'0' * 5000}3"]
)
def test_status_tells_the_versions(server, path):
    response = server.client.get(server.url + path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"model_version_status": [available(3)]}


@pytest.mark.parametrize("path", ["/metadata", "/versions/3/metadata"])
def test_metadata_tells_the_signatures(server, path):
    answer = server.client.get(server.url + path).json()
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
    ],
)
@pytest.mark.parametrize("path", [":predict", "/versions/3:predict"])
def test_predict_answers_in_the_form_of_the_request(server, body, expected, path):
    response = server.predict(body, path)
    assert (response.status_code, response.json()) == (200, expected)


def test_not_a_number_goes_in_and_out(server):
    body = b'{"signature_name": "half", "instances": [[NaN, -Infinity]]}'
    assert server.predict(body).text == '{"predictions": [[NaN, -Infinity]]}'


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/", 404, "Not found: /. GET /v1/models/tiny says whether"),
        ("GET", "/v2/models/tiny", 404, "Not found: /v2/models/tiny"),
        ("GET", "/v1/foo", 400, "Malformed request: GET /v1/foo"),
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/tiny/", 400, "Malformed request: GET"),
        ("GET", "/v1/models/tiny:predict", 400, "Malformed request: GET"),
        ("GET", "/v1/models/a/b", 400, "Malformed request: GET /v1/models/a/b"),
        ("GET", "/v1/models/tiny/versions/x", 400, "Malformed request"),
        ("GET", "/v1/models/tiny/versions/4", 404, "Could not find version 4 of model"),
        ("GET", "/v1/models/x", 404, "Could not find any versions of model x"),
        ("GET", "/v1/models/x%20y", 404, "Could not find any versions of model x y"),
        ("GET", "/v1/models/x/metadata", 404, "Servable not found for request: Lat"),
        ("GET", "/v1/models/tiny/versions/4/metadata", 404, "Specific(tiny, 4)"),
        ("GET", f"/v1/models/tiny/versions/{2**63}", 400, "Failed to convert version"),
        ("GET", f"/v1/models/tiny/versions/{'9' * 5000}", 400, "Failed to convert"),
        ("GET", "/v1/models/tiny/labels/best", 400, "Malformed request: GET"),
        ("POST", "/v1/models", 400, "Malformed request: POST /v1/models"),
        ("POST", "/v1/models/tiny", 400, "Malformed request: POST"),
        ("POST", "/v1/models/tiny/metadata", 400, "Malformed request: POST"),
        ("POST", "/v1/models/tiny:PREDICT", 400, "Malformed request: POST"),
        ("POST", "/v1/models/tiny:explain", 400, "Malformed request: POST"),
        ("POST", "/v1/models/x:predict", 404, "Servable not found for request: La"),
        ("POST", "/v1/models/tiny/versions/4:predict", 404, "Specific(tiny, 4)"),
        ("POST", "/v1/models/tiny/labels/a%2Fb:predict", 400, "Malformed request"),
        ("POST", "/v1/models/tiny:classify", 400, "Malformed request: POST"),
        ("POST", "/v1/models/tiny:regress", 400, "Malformed request: POST"),
        ("PUT", "/v1/models/tiny:predict", 400, "Malformed request: PUT"),
        ("DELETE", "/v1/models/tiny", 400, "Malformed request: DELETE"),
        ("BREW", "/v1/models/tiny", 400, "Malformed request: BREW"),
    ],
)
def test_wrong_paths_and_methods_are_errors(server, method, path, status, message):
    url = httpx.URL(server.url).copy_with(raw_path=path.encode())
    response = server.client.request(method, url, content=b'{"instances": ["a"]}')
    assert response.status_code == status
    assert message in response.json()["error"]
    assert list(response.json()) == ["error"]


@pytest.mark.parametrize(
    "path", ["/V1/Models/tiny:predict", "/v1/models/%74iny:predict"]
)
def test_paths_are_read_as_tensorflow_serving_reads_them(server, path):
    url = httpx.URL(server.url).copy_with(raw_path=path.encode())
    response = server.client.post(url, json={"instances": ["a"]})
    assert response.json() == {"predictions": ["A"]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: The document is empty"),
        ({"instances": ["a"], "signature_name": "x"}, '"x" not found in signature def'),
        ({"instances": [1]}, "is not of expected type: string"),
        ({"instances": [["a"]]}, "the signature expects [-1]"),
        (
            {"instances": [{"text": "a", "times": 0}], "signature_name": "repeat"},
            "times must be positive",
        ),
        (
            {"instances": [1.0], "signature_name": "total"},
            "sum has no shape information",
        ),
    ],
)
def test_bad_bodies_are_errors(server, body, message):
    response = server.predict(body)
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert "Graph execution error" not in response.text


def test_the_model_is_looked_up_after_the_json_is_read(server):
    response = server.predict(b"{", "/versions/99:predict")
    assert response.status_code == 400


def together(server, bodies):
    """Answers to concurrent requests, in the order of `bodies`."""
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads:
        return [answer.json() for answer in threads.map(server.predict, bodies)]


def test_concurrent_clients_get_what_a_lone_client_gets(server):
    bodies = [{"instances": ["x" * n, f"é{n}"]} for n in range(32)]
    alone = [server.predict(body).json() for body in bodies]
    assert together(server, bodies) == alone


@pytest.fixture(scope="module")
def cutting(directory):
    """A server that runs at most two rows at a time."""
    with running(directory, max_batch_size=2) as server:
        yield server


@pytest.fixture
def runs(cutting, monkeypatch):
    """Counts the runs of each signature by its rows."""
    counted = []
    with cutting.versions.lease("tiny", None) as (_, model):
        for name, signature in model.signatures.items():
            run = signature.call._run

            def count(inputs, run=run, name=name):
                counted.append((name, len(next(iter(inputs.values())))))
                return run(inputs)

            monkeypatch.setattr(signature.call, "_run", count)
    return counted


@pytest.mark.parametrize(
    ("form", "key"), [("instances", "predictions"), ("inputs", "outputs")]
)
def test_a_large_request_is_cut_and_answered_as_one(cutting, runs, form, key):
    answer = cutting.predict({form: ["a", "b", "c", "d", "e"]}).json()
    assert answer == {key: ["A", "B", "C", "D", "E"]}
    assert runs == [("serving_default", n) for n in (2, 2, 1)]


def test_a_bad_row_fails_its_request(cutting):
    rows = [{"text": "a", "times": n} for n in (1, 1, 0)]
    response = cutting.predict({"instances": rows, "signature_name": "repeat"})
    assert response.status_code == 400
    assert "times must be positive" in response.json()["error"]


def test_padding_that_the_longest_row_sets_is_that_of_the_request(cutting, runs):
    body = {"inputs": ["a", "bc", "def"], "signature_name": "letters"}
    letters = [["a", "", ""], ["b", "c", ""], ["d", "e", "f"]]
    answer = {"outputs": {"letters": letters, "count": [1, 2, 3]}}
    assert cutting.predict(body).json() == answer
    assert runs == [("letters", 2), ("letters", 1)]


def test_signatures_without_rows_in_their_outputs_run_whole(cutting, runs):
    body = {"inputs": [1.0, 2.0, 3.0], "signature_name": "total"}
    answer = {"outputs": {"y": [1.0, 2.0, 3.0], "sum": 6.0}}
    assert cutting.predict(body).json() == answer
    assert runs == [("total", 3)]
    body = {"inputs": [1.0, 2.0, 3.0, 4.0], "signature_name": "halve_rows"}
    assert cutting.predict(body).json() == {"outputs": [1.0, 2.0]}


def test_the_size_of_batches_is_that_of_the_file_beside_the_versions(tmp_path):
    path = write_model(tmp_path, 1)
    write_serving_files(path)
    file = tmp_path / "batching_parameters.txt"

    def size(**options):
        model = ServedModel(path, Workers(1), ServingConfig(**options))
        return model.signatures["half"].call._max_batch_size

    assert size() == 32
    text = file.read_text().replace(
        "max_batch_size { value: 32", "max_batch_size { value: 5"
    )
    file.write_text(text)
    assert size() == 5
    assert size(max_batch_size=3) == 3
    file.unlink()
    assert size() == 32


@pytest.mark.slow
def test_large_requests_keep_nobody_waiting(directory):
    """Each of their batches takes a second or so, all of them half a minute."""
    large = {"instances": [300_000] * 64, "signature_name": "spin"}
    with (
        running(directory, max_batch_size=2, request_timeout_s=3.0) as server,
        concurrent.futures.ThreadPoolExecutor(2) as threads,
    ):
        answers = [threads.submit(server.predict, large) for _ in range(2)]
        wait_until(lambda: server.workers.running)
        for _ in range(3):
            assert server.predict({"instances": ["a"]}).status_code == 200
            assert not any(answer.done() for answer in answers)
        assert [answer.result().status_code for answer in answers] == [504, 504]
        # They run no further than the batch that they have begun.
        wait_until(lambda: not server.workers.running)


def test_limits_are_told(directory):
    options = {"max_instances": 3, "max_request_mib": 0.5, "request_timeout_s": 0.2}
    with running(directory, **options) as server:
        response = server.predict({"instances": ["a"] * 4})
        assert response.status_code == 400
        assert response.json() == {
            "error": "Task size 4 is larger than maximum input batch size 3"
        }
        assert server.predict({"instances": ["a"] * 3}).status_code == 200

        assert server.predict({"instances": ["a" * 500_000]}).status_code == 200
        response = server.predict({"instances": ["a" * 3_000_000]})
        assert response.status_code == 413
        assert response.json() == {
            "error": "The body of the request is larger than 524288 bytes"
        }

        slow = {"instances": [400_000], "signature_name": "spin"}
        response = server.predict(slow)
        assert response.status_code == 504
        assert response.json() == {"error": "Timed out after 0.2 seconds"}

        port = httpx.URL(server.url).port
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.sendall(
                b"POST /v1/models/tiny:predict HTTP/1.1\r\nHost: localhost\r\n"
                b'Content-Length: 99\r\n\r\n{"inst'
            )
            assert client.recv(100).startswith(b"HTTP/1.1 408 ")
        # Its thread runs on; the server ends when it has finished.
        wait_until(lambda: not server.workers.running)


def test_too_many_requests_at_a_time_are_told_to_come_later(directory):
    with running(directory, max_concurrent=1) as server:
        slow = {"instances": [150_000], "signature_name": "spin"}
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            answer = threads.submit(server.predict, slow)
            wait_until(lambda: server.workers.running)
            response = server.predict({"instances": ["a"]})
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert "1 requests are in progress" in response.json()["error"]
            assert server.client.get(server.url).status_code == 200
            assert answer.result().json() == {"predictions": [150_000]}
        assert server.predict({"instances": ["a"]}).status_code == 200


def test_draining_answers_what_runs(directory):
    slow = {"instances": [150_000], "signature_name": "spin"}
    with (
        running(directory) as server,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        answer = threads.submit(server.predict, slow)
        wait_until(lambda: server.workers.running)
        server.server.should_exit = True
        assert answer.result().json() == {"predictions": [150_000]}
        with pytest.raises(httpx.TransportError):
            wait_until(lambda: not httpx.get(server.url))


def test_a_new_version_is_picked_up_without_a_failed_request(
    directory, tmp_path, monkeypatch
):
    monkeypatch.setattr("keras_transformer.serving.versions.POLL_SECONDS", 0.05)
    copy = tmp_path / "tiny"
    shutil.copytree(directory, copy)
    stop, answers = threading.Event(), []

    def client(server):
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                response = client.post(
                    server.url + ":predict", json={"instances": ["a"]}
                )
                answers.append((response.status_code, response.text))

    with (
        running(copy) as server,
        concurrent.futures.ThreadPoolExecutor(3) as threads,
    ):
        for _ in range(3):
            threads.submit(client, server)
        wait_until(lambda: answers)
        write_model(copy, 4, "new ")
        new = (200, json.dumps({"predictions": ["new A"]}))
        wait_until(lambda: new in answers)
        wait_until(lambda: server.versions._versions[3].state == "END")
        (copy / "5").mkdir()
        (copy / "5" / "saved_model.pb").write_bytes(b"no SavedModel")
        wait_until(lambda: 5 in server.versions._versions)
        wait_until(lambda: server.versions._versions[5].state == "END")
        seen = len(answers)
        wait_until(lambda: len(answers) > seen + 10)
        stop.set()
        status = server.client.get(server.url).json()["model_version_status"]
        gone = server.predict({"instances": ["a"]}, "/versions/3:predict")
    old = (200, json.dumps({"predictions": ["A"]}))
    assert set(answers) == {old, new}
    assert status[1:] == [available(4), available(3, "END")]
    assert (status[0]["version"], status[0]["state"]) == ("5", "END")
    assert status[0]["status"]["error_code"] != "OK"
    assert status[0]["status"]["error_message"]
    assert gone.status_code == 404


def test_a_loaded_version_takes_no_file_from_its_directory(directory, tmp_path):
    copy = tmp_path / "tiny"
    shutil.copytree(directory, copy)
    with running(copy) as server:
        shutil.rmtree(copy)
        assert server.predict({"instances": ["a"]}).json() == {"predictions": ["A"]}


def test_a_signature_of_fixed_size_runs_alone(tmp_path):
    module = tf.Module()
    module.first = tf.function(
        lambda x: {"y": x[0]}, input_signature=[tf.TensorSpec([2], tf.int32, name="x")]
    )
    path = str(tmp_path / "fixed" / "1")
    tf.saved_model.save(module, path, signatures={"serving_default": module.first})
    with running(tmp_path / "fixed") as server:
        assert together(server, [{"inputs": [1, 2]}, {"inputs": [3, 4]}]) == [
            {"outputs": 1},
            {"outputs": 3},
        ]
        response = server.predict({"inputs": [1, 2, 3]})
        assert "the signature expects [2]" in response.json()["error"]
