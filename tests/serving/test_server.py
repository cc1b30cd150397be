"""The process of the local server: how it starts, what it logs, what ends it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from keras_transformer.serving import serve
from tests.serving.tiny_models import write_model

PROGRAM = """
import sys
from keras_transformer.serving import serve
serve(sys.argv[1], port=0)
print("returned")
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    write_model(directory, 9)
    shutil.copytree(directory / "9", directory / "10")
    (directory / "11").mkdir()  # Of an export that has just begun.
    return directory


@contextlib.contextmanager
def process(directory):
    """Gives a server's process and its URL."""
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
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
def test_a_signal_ends_it_when_what_runs_is_answered(directory, number, status, end):
    with (
        process(directory) as (started, url),
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        versions = httpx.get(url).json()["model_version_status"]
        assert [version["version"] for version in versions] == ["10"]
        body = {"instances": [400_000], "signature_name": "spin"}
        answer = threads.submit(httpx.post, url + ":predict", json=body, timeout=60)
        time.sleep(0.3)
        assert not answer.done()
        started.send_signal(number)
        assert answer.result().json() == {"predictions": [400_000]}
        output, _ = started.communicate(timeout=60)
        assert started.returncode == status
        line, _, last = output.rpartition(' HTTP/1.1" 200 OK\n')
        assert line.endswith('"POST /v1/models/tiny%3Apredict') and last == end


def test_a_mistake_is_told_before_tensorflow_is_loaded(directory, tmp_path):
    for missing in (tmp_path / "nothing", tmp_path, directory / "9"):
        with pytest.raises(FileNotFoundError, match="must hold SavedModels"):
            serve(missing)
    with pytest.raises(ValueError, match="`port` must be from 0 to 65535"):
        serve(directory, port=65536)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"Cannot listen on 127.0.0.1:{port}: Addr"):
            serve(directory, port=port)


def test_a_missing_extra_is_named(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"keras-transformer-seq2seq\[serve\]"):
        serve(directory)
