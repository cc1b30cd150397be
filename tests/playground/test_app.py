"""The playground's answers over HTTP, with models that need no TensorFlow."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from starlette.testclient import TestClient

from keras_transformer.playground import PlaygroundConfig, app
from keras_transformer.playground.app import Playground
from keras_transformer.playground.played_model import Offer

OFFER = Offer(
    name="runs/a", kind="run", beam_size=4, several=True, prefix=True, sampling=True,
    attention="any", layers=2, layer=1, heads=2, missing=(),
)  # fmt: skip
URL = "http://127.0.0.1:8600"
QUESTION = {"model": 0, "text": "ab"}


class Echo:
    """A model that answers with what it was asked."""

    def __init__(self):
        self.offer = OFFER
        self.asked = []

    def translate(self, question):
        self.asked.append(question)
        if question.text == "bad":
            raise RuntimeError("no memory")
        translation = {"text": question.text[::-1], "score": -1.5}
        return {"translations": [translation] * question.count, "truncated": False}

    def attend(self, question):
        self.asked.append(question)
        return {"weights": [[1.0]]}


@pytest.fixture
def models():
    return [Echo(), Echo()]


@pytest.fixture
def client(models):
    config = PlaygroundConfig(max_text_length=50, host="box")
    return TestClient(Playground(models, config, ("en", "de")), URL)


def test_the_page_and_its_files_come_with_strict_headers(client):
    for path in ("/", "/playground.js", "/attention.js", "/page.js", "/style.css"):
        response = client.get(path)
        assert response.status_code == 200, path
        assert all(response.headers[name] == app.HEADERS[name] for name in app.HEADERS)
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert client.get("/style.css").headers["content-type"].startswith("text/css")
    # Nothing of the page is asked for elsewhere, and the files are all there.
    page = client.get("/").text
    assert "http" not in page
    for name in ("style.css", "playground.css", "playground.js"):
        assert f'"{name}"' in page and client.get(f"/{name}").status_code == 200


def test_the_style_is_that_of_the_page_of_a_site(client):
    text = (app.SHARED / "style.css").read_text("utf-8")
    assert client.get("/style.css").text == text
    own = (app.PAGE / "playground.css").read_text("utf-8")
    assert "--accent:" in text and "--accent:" not in own


def test_models_say_what_they_offer(client):
    answer = client.get("/api/models").json()
    assert answer["languages"] == ["en", "de"]
    assert answer["max_text_length"] == 50
    assert [model["name"] for model in answer["models"]] == ["runs/a", "runs/a"]
    assert answer["models"][0]["layers"] == 2


def test_a_question_reaches_its_model(client, models):
    asked = {"model": 1, "text": "ab", "count": 2, "beam_size": 3, "prefix": "x"}
    answer = client.post("/api/translate", json=asked).json()
    assert answer.pop("milliseconds") >= 0
    assert answer == {
        "translations": [{"text": "ba", "score": -1.5}] * 2, "truncated": False,
    }  # fmt: skip
    asked = {"model": 1, "text": "ab", "translation": "ba", "tokens": [5, 2], "head": 1}
    assert client.post("/api/attend", json=asked).json()["weights"] == [[1.0]]
    translation, attention = models[1].asked
    assert (translation.beam_size, translation.prefix) == (3, "x")
    assert (attention.tokens, attention.head, attention.layer) == ([5, 2], 1, None)
    assert not models[0].asked


@pytest.mark.parametrize(
    "changes, message",
    (
        ({"text": "a" * 51}, "The text is too long: 51 characters; at most 50"),
        ({"prefix": "a" * 51}, "The beginning is too long"),
        ({"text": 5}, "The text must be a string."),
        ({"text": None, "drop": "text"}, "There is no option 'drop'."),
        ({"model": 2}, "There is no model 2."),
        ({"model": -1}, "`model` must be a whole number from 0"),
        ({"count": 11}, "`count` must be a whole number from 1 to 10. Received: 11"),
        ({"count": True}, "`count` must be a whole number"),
        ({"beam_size": 17}, "`beam_size` must be a whole number from 1 to 16"),
        ({"temperature": -0.1}, "`temperature` must be a number from 0 to 10"),
        ({"temperature": "hot"}, "`temperature` must be a number"),
        ({"seed": 2**40}, "`seed` must be a whole number"),
        ({"temperature": 1, "prefix": "x"}, "A beginning and a beam go with a search"),
        ({"temperature": 1, "beam_size": 2}, "A beginning and a beam go with a"),
    ),
)
def test_a_bad_question_is_refused_in_words(client, models, changes, message):
    response = client.post("/api/translate", json=QUESTION | changes)
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)
    assert not models[0].asked


@pytest.mark.parametrize(
    "changes, message",
    (
        ({"tokens": []}, "`tokens` must be a list"),
        ({"tokens": [1.5]}, "`tokens` must be a whole number"),
        ({"translation": "a" * 1001}, "The translation is too long"),
        ({"layer": "last"}, "`layer` must be a whole number"),
    ),
)
def test_a_bad_question_of_attention_is_refused(client, changes, message):
    question = QUESTION | {"translation": "ba", "tokens": [1]}
    response = client.post("/api/attend", json=question | changes)
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)


@pytest.mark.parametrize(
    "body, status",
    (
        (b"", 400),
        (b"[1]", 400),
        (b'{"model": 0', 400),
        (b'{"model": 0}', 400),
        (b'{"model": 0, "text": "\\ud800"}', 400),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
        (b" " * (app.MOST_BYTES + 1), 413),
    ),
)
def test_a_body_that_is_no_question_is_refused(client, body, status):
    headers = {"Content-Type": "application/json"}
    response = client.post("/api/translate", content=body, headers=headers)
    assert response.status_code == status
    assert response.json()["error"]


def test_what_goes_wrong_in_a_model_is_told(client, caplog):
    response = client.post("/api/translate", json=QUESTION | {"text": "bad"})
    assert response.status_code == 500
    assert response.json() == {"error": "no memory"}
    assert "a model failed" in caplog.text


@pytest.mark.parametrize(
    "host, status",
    (
        ("localhost:8600", 200),
        ("127.0.0.1", 200),
        ("[::1]:8600", 200),
        ("BOX:8600", 200),
        ("192.168.0.7:9", 403),
        ("evil.example:8600", 403),
        ("evil.example@localhost", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
        ("", 403),
    ),
)
def test_only_names_of_this_server_are_answered(client, models, host, status):
    headers = {"Host": host}
    for path in ("/", "/api/models", "/style.css"):
        assert client.get(path, headers=headers).status_code == status
    response = client.post("/api/translate", json=QUESTION, headers=headers)
    assert response.status_code == status
    assert len(models[0].asked) == (status == 200)


@pytest.mark.parametrize(
    "host, status",
    (
        ("192.168.0.7:8600", 200),
        ("[fe80::1]:8600", 200),
        ("BOX", 200),
        ("evil.example:8600", 403),
        ("", 403),
    ),
)
def test_over_the_network_an_address_is_a_name_too(models, host, status):
    playground = Playground(models, PlaygroundConfig(host="box"))
    client = TestClient(playground, "http://192.168.0.7:8600")
    response = client.get("/api/models", headers={"Host": host})
    assert response.status_code == status


@pytest.mark.parametrize(
    "headers, status",
    (
        ({"Origin": URL}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:8601"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ),
)
def test_only_its_own_page_may_ask(client, models, headers, status):
    response = client.post("/api/translate", json=QUESTION, headers=headers)
    assert response.status_code == status
    assert "access-control-allow-origin" not in response.headers
    assert len(models[0].asked) == (status == 200)
    if status == 403:
        assert client.get("/api/models", headers=headers).status_code == 403
        assert client.get("/", headers=headers).status_code == 200  # A link.


def test_other_paths_and_methods_are_refused(client):
    for path in ("/x", "/api", "/page/../app.py", "/index.html"):
        assert client.get(path).status_code == 404
    assert client.get("/api/translate").status_code == 405
    assert client.options("/api/translate").status_code == 405
    assert client.delete("/").status_code == 405


class Slow(Echo):
    """A model that waits until it is told to go on, and counts who waits with it."""

    def __init__(self):
        super().__init__()
        self.go, self.at_once, self.most = threading.Semaphore(0), 0, 0

    def translate(self, question):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.go.acquire(timeout=10)
        self.at_once -= 1
        return super().translate(question)


async def ask(playground, text, gone=None):
    """Sends a question as a web server does; `gone` is set when its client leaves."""
    body = json.dumps({"model": 0, "text": text}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent = []

    async def receive():
        if messages:
            return messages.pop()
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": "/api/translate", "headers": headers,
        "query_string": b"", "raw_path": b"/api/translate", "server": ("::1", 8600),
    }  # fmt: skip
    await playground(scope, receive, send)
    return sent[0]["status"] if sent else None


def test_one_question_runs_at_a_time_and_one_whose_page_left_never():
    slow = Slow()
    playground = Playground([slow], PlaygroundConfig())

    async def main():
        gone = asyncio.Event()
        tasks = [asyncio.create_task(ask(playground, "first"))]
        tasks.append(asyncio.create_task(ask(playground, "second", gone)))
        tasks.append(asyncio.create_task(ask(playground, "third")))
        while not slow.at_once:
            await asyncio.sleep(0.001)
        gone.set()
        slow.go.release(3)
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert asyncio.run(main()) == [200, None, 200]
    assert [question.text for question in slow.asked] == ["first", "third"]
    assert slow.most == 1


def test_too_many_waiting_questions_are_refused():
    slow = Slow()
    playground = Playground([slow], PlaygroundConfig())

    async def main():
        asked = [
            asyncio.create_task(ask(playground, str(i)))
            for i in range(app.MOST_WAITING)
        ]
        while not slow.at_once:
            await asyncio.sleep(0.001)
        refused = await ask(playground, "one more")
        slow.go.release(app.MOST_WAITING)
        return refused, await asyncio.wait_for(asyncio.gather(*asked), 10)

    refused, answered = asyncio.run(main())
    assert refused == 503
    assert answered == [200] * app.MOST_WAITING


class Failing(Echo):
    def translate(self, question):
        raise RuntimeError("no memory")


def test_warming_asks_each_kind_of_question_once_and_outlives_errors(models):
    asyncio.run(Playground([Failing(), *models], PlaygroundConfig()).warm())
    for model in models:
        begun, drawn = model.asked
        assert (begun.prefix, begun.temperature) == (".", None)
        assert (drawn.prefix, drawn.temperature) == ("", 1.0)
