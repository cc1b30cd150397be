"""The contract with TensorFlow Serving, and the process: its start, log and end."""

import asyncio
import concurrent.futures
import contextlib
import gzip
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib

import httpx
import pytest
import tensorflow as tf
from starlette.testclient import TestClient

from keras_transformer.apps.serving import page_routes, serve, server
from keras_transformer.apps.serving.rest_app import make_app
from keras_transformer.apps.serving.served_model import ServedModel
from keras_transformer.formats import ExportedTranslator
from keras_transformer.text import open_pairs
from tests.apps.serving.tiny_models import serving, write_model

URL = "/v1/models/tiny"
LOCAL = "127.0.0.1"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Versions 3 and 10 of a model, and one whose export has just begun."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_model(directory, 3)
    shutil.copytree(directory / "3", directory / "10")
    (directory / "11").mkdir()
    return directory


@pytest.fixture(scope="module")
def model(directory):
    return ServedModel(directory / "3")


@pytest.fixture(scope="module")
def client(model):
    app = make_app(model, "box")
    return TestClient(app, "http://localhost", raise_server_exceptions=False)


def predict(client, body, path=":predict"):
    content = {"content" if isinstance(body, bytes) else "json": body}
    return client.post(URL + path, **content)


@pytest.mark.parametrize("path", ["", "/versions/3"])
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


# The body but for the signature's name, which is at the end, and the answer.
ANSWERS = [
    ({"instances": ["ab", "ß"]}, {"predictions": ["AB", "SS"]}, None),
    ({"instances": [{"text": "ab"}]}, {"predictions": ["AB"]}, None),
    ({"inputs": ["ab"]}, {"outputs": ["AB"]}, None),
    ({"inputs": {"text": ["ab"]}}, {"outputs": ["AB"]}, None),
    ({"inputs": []}, {"outputs": []}, None),
    ({"instances": ["ab"]}, {"predictions": ["AB"]}, ""),
    ({"instances": [{"text": "ab", "times": 2}]},
     {"predictions": [{"joined": "abab", "length": 4}]}, "repeat"),
    ({"inputs": {"text": ["a"], "times": [3]}},
     {"outputs": {"joined": ["aaa"], "length": [3]}}, "repeat"),
    ({"instances": [[0.4, 3]]}, {"predictions": [[0.2, 1.5]]}, "half"),
    ({"instances": [KINDS] * 2}, {"predictions": [KINDS_ANSWER] * 2}, "kinds"),
    ({"inputs": [1.5, 2]}, {"outputs": {"y": [1.5, 2.0], "sum": 3.5}}, "total"),
    ({"instances": ["ü", {"b64": "/wA="}]},
     {"predictions": [{"b64": "w7w="}, {"b64": "/wA="}]}, "echo"),
    ({"inputs": [7, 8]}, {"outputs": 7}, "first"),
]  # fmt: skip


@pytest.mark.parametrize("path", [":predict", "/versions/3:predict"])
@pytest.mark.parametrize(("body", "expected", "name"), ANSWERS)
def test_predict_answers_as_it_is_asked(client, body, expected, name, path):
    signature = {} if name is None else {"signature_name": name}
    response = predict(client, body | signature, path)
    assert (response.status_code, response.json()) == (200, expected)
    assert response.headers["content-type"] == "application/json"


def test_not_a_number_goes_in_and_out_and_json_is_read_first(client):
    body = b'{"signature_name": "half", "instances": [[NaN, -Infinity]]}'
    assert predict(client, body).text == '{"predictions": [[NaN, -Infinity]]}'
    # Before the model is looked up.
    assert predict(client, b"{", "/versions/99:predict").status_code == 400


PATHS = {
    404: (
        "GET /x", "GET /index.html", "GET /page/../rest_app.py", "POST /",
        "GET /v2/models/tiny", "GET /v1/models/tiny/versions/4",
        "GET /v1/models/tiny:predict", "GET /v1/models/tiny/versions/x",
        "GET /v1/models/tiny/versions/\N{ARABIC-INDIC DIGIT THREE}",
        "GET /v1/models/x", "GET /v1/models/x%20y", "GET /v1/models/x/metadata",
        f"GET /v1/models/tiny/versions/{2**63}",
        f"GET /v1/models/tiny/versions/{'3' * 5000}",
        f"POST /v1/models/tiny/versions/{'3' * 5000}:predict",
        "GET /v1/models/tiny/versions/4/metadata", "POST /v1/models/x:predict",
        "POST /v1/models/tiny/versions/4:predict",
    ),
    400: (
        "GET /v1/foo", "GET /v1/models", "GET /v1/models/tiny/",
        "GET /v1/models/a/b", "GET /v1/models/tiny/labels/best",
        "POST /v1/models", "POST /v1/models/tiny", "POST /v1/models/tiny/metadata",
        "POST /v1/models/tiny:PREDICT", "POST /v1/models/tiny:explain",
        "POST /v1/models/tiny/labels/a%2Fb:predict", "POST /v1/models/tiny:classify",
        "POST /v1/models/tiny:regress", "PUT /v1/models/tiny:predict",
        "DELETE /v1/models/tiny", "BREW /v1/models/tiny",
    ),
    200: ("POST /v1/models/%74iny:predict",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "status"),
    [(asked, status) for status, several in PATHS.items() for asked in several],
)
def test_paths_and_methods_have_their_status(client, asked, status):
    response = client.request(*asked.split(), content=b'{"instances": ["a"]}')
    assert response.status_code == status
    assert list(response.json()) == ["predictions" if status == 200 else "error"]


def test_the_page_and_its_files_come_with_a_strict_policy(client):
    for path in page_routes.FILES:
        response = client.get(path)
        assert response.status_code == 200, path
        assert (
            response.headers.items()
            >= {name.lower(): x for name, x in page_routes.HEADERS.items()}.items()
        )
        assert client.get(path, headers={"Host": "evil.example"}).status_code == 400
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    types = {"/": "text/html", "/style.css": "text/css", "/page.js": "text/javascript"}
    for path, expected in types.items():
        assert client.get(path).headers["content-type"].startswith(expected)
    # Nothing of the page is asked for elsewhere, and the files are all there.
    page = client.get("/").text
    assert "http" not in page
    names = re.findall(r'(?:src|href)="([^"]+\.\w+)"', page)
    assert {f"/{name}" for name in names} < page_routes.FILES.keys() and len(names) == 3


def test_the_page_is_told_what_there_is_to_ask(client, directory, tmp_path):
    facts = client.get("/page.json").json()
    assert (facts["name"], facts["version"], facts["examples"]) == ("tiny", 3, [])
    assert facts["languages"] is None
    names = "echo first half kinds letters repeat serving_default spin total"
    assert facts["signatures"] == names.split()
    assert "access-control-allow-origin" not in client.get("/page.json").headers
    path = shutil.copytree(directory / "3", tmp_path / "tiny" / "1")
    told = {"languages": ["en", "de"], "examples": ["a bear", "a dog"]}
    (path / "assets.extra").mkdir()
    (path / "assets.extra" / "page.json").write_text(json.dumps(told), "utf-8")
    app = make_app(ServedModel(path), "box")
    facts = TestClient(app, "http://localhost").get("/page.json").json()
    assert {name: facts[name] for name in told} == told


PAIR = {"instances": [["a", "b"]]}
NOT_KEPT = [
    ({}, "either `instances`"), ([PAIR], "must be a JSON object"),
    ({"instances": []}, "`instances` must be a list of rows"),
    ({"instances": [["a"]]}, "`pairs` must have the shape [None, 2]"),
    ({"instances": [["a", "b"], ["a", 1]]}, "`pairs[1][1]` must be of type string"),
    ({"instances": [["a", "b"], ["a", " \n"]]}, "`pairs[1]` must be two texts: its "
     "target is empty"),
    ({"instances": [["\t", "b"]]}, "its source is empty"),
    ({"instances": [["a\0", "b"]]}, "its source has a NUL character"),
    (b'{"instances": [["a", "\\ud83d"]]}', "`pairs[0][1]` must be whole characters"),
    ({"instances": [["a", {"b64": "/wA="}]]}, "`pairs[0][1]` must be UTF-8"),
    ({"instances": [["a" * 10_000, "b" * 10_001]]}, "at most 20,000 bytes of text"),
    (gzip.compress(b"{}", mtime=0), "must not be compressed"),
]  # fmt: skip


def correcting(model, file):
    app = make_app(model, "box", corrections=file)
    client = TestClient(app, "http://localhost", raise_server_exceptions=False)
    client.headers["Content-Type"] = "application/json"
    return client


def test_corrections_are_appended_to_their_file_as_training_pairs(model, tmp_path):
    file = tmp_path / "new" / "corrections.tsv"
    client = correcting(model, file)
    assert client.get("/page.json").json()["corrects"] is True
    rows = [["Tom\tsaid:\nGo!", "Tom sagte:\r\nGeh! \u2028\U0001f600"], ["a", " b"]]
    answer = client.post("/corrections", json={"instances": rows})
    assert (answer.status_code, answer.json()) == (200, {"kept": 2})
    lines = ["Tom said: Go!\tTom sagte: Geh!  \U0001f600", "a\t b"]
    assert file.read_bytes().decode() == "".join(f"{line}\n" for line in lines)
    # A server that starts again ends the line that a crash has cut, and goes on.
    file.write_bytes(file.read_bytes()[:-1])
    client = correcting(model, file)
    for body, message in NOT_KEPT:
        content = {"content" if isinstance(body, bytes) else "json": body}
        answer = client.post("/corrections", **content)
        assert (answer.status_code, message in answer.json()["error"]) == (400, True)
    assert client.post("/corrections", json=PAIR).json() == {"kept": 1}
    assert file.read_text("utf-8").split("\n") == [*lines, "a\tb", ""]
    assert [pair[1:] for pair in open_pairs(file).pairs()][-1] == ("a", "b")
    assert [path.name for path in file.parent.iterdir()] == ["corrections.tsv"]


def test_only_the_page_of_a_server_with_a_file_can_correct(
    model, client, tmp_path, monkeypatch
):
    assert client.get("/page.json").json()["corrects"] is False
    assert client.post("/corrections", json=PAIR).status_code == 404
    file = tmp_path / "corrections.tsv"
    client = correcting(model, file)
    assert client.get("/corrections").status_code == 404
    # A form of another site: a browser asks this server first for other types.
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = client.post("/corrections", json=PAIR, headers={"Content-Type": kind})
        assert answer.status_code == 415 and "json. Received" in answer.text
    evil = client.post("/corrections", json=PAIR, headers={"Host": "evil.example"})
    assert evil.status_code == 400
    with pytest.raises(IsADirectoryError):
        correcting(model, tmp_path)
    assert client.post("/corrections", json=PAIR).status_code == 200

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        answer = client.post("/corrections", json={"instances": [["c", "d"]]})
    assert answer.status_code == 507
    assert "Nothing was kept: [Errno 28] No space" in answer.json()["error"]
    assert file.read_text("utf-8") == "a\tb\n"


def test_twenty_readers_at_once_leave_whole_lines(model, tmp_path):
    file = tmp_path / "corrections.tsv"
    with (
        serving(make_app(model, LOCAL, corrections=file)) as url,
        serving(make_app(model, LOCAL, corrections=file)) as other,
        concurrent.futures.ThreadPoolExecutor(20) as threads,
    ):

        def post(number):
            row = [f"{number} " + "x" * 999, "y" * 5000]
            server = other if number % 2 else url
            body = {"instances": [row, row]}
            return httpx.post(f"{server}/corrections", json=body, timeout=60).json()

        assert [*threads.map(post, range(60))] == [{"kept": 2}] * 60
    lines = file.read_text("utf-8").splitlines()
    assert lines[::2] == lines[1::2]  # The two of a request stand together.
    assert {int(line.split()[0]) for line in lines} == {*range(60)}
    assert {len(line) for line in lines} == {6002, 6003} and len(lines) == 120


ONE = {"instances": ["a"]}
REFUSED = [
    (b"", "must be JSON"), (b"{", "must be JSON"),
    (ONE | {"signature_name": "x"}, "one of echo, first, half, "),
    *(
        (ONE | {"signature_name": name}, f"Received: {name!r}")
        for name in (None, 0, 1, False, [], {}, ["half"])
    ),
    ({"instances": ["a", {"b64": "/wA="}]}, "`text[1]` must be UTF-8"),
    (gzip.compress(b'{"instances": ["a"]}', mtime=0), "must not be compressed"),
    (b'{"instances": ["a", "b \\ud83d c"]}', "`text[1]` must be whole"),
    ({"instances": ["a" * 19_998, "ab", "\n"]}, "20,000 bytes of text (UTF-8): send"),
    ({"instances": ["\u20ac" * 6_667]}, "Received: 20,001"),
    ({"instances": [1]}, "`text[0]` must be of type string. Received: 1"),
    ({"instances": [["a"]]}, "`text` must have the shape [None]"),
    ({"inputs": [1, 2, 3], "signature_name": "first"}, "Received: [3]"),
    ({"instances": [{"text": "a", "times": 0}], "signature_name": "repeat"},
     "times must be positive"),
    ({"instances": [1.0], "signature_name": "total"}, "use `inputs`"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "message"), REFUSED)
def test_a_bad_body_is_told_in_words(client, body, message):
    response = predict(client, body)
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert "Graph execution error" not in response.text


STATUSES = {
    tf.errors.ResourceExhaustedError: 429, tf.errors.NotFoundError: 404,
    tf.errors.UnimplementedError: 501, tf.errors.InternalError: 500,
    ZeroDivisionError: 500,
}  # fmt: skip


@pytest.mark.parametrize(("error", "status"), STATUSES.items())
def test_an_error_of_a_run_has_its_status(client, model, monkeypatch, error, status):
    def fail(**inputs):
        is_of_tensorflow = issubclass(error, tf.errors.OpError)
        raise error(None, None, "broken") if is_of_tensorflow else error("broken")

    monkeypatch.setattr(model.signatures["serving_default"], "_function", fail)
    response = predict(client, {"instances": ["a"]})
    assert response.status_code == status
    assert "broken" in response.json()["error"]


def test_a_large_request_runs_whole(client):
    body = {"inputs": ["abc"] + ["a"] * 64, "signature_name": "letters"}
    outputs = predict(client, body).json()["outputs"]
    assert outputs["letters"] == [["a", "b", "c"]] + [["a", "", ""]] * 64
    assert outputs["count"] == [3] + [1] * 64


def test_a_request_holds_no_more_rows_than_the_written_parameters_allow(directory):
    """And an answer comes in time, or not at all."""
    parameters = directory / "batching_parameters.txt"
    parameters.write_text(
        "# max_batch_size { value: 9 }\nmax_batch_size { value: 3 }\n"
    )
    try:
        app = make_app(ServedModel(directory / "3"), "box", seconds=0.01)
    finally:
        parameters.unlink()
    client = TestClient(app, "http://localhost", raise_server_exceptions=False)
    response = predict(client, {"instances": ["a"] * 4})
    assert response.status_code == 400
    assert "at most 3 rows, `max_batch_size` in" in response.json()["error"]
    late = {"instances": [60_000], "signature_name": "spin"}
    response = predict(client, late)
    assert response.status_code == 504
    assert response.json() == {"error": "There is no answer after 0.01 s."}
    app.state.seconds = 60.0
    assert predict(client, {"instances": ["a"] * 3}).status_code == 200


@pytest.mark.parametrize("hangs_up", [True, False])
def test_what_nobody_waits_for_ends_and_the_next_is_answered(directory, hangs_up):
    """400 s of computation, of a client that hangs up or waits for half a second."""
    app = make_app(ServedModel(directory / "3"), LOCAL, seconds=60 if hangs_up else 0.5)
    late = {"instances": [120_000_000], "signature_name": "spin"}
    with serving(app) as url:
        path = url + URL + ":predict"
        if hangs_up:
            with pytest.raises(httpx.TimeoutException):
                httpx.post(path, json=late, timeout=0.5)
        else:
            assert httpx.post(path, json=late, timeout=60).status_code == 504
        app.state.seconds = 60
        answer = httpx.post(path, json={"instances": ["a"]}, timeout=30)
        assert answer.json() == {"predictions": ["A"]}


def test_a_body_is_not_compressed(client):
    body = zlib.compress(b'{"instances": ["a"]}')
    response = client.post(
        URL + ":predict", content=body, headers={"Content-Encoding": "deflate"}
    )
    assert response.status_code == 400
    assert response.json()["error"].endswith("`Content-Encoding`. Received: deflate")


def test_a_client_that_hangs_up_is_no_failure_of_the_server(model):
    """Otherwise the log gets a traceback."""
    parts = [{"type": "http.request", "body": b"{", "more_body": True}]
    messages = iter([*parts, {"type": "http.disconnect"}])
    scope = {
        "type": "http", "method": "POST", "path": f"{URL}:predict", "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    answered = []

    async def receive():
        return next(messages)

    async def send(message):
        answered.append(message)

    asyncio.run(make_app(model, "box")(scope, receive, send))
    assert answered[0]["status"] == 499


def empty(path):
    (path / "saved_model.pb").write_bytes(b"")


def halve(path):
    file = path / "saved_model.pb"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty_variables(path):
    (path / "variables" / "variables.index").write_bytes(b"")


@pytest.mark.parametrize("damage", [empty, halve, empty_variables])
def test_a_damaged_saved_model_is_named(directory, tmp_path, damage):
    path = shutil.copytree(directory / "3", tmp_path / "tiny" / "1")
    damage(path)
    for load in (ServedModel, ExportedTranslator):
        with pytest.raises(ValueError, match=f"{path} cannot be loaded: it is damaged"):
            load(path)


def test_another_saved_model_is_no_translator(directory):
    with pytest.raises(ValueError, match="must be an export.* the signatures echo, "):
        ExportedTranslator(directory / "3")


def test_a_version_or_the_latest_of_all_is_served(directory, monkeypatch):
    assert server._version_of(directory) == directory / "10"
    for version in ("3", "10"):
        assert server._version_of(directory / version) == directory / version
    monkeypatch.chdir(directory / "3")
    assert server._version_of(server.Path(".")).samefile(directory / "3")
    assert server._version_of(server.Path("..")) == server.Path("../10")


# What models.config says of the versions 3 and 10, and which is served.
POLICIES = [
    ("{ specific { versions: 3 } }", 3), ("{ specific {\n versions: [3, 99] } }", 3),
    ("{ specific: {versions: 3 versions: 10} }", 10),
    ("{ latest { num_versions: 2 } }", 10),
    ("{ all {} }  # specific { versions: 3 }", 10),
    ("{ specific { versions: 4 } }", "is not there. .* \\[4], of \\[3, 10]"),
    ("{ specific { versions: 3 } specific { versions: 10 } }", "must have one `mod"),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "expected"), POLICIES)
def test_the_documented_rollback_is_served(directory, policy, expected):
    file = directory / "models.config"
    file.write_text(f'config {{ name: "tiny" model_version_policy {policy} }}')
    try:
        if isinstance(expected, int):
            assert server._version_of(directory) == directory / str(expected)
        else:
            with pytest.raises((FileNotFoundError, ValueError), match=expected):
                server._version_of(directory)
        assert server._version_of(directory / "10") == directory / "10"
    finally:
        file.unlink()


# The name it listens at, those of the requests that it answers, and of others.
HOSTS = [
    (LOCAL, ("LocalHost:1", "127.0.0.1:8501", "[::1]:8501"),
     ("evil.example:8501", "localhost.evil.example", "evil.example@localhost",
      "192.168.0.1")),
    ("box", ("BOX:8501",), ("[::1", "")), ("fe80::1", ("[fe80::1]",), ()),
    ("0.0.0.0", ("anything.example",), ()), ("::", ("anything.example",), ()),
]  # fmt: skip


@pytest.mark.parametrize(("own_name", "good", "bad"), HOSTS)
def test_only_names_of_this_machine_are_answered(model, own_name, good, bad):
    client = TestClient(make_app(model, own_name), "http://localhost")
    for host in good + bad:
        response = client.get(URL, headers={"Host": host})
        assert response.status_code == (200 if host in good else 400), host
        assert ("AVAILABLE" in response.text) == (host in good)


# The process.

PROGRAM = """
import sys
from keras_transformer.apps.serving import serve
serve(sys.argv[1], port=0, corrections=sys.argv[2])
print("returned")
"""


@contextlib.contextmanager
def process(directory, corrections):
    """Gives a server's process and its URL."""
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), str(corrections)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in started.stderr:
            if match := re.search(r"(http://127\S+) \(Ctrl-C ends it\)", line):
                break
        else:
            pytest.fail("the server did not start")
        yield started, match[1]
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize(
    ("number", "status", "end"),
    [
        (signal.SIGINT, 0, "returned\n"),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, "", marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_it_when_what_runs_is_answered(
    directory, tmp_path, number, status, end
):
    file = tmp_path / "corrections.tsv"
    with (
        process(directory, file) as (started, url),
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        versions = httpx.get(url).json()["model_version_status"]
        assert [version["version"] for version in versions] == ["10"]
        body = {"instances": [400_000], "signature_name": "spin"}
        answer = threads.submit(httpx.post, url + ":predict", json=body, timeout=60)
        time.sleep(0.3)
        # While it translates it keeps a correction.
        to = url.replace(URL, "/corrections")
        assert httpx.post(to, json=PAIR).json() == {"kept": 1}
        assert not answer.done() and file.read_bytes() == b"a\tb\n"
        started.send_signal(number)
        assert answer.result().json() == {"predictions": [400_000]}
        output, _ = started.communicate(timeout=60)
        assert started.returncode == status
        line, _, last = output.rpartition(' HTTP/1.1" 200 OK\n')
        assert line.endswith('"POST /v1/models/tiny%3Apredict') and last == end


def test_an_address_that_is_taken_and_a_missing_extra_are_named(directory, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"Cannot listen on 127.0.0.1:{port}: Addr"):
            serve(directory, port=port)
    with pytest.raises(FileNotFoundError, match="must be a version, NAME/1, or hold"):
        serve(directory / "11")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[serve\]"` in a clone'):
        serve(directory)
