"""The REST clients and the gRPC client, each against a small server made here."""

from __future__ import annotations

import concurrent.futures
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from tests.examples.test_examples import load

ROOT = Path(__file__).parents[2]
SIGNATURE = "serving_default"

TEXTS = ["Ein Bär.", "", 'a "quoted" text\n', "🐈"]


def translation(text):
    """What the servers of this file answer; they cut and doubt long texts."""
    doubts = "loop score" if len(text) > 6 else ""
    lost = ["%s", "<b>"] if len(text) > 6 else []
    return text.upper(), -0.5 * len(text), len(text) > 5, doubts, lost


CUT = "sentence {} is too long and was cut\n"
DOUBTED = "translation {0} is doubtful: loop score\ntranslation {0} lacks %s, <b>\n"
NAMES = "translation", "score", "truncated", "doubts", "lost"
EXPECTED = [translation(text) for text in TEXTS]


class RestServer(http.server.BaseHTTPRequestHandler):
    """Answers as TensorFlow Serving does; `requests` keeps what came."""

    requests: list

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, body))
        status, answer = self.answer(body)
        content = json.dumps(answer).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, body):
        if self.path != "/v1/models/tiny:predict":
            return 404, {"error": "Servable not found for request: Latest(huge)"}
        results = [translation(instance["text"]) for instance in body["instances"]]
        rows = [dict(zip(NAMES, row, strict=True)) for row in results]
        for row in rows:
            row["lost"] += [""] * (2 - len(row["lost"]))
        if not any(row["lost"][0] for row in rows):
            rows = [{name: row[name] for name in NAMES[:-1]} for row in rows]
        return 200, {"predictions": rows}

    def log_message(self, *_):
        pass


@pytest.fixture
def rest_server():
    """The URL of a server and the list of the requests it got."""
    handler = type("Handler", (RestServer,), {"requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.requests
        server.shutdown()


@pytest.fixture
def grpc_server():
    """The address of a server and the list of the requests it got."""
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("tensorflow_serving")
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    requests = []

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            requests.append(request)
            if request.model_spec.name != "tiny":
                context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found")
            texts = tf.make_ndarray(request.inputs["text"])
            results = [translation(text.decode("utf-8")) for text in texts]
            columns = {
                name: [row[i] for row in results] for i, name in enumerate(NAMES)
            }
            if any(columns["lost"]):
                columns["lost"] = [(row + [""] * 2)[:2] for row in columns["lost"]]
            else:
                del columns["lost"]
            response = predict_pb2.PredictResponse()
            for name, values in columns.items():
                dtype = tf.float32 if name == "score" else None
                tensor = tf.make_tensor_proto(values, dtype)
                response.outputs[name].CopyFrom(tensor)
            return response

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            Service(), server
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}", requests
        server.stop(0).wait()


@pytest.fixture(params=["rest", "grpc"])
def served(request):
    """A client, its server's address, and the sizes of the requests that came."""
    address, requests = request.getfixturevalue(f"{request.param}_server")

    def sizes():
        if request.param == "rest":
            paths = {path for path, _ in requests}
            assert paths == {"/v1/models/tiny:predict"}
            assert {body["signature_name"] for _, body in requests} == {SIGNATURE}
            return [len(body["instances"]) for _, body in requests]
        assert {each.model_spec.signature_name for each in requests} == {SIGNATURE}
        return [each.inputs["text"].tensor_shape.dim[0].size for each in requests]

    return load(f"{request.param}_client"), address, sizes


def test_a_client_returns_and_prints_translations_and_an_error_in_a_line(
    served, capsys
):
    client, address, sizes = served
    assert client.translate(TEXTS, "tiny", address) == EXPECTED
    assert client.translate(TEXTS, "tiny", address, batch_size=3) == EXPECTED
    assert sizes() == [4, 3, 1]
    client.main(["--server", address, "--model", "tiny", "ab", "letters"])
    told = CUT.format(2) + DOUBTED.format(2)
    assert capsys.readouterr() == ("-1.000  AB\n-3.500  LETTERS\n", told)
    with pytest.raises(SystemExit, match="error: .*ervable not found"):
        client.main(["--server", address, "--model", "huge", "a"])


def test_the_rest_client_reports_a_server_that_is_not_there():
    closed = "http://127.0.0.1:1"
    with pytest.raises(SystemExit, match="error: .*:1/.* gives no answer: .*refused"):
        load("rest_client").main(["--server", closed, "--model", "tiny", "a"])


def run_in_node(server, *words):
    """Runs the client in JavaScript."""
    return subprocess.run(
        ["node", ROOT / "examples" / "rest_client.mjs", *words],
        env=os.environ | {"SERVER": server},
        capture_output=True,
        timeout=60,
        text=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_client_in_javascript_prints_translations_and_an_error_in_a_line(
    rest_server,
):
    url, requests = rest_server
    done = run_in_node(url, "tiny", *TEXTS)
    assert done.returncode == 0
    assert done.stderr == "".join(
        words.format(number) for number in (1, 3) for words in (CUT, DOUBTED)
    )
    assert done.stdout == "".join(f"{text}\n" for text, *_ in EXPECTED)
    instances = [{"text": text} for text in TEXTS]
    assert requests == [("/v1/models/tiny:predict", {"instances": instances})]
    for server, words, message in (
        (url, ("huge", "a"), r"/huge:predict answered 404: .*not found.*"),
        ("http://127.0.0.1:2", ("tiny", "a"), r"fetch failed: .*ECONNREFUSED.*"),
        (url, ("tiny",), "give the model's name, then sentences"),
    ):
        done = run_in_node(server, *words)
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(f"error: .*{message}\n", done.stderr)
