"""One export, many ways to call it, the same bytes from all of them.

The live translator; a process that has TensorFlow and nothing of this package; the
loader that TensorFlow Serving uses, through the C API; the local server, alone and
under 32 clients at once; each with one sentence and with 32 at a time.
"""

import base64
import concurrent.futures
import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from tensorflow.core.protobuf import saved_model_pb2

from tests import tiny_run
from tests.apps.serving.tiny_models import SECONDS, running

ODD = [
    "", " ", "a", "</s>", "<s> dog </s> <pad>", "🐈 sleeps 👍🏽", "ein Bär\0mit Null",
    "שלום the dog", "日本語", "\u202e drawkcab", "▁", "THE DOG!", "the\n\tdog",
    " ".join(["the old man sings and the young bird sleeps."] * 40), "ß" * 50,
]  # fmt: skip
SENTENCES = [
    *ODD,
    *(source for source, _ in tiny_run.PAIRS[:25]),
    *(" ".join(words) for words in itertools.permutations("the old bird runs".split())),
][:60]
BATCHES = [SENTENCES[:32], SENTENCES[32:]]
_SPACES = [" ", "  ", "\n", "\n\n- ", " \t"]
# Texts of one to five of them, with what stands between.
PARTS = [
    [
        part
        for k in range(1 + i % 5)
        for part in (SENTENCES[20 + (3 * i + k) % 40].capitalize() + ".", _SPACES[k])
    ]
    for i in range(20)
]
PARAGRAPHS = ["".join(parts) for parts in PARTS]
CLIENTS = 32
OUTPUT = {"serving_default": "translation", "nbest": "translations"}


def padded(nbest):
    """The bytes of three translations each, as an export has them."""
    rows = [[one.text.encode("utf-8") for one in several] for several in nbest]
    return [(row + [b""] * 3)[:3] for row in rows]


@pytest.fixture(scope="module")
def expected():
    """The bytes that the live translator gives for each sentence, by signature."""
    live = tiny_run.translator()
    nbest = live.nbest(SENTENCES, n_best=live.config.beam_size)
    assert {len(translations) for translations in nbest} == {1, 3}  # "" has one.
    nbest = padded(nbest)
    texts = [text.encode("utf-8") for text in live(SENTENCES)]
    for sentence, text, three in zip(SENTENCES, texts, nbest, strict=True):
        # Several sentences, and those with spaces around, are kept apart.
        is_one = " ".join(sentence.split()) == sentence and len(sentence) < 50
        assert not is_one or text in three
    # A text has the translations of its sentences, and its own spaces.
    singles = {part for parts in PARTS for part in parts[::2]}
    found = dict(zip(singles, live([*singles]), strict=True))
    paragraphs = ["".join(found.get(part, part) for part in parts) for parts in PARTS]
    paragraphs = [text.encode("utf-8") for text in paragraphs]
    return {"nbest": nbest, "serving_default": texts, "paragraphs": paragraphs}


def test_the_live_translator_gives_one_answer_for_every_batch(expected, monkeypatch):
    live = tiny_run.translator()
    for size in (1, 7, 60):
        monkeypatch.setattr(live, "batch_size", size)
        found = live.nbest(SENTENCES, n_best=3)
        assert padded(found) == expected["nbest"]
    assert [t.encode("utf-8") for t in live(SENTENCES)] == expected["serving_default"]
    assert [t.encode("utf-8") for t in live(PARAGRAPHS)] == expected["paragraphs"]
    assert len({*expected["paragraphs"]}) > 10
    # They are many, and their translations differ.
    assert len(SENTENCES) == 60
    assert len({*expected["serving_default"]}) >= 10
    assert len({tuple(three) for three in expected["nbest"]}) >= 30


# TensorFlow and the compiled SentencePiece operations alone, as in TensorFlow Serving;
# the Python side of tensorflow-text would import Keras.
STRANGER = """
import importlib.util, json, sys
text = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
blocked = ("keras", "keras_hub", "keras_transformer", "sentencepiece")
sys.modules.update(dict.fromkeys((*blocked, "tensorflow_text")))
import tensorflow as tf

tf.load_op_library(text + "/python/ops/_sentencepiece_tokenizer.so")
signatures = tf.saved_model.load(sys.argv[1]).signatures

def hexadecimal(value):
    return value.hex() if isinstance(value, bytes) else list(map(hexadecimal, value))

answers = []
for name, output, batch in json.load(sys.stdin):
    result = signatures[name](text=tf.constant(batch, tf.string))[output]
    answers.append(hexadecimal(result.numpy().tolist()))
json.dump(answers, sys.stdout)
assert not any(sys.modules[name] for name in blocked)
"""


def unhex(value):
    return bytes.fromhex(value) if isinstance(value, str) else [*map(unhex, value)]


def in_child(command, request):
    """Runs a program on a JSON request and returns its JSON answer."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


CALLS = [
    (name, batch)
    for name in OUTPUT
    for batch in (*BATCHES, *([sentence] for sentence in SENTENCES))
]
CALLS.append(("serving_default", PARAGRAPHS))


def assert_calls(answers, expected):
    """Compares the answers to `CALLS`: two batches, then each sentence alone."""
    answers = iter(answers)
    for name in OUTPUT:
        together = [row for _ in BATCHES for row in next(answers)]
        assert together == expected[name]
        alone = [row for _ in SENTENCES for row in next(answers)]
        assert alone == expected[name]
    assert next(answers) == expected["paragraphs"]
    assert next(answers, None) is None


def test_a_process_without_this_package_gives_the_same_bytes(saved_model, expected):
    request = [(name, OUTPUT[name], batch) for name, batch in CALLS]
    request.append(("serving_default", "score", []))
    *answers, scores = in_child(["-c", STRANGER, saved_model], request)
    assert_calls(unhex(answers), expected)
    assert scores == []


def folder(module):
    return Path(importlib.util.find_spec(module).origin).parent


def by_c_api(path, calls):
    """Answers of the C API to calls, each a signature and a batch of bytes."""
    message = saved_model_pb2.SavedModel()
    message.ParseFromString((path / "saved_model.pb").read_bytes())
    signatures = message.meta_graphs[0].signature_def
    asked = []
    for name, batch in calls:
        text, outputs = signatures[name].inputs["text"], signatures[name].outputs
        score = {"serving_default": "score", "nbest": "scores"}[name]
        values = [sentence.hex() for sentence in batch]
        names = [outputs[OUTPUT[name]].name, outputs[score].name]
        asked.append({"inputs": {text.name: [text.dtype, values]}, "outputs": names})
    libraries = [f"libtensorflow_{name}.so.2" for name in ("framework", "cc")]
    operations = folder("tensorflow_text") / "python/ops/_sentencepiece_tokenizer.so"
    libraries = [str(folder("tensorflow") / library) for library in libraries]
    request = {"path": str(path), "libraries": libraries, "calls": asked}
    request["operations"] = [str(operations)]
    client = Path(__file__).with_name("c_api_client.py")
    return in_child(["-I", client], request)


@pytest.mark.skipif(sys.platform != "linux", reason="names of TensorFlow's libraries")
def test_the_loader_of_tensorflow_serving_gives_the_same_bytes(saved_model, expected):
    calls = [(name, [x.encode("utf-8") for x in batch]) for name, batch in CALLS]
    odd = [b"\xff\xfe the dog", b"the dog runs.", b"\xc3"]
    calls += [("serving_default", []), ("serving_default", odd)]
    answer = by_c_api(saved_model, calls)
    roots = {name.split(".")[0] for name in answer["modules"]}
    assert "ctypes" in roots
    assert not roots & {"tensorflow", "tensorflow_text", "keras", "keras_transformer"}
    *answers, empty, invalid = answer["answers"]
    rows = [
        np.array(unhex(output["values"]), object).reshape(output["shape"]).tolist()
        for output, _ in answers
    ]
    assert_calls(rows, expected)
    scores = [best.score for best in tiny_run.translator().translate(BATCHES[0])]
    assert answers[0][1]["values"] == pytest.approx(scores, rel=1e-4)
    assert empty == [{"shape": [0], "values": []}] * 2
    # What is no UTF-8 leaves its neighbours alone.
    (alone,) = tiny_run.translator()(["the dog runs."])
    found = unhex(invalid[0]["values"])
    assert len(found) == 3 and found[1] == alone.encode("utf-8")


@pytest.fixture(scope="module")
def server(saved_model):
    with running(saved_model.parent) as server:
        yield server


def bytes_of(value):
    """Strings of an answer, nested as they were: TensorFlow Serving's bytes too."""
    if isinstance(value, str):
        return value.encode("utf-8")
    return [*map(bytes_of, value)]


def predict(client, url, name, batch, by_row):
    """Asks for a batch in row or column form; returns what `OUTPUT` names."""
    body = {"signature_name": name}
    if by_row:
        body["instances"] = [{"text": sentence} for sentence in batch]
    else:
        body["inputs"] = {"text": batch}
    response = client.post(url + ":predict", json=body)
    assert response.status_code == 200, response.text
    if by_row:
        rows = response.json()["predictions"]
        return [bytes_of(row[OUTPUT[name]]) for row in rows]
    return bytes_of(response.json()["outputs"][OUTPUT[name]])


@pytest.mark.one_case("columns")
@pytest.mark.parametrize("by_row", [True, False], ids=["rows", "columns"])
def test_the_local_server_gives_a_lone_client_the_same_bytes(server, expected, by_row):
    answers = [
        predict(server.client, server.url, name, batch, by_row) for name, batch in CALLS
    ]
    assert_calls(answers, expected)


@pytest.mark.one_case("nbest")
@pytest.mark.parametrize("name", OUTPUT)
def test_32_clients_at_once_get_what_a_lone_client_gets(server, expected, name):
    by_sentence = dict(zip(SENTENCES, expected[name], strict=True))

    def client(number):
        """Sends every sentence alone, in an order of its own, and a batch of 32."""
        order = SENTENCES[number:] + SENTENCES[:number]
        batch = [SENTENCES[(number * 7 + i) % 60] for i in range(32)]
        with httpx.Client(timeout=SECONDS) as http:
            for sentence in order[:6]:
                (answer,) = predict(http, server.url, name, [sentence], number % 2)
                assert answer == by_sentence[sentence]
            answers = predict(http, server.url, name, batch, number % 2)
        assert answers == [by_sentence[sentence] for sentence in batch]
        return number

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as threads:
        assert [*threads.map(client, range(CLIENTS))] == [*range(CLIENTS)]


def test_bytes_that_are_no_utf8_are_refused(server):
    """JSON carries bytes as base 64."""

    def response(*texts):
        rows = [{"b64": base64.b64encode(text).decode("ascii")} for text in texts]
        return server.predict({"inputs": {"text": rows}})

    good = "the döng runs.".encode()
    for odd in (b"\xff\xfe the dog", b"\xc3", b"\xf0\x9f"):
        refused = response(good, odd)
        assert refused.status_code == 400
        assert "`text[1]` must be UTF-8" in refused.json()["error"]
    (live,) = tiny_run.translator()([good.decode()])
    assert response(good).json()["outputs"]["translation"] == [live]
