"""How many connections there are, and how long the head of a request may take."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import resource
import socket
import threading

import httpx
import pytest

from keras_transformer.serving import connections
from tests.serving.tiny_models import running, wait_until, write_model

HEAD = b"GET /v1/models/tiny HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    write_model(directory, 1)
    return directory


def connect(server):
    """A connection that fails what it waits for after half a minute."""
    return socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), 30)


def test_a_slow_head_or_none_closes_the_connection(directory, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with running(directory) as server:
        with connect(server) as silent:
            assert silent.recv(1) == b""
        with connect(server) as slow, contextlib.suppress(ConnectionError):
            while not server_has_closed(slow):
                slow.sendall(b"G")
        with connect(server) as second:
            second.sendall(HEAD + b"\r\n")
            assert second.recv(15) == b"HTTP/1.1 200 OK"
            second.sendall(HEAD)
            answer = iter(lambda: second.recv(65536), b"")
            assert b"".join(answer).count(b"HTTP/1.1") == 0


def server_has_closed(client):
    """Whether the server closes the connection within a moment."""
    client.settimeout(0.01)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False


def test_neither_an_answer_nor_a_pause_before_a_request_counts(directory, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    with running(directory) as server, connect(server) as client:
        body = b'{"signature_name": "spin", "instances": [150000]}'
        client.sendall(
            b"POST /v1/models/tiny:predict HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body)
        )
        threading.Event().wait(0.8)
        client.sendall(body)
        answer = b""
        while b"150000" not in answer:
            answer += client.recv(65536)
        threading.Event().wait(0.8)
        client.sendall(HEAD + b"\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_silent_connections_keep_nobody_out(directory, monkeypatch):
    monkeypatch.setattr(connections, "_MOST_CONNECTIONS", 5)
    slow = {"instances": [200_000], "signature_name": "spin"}
    with (
        running(directory) as server,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
        contextlib.ExitStack() as stack,
    ):
        answer = threads.submit(server.predict, slow)
        wait_until(lambda: server.workers.running)
        silent = [stack.enter_context(connect(server)) for _ in range(20)]
        for _ in range(3):
            assert httpx.get(server.url, timeout=30).status_code == 200
        # The oldest go; the request in progress stays.
        for client in silent[:12]:
            assert client.recv(1) == b""
        assert not server_has_closed(silent[-1])
        assert len(server.server.server_state.connections) <= 5
        assert answer.result().json() == {"predictions": [200_000]}


def test_where_all_are_busy_a_new_connection_is_closed(directory, monkeypatch):
    monkeypatch.setattr(connections, "_MOST_CONNECTIONS", 1)
    slow = {"instances": [200_000], "signature_name": "spin"}
    with (
        running(directory) as server,
        concurrent.futures.ThreadPoolExecutor(1) as threads,
    ):
        answer = threads.submit(server.predict, slow)
        wait_until(lambda: server.workers.running)
        with connect(server) as client:
            assert client.recv(1) == b""
        assert answer.result().status_code == 200


@pytest.mark.parametrize(
    ("more", "expected"), [(150, 150 - 96), (100_000, 1024), (20, 1)]
)
def test_connections_leave_descriptors_for_the_rest(monkeypatch, more, expected):
    taken = len(os.listdir("/dev/fd"))
    limits = (taken + more, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    assert connections.most_connections() == expected


def test_without_a_limit_of_descriptors_there_is_one_of_connections(monkeypatch):
    limits = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    assert connections.most_connections() == 1024
