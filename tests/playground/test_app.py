"""The playground's answers over HTTP, and its process."""

import asyncio
import json
import re
import sys

import pytest
from starlette.testclient import TestClient

from keras_transformer.apps import playground
from keras_transformer.apps.playground import app, model, play
from keras_transformer.apps.playground.page_app import make_app
from tests.playground.toys import FACTS, Toy


@pytest.fixture
def toy():
    return Toy()


@pytest.fixture
def client(toy):
    made = make_app(toy, "127.0.0.1", ("en", "de"))
    return TestClient(made, "http://127.0.0.1:8600", raise_server_exceptions=False)


def test_the_page_and_its_files_come_with_a_strict_policy(client):
    for path in app.FILES:
        response = client.get(path)
        assert response.status_code == 200, path
        assert (
            response.headers.items()
            >= {name.lower(): value for name, value in app.HEADERS.items()}.items()
        )
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    types = {"/": "text/html", "/style.css": "text/css", "/page.js": "text/javascript"}
    for path, expected in types.items():
        assert client.get(path).headers["content-type"].startswith(expected)
    # Nothing of the page is asked for elsewhere, and the files are all there.
    page = client.get("/").text
    assert "http" not in page
    names = re.findall(r'(?:src|href)="([^"]+\.\w+)"', page)
    assert {f"/{name}" for name in names} < app.FILES.keys() and len(names) == 3


def test_a_question_reaches_the_run(client, toy):
    assert client.get("/api/run").json() == FACTS | {"languages": ["en", "de"]}
    asked = {"text": "ab", "count": 2, "beam_size": 3, "prefix": ""}
    answer = client.post("/api/translate", json=asked).json()
    assert answer.pop("milliseconds") >= 0
    first, second = answer["translations"]
    assert (first["text"], second["text"]) == ("AB", "Ab")
    assert toy.asked[0] == asked | {"temperature": None, "seed": 0}
    asked = {"text": "ab", "tokens": [5, 2], "layer": 1, "head": 0}
    answer = client.post("/api/attend", json=asked).json()
    assert answer["weights"] == [[0.75, 0.25], [0, 0.75]]
    assert answer["source"]["words"] == [["ab", 1], ["(end)", 1]]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "must be JSON"),
        (b"[1]", 400, "must be a JSON object"),
        (b"{}", 400, "missing a required argument: 'text'"),
        (b'{"text": "a", "drop": 1}', 400, "unexpected keyword argument 'drop'"),
        (b'{"text": "bad"}', 400, "This text is bad."),
        (b'{"text": "worse"}', 500, "no memory"),
    ],
)
def test_a_bad_question_is_told_in_words(client, body, status, message):
    response = client.post("/api/translate", content=body)
    assert response.status_code == status
    assert message in response.json()["error"]


def test_other_names_paths_and_methods_are_refused(client, toy):
    for path in ("/", "/api/run", "/style.css"):
        response = client.get(path, headers={"Host": "evil.example:8600"})
        assert response.status_code == 400
    for path in ("/x", "/api", "/page/../app.py", "/index.html"):
        assert client.get(path).status_code == 404
    assert client.get("/api/translate").status_code == 405
    assert client.delete("/").status_code == 405
    response = client.post("/api/translate", json={"text": "a"})
    assert "access-control-allow-origin" not in response.headers


async def ask(made, text, gone=None):
    """Sends a question as a web server does; `gone` is set when its client leaves."""
    body = json.dumps({"text": text}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent = []

    async def receive():
        if messages:
            return messages.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/translate", "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    await made(scope, receive, send)
    return sent[1]["body"]


def test_one_question_runs_at_a_time_and_one_whose_page_left_never(toy):
    made = make_app(toy, "127.0.0.1")

    async def main():
        gone = asyncio.Event()
        tasks = [asyncio.create_task(ask(made, "slow one"))]
        tasks.append(asyncio.create_task(ask(made, "slow two", gone)))
        tasks.append(asyncio.create_task(ask(made, "slow three")))
        while not toy.running:
            await asyncio.sleep(0.001)
        gone.set()
        toy.go.set()
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    first, second, third = asyncio.run(main())
    assert b"SLOW ONE" in first and b"SLOW THREE" in third and second == b""
    assert [question["text"] for question in toy.asked] == ["slow one", "slow three"]
    assert toy.most_running == 1


@pytest.fixture
def run(tmp_path):
    """What looks like the directory of a run."""
    path = tmp_path / "run"
    path.mkdir()
    for name in ("model.keras", "tokenizer", "decoding.json"):
        (path / name).touch()
    return path


def test_a_run_is_loaded_and_served_where_it_listens(run, monkeypatch):
    served = []
    monkeypatch.setattr(model, "PlayedRun", lambda directory: Toy())
    monkeypatch.setattr(playground, "run", lambda *arguments: served.append(arguments))
    play(run, port=0, languages=["en", "de"])
    [(made, listener, path, log_level)] = served
    assert (path, log_level, listener.fileno()) == ("/", "warning", -1)  # Closed since.
    client = TestClient(made, "http://localhost")
    assert client.get("/api/run").json()["languages"] == ["en", "de"]


def test_a_mistake_is_told_before_the_run_is_loaded(run, tmp_path, monkeypatch):
    for missing in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError, match="holds no trained translator"):
            play(missing)
    with pytest.raises(ValueError, match="`languages` must be those of source and"):
        play(run, languages=["en"])
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r'install "\.\[playground\]"'):
        play(run)
