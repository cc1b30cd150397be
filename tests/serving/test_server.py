"""The process of the local server: how it starts, what stops it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from keras_transformer.serving import ServingConfig, serve
from keras_transformer.serving.server import bind
from tests import tiny_run
from tests.serving.tiny_models import running, wait_until, write_model

PROGRAM = """
import resource, sys
from keras_transformer.serving import ServingConfig, serve, versions
directory, drain_timeout_s, descriptors = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
# A named pipe then stands for all that may hang while a version is loaded.
versions._check_regular = lambda path: None
serve(directory, ServingConfig(port=0, drain_timeout_s=float(drain_timeout_s)))
print("returned")
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    write_model(directory, 1)
    return directory


@contextlib.contextmanager
def process(directory, drain_timeout_s=30.0, descriptors=1024):
    """Gives a server's process and its URL."""
    options = [str(directory), str(drain_timeout_s), str(descriptors)]
    command = [sys.executable, "-c", PROGRAM, *options]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in started.stderr:
            if match := re.search(r"(http://\S+) is served", line):
                break
        else:
            pytest.fail("the server did not start")
        yield started, match[1]
    finally:
        started.kill()
        started.communicate()


def stop_while_it_runs(started, url, number, steps):
    """Sends a signal during a request; returns its response."""
    body = {"instances": [steps], "signature_name": "spin"}
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        answer = threads.submit(httpx.post, url + ":predict", json=body, timeout=60)
        time.sleep(0.3)
        assert not answer.done()
        started.send_signal(number)
        return answer.result()


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
)
def test_a_signal_ends_the_server_when_running_requests_are_answered(directory, number):
    with process(directory) as (started, url):
        response = stop_while_it_runs(started, url, number, 400_000)
        assert response.json() == {"predictions": [400_000]}
        output, _ = started.communicate(timeout=60)
        assert (started.returncode, output) == (0, "returned\n")


@pytest.mark.slow
def test_what_runs_longer_than_the_limit_is_cut_off(directory):
    with process(directory, drain_timeout_s=0.5) as (started, url):
        response = stop_while_it_runs(started, url, signal.SIGTERM, 30_000_000)
        assert response.status_code == 500
        _, errors = started.communicate(timeout=10)
        assert started.returncode == 1
        assert "1 runs were cut off" in errors


@pytest.mark.slow
def test_a_signal_ends_the_server_while_a_version_hangs(directory, tmp_path):
    copy = tmp_path / "tiny"
    shutil.copytree(directory, copy)
    with process(copy) as (started, url):
        (copy / "2").mkdir()
        os.mkfifo(copy / "2" / "saved_model.pb")
        wait_until(lambda: httpx.get(url + "/versions/2").status_code == 200)
        started.send_signal(signal.SIGTERM)
        assert started.wait(60) == 0


@pytest.mark.slow
def test_more_silent_connections_than_descriptors_keep_nobody_out(directory):
    with (
        process(directory, descriptors=256) as (started, url),
        contextlib.ExitStack() as stack,
    ):
        address = ("127.0.0.1", httpx.URL(url).port)
        for _ in range(400):
            stack.enter_context(socket.create_connection(address, 30))
        for _ in range(3):
            assert httpx.get(url, timeout=30).status_code == 200
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=60)
        assert started.returncode == 0
        assert "out of system resource" not in errors


def test_a_taken_port_is_told_at_once(directory):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"Cannot listen on 127.0.0.1:{port}: Addr"):
            serve(directory, ServingConfig(port=port))


def test_answers_are_sent_without_delay():
    """asyncio sets TCP_NODELAY only where a socket names its protocol."""
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_directory_without_a_model_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no SavedModel"):
        serve(tmp_path / "missing", ServingConfig(port=0))


def test_a_missing_extra_is_named(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(
        ImportError, match=r"install keras-transformer-seq2seq\[serve\]"
    ):
        serve(directory)


@pytest.mark.parametrize(
    "options", [{"port": 65536}, {"max_batch_size": 0}, {"request_timeout_s": 0.0}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="must be"):
        ServingConfig(**options)


def test_a_served_translator_translates_as_the_live_one(tmp_path_factory):
    texts = [source for source, _ in tiny_run.PAIRS[:12]] + ["", "\0", "\N{SNOWMAN}"]
    live = tiny_run.translator()(texts)
    directory = tiny_run.saved_model(tmp_path_factory).parent
    with (
        running(directory) as server,
        concurrent.futures.ThreadPoolExecutor(len(texts)) as threads,
    ):

        def ask(text):
            [row] = server.predict({"instances": [text]}).json()["predictions"]
            return row["translation"]

        assert list(threads.map(ask, texts)) == live
        rows = server.predict({"instances": texts}).json()["predictions"]
        assert [row["translation"] for row in rows] == live
        columns = server.predict({"inputs": texts}).json()["outputs"]
        assert columns["translation"] == live


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_client_in_javascript_reads_its_translations(tmp_path_factory):
    texts = [source for source, _ in tiny_run.VALID[:2]]
    client = Path(__file__).parents[2] / "examples" / "rest_client.mjs"
    with running(tiny_run.saved_model(tmp_path_factory).parent) as server:
        done = subprocess.run(
            ["node", client, "tiny", *texts], capture_output=True, timeout=60,
            env=os.environ | {"SERVER": server.url.partition("/v1")[0]},
            encoding="utf-8", check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == tiny_run.translator()(texts)
