"""What the head of a request says: lengths, names of the server, encodings."""

from __future__ import annotations

import gzip
import socket
import tracemalloc

import httpx
import pytest
from starlette.requests import Request

from keras_transformer.serving.errors import RequestError
from keras_transformer.serving.request_body import decode_body
from keras_transformer.serving.request_head import check_host
from tests.serving.tiny_models import running, write_model


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    write_model(directory, 1)
    with running(directory) as server:
        yield server


def send(server, content):
    """Returns the answers to any bytes, until the server closes the connection."""
    address = ("127.0.0.1", httpx.URL(server.url).port)
    with socket.create_connection(address, 30) as client:
        client.sendall(content)
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_a_length_given_in_two_ways_closes_the_connection(server):
    second = b"GET /v1/models/tiny HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = send(
        server,
        b"POST /v1/models/tiny:predict HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
    )
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Both Content-Length and Transfer-Encoding" in answer


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:1", 200),
        ("127.0.0.1:8501", 200),
        ("127.3.2.1", 200),
        ("[::1]:8501", 200),
        ("evil.example", 403),
        ("evil.example:8501", 403),
        ("localhost.evil.example", 403),
        ("evil.example@localhost", 403),
        ("192.168.0.1", 403),
        ("[fe80::1]", 403),
        ("", 403),
    ],
)
def test_on_this_machine_only_its_own_names_are_answered(server, host, status):
    for method, url in (("GET", server.url), ("POST", server.url + ":predict")):
        response = server.client.request(
            method, url, headers={"Host": host}, content=b'{"instances": ["a"]}'
        )
        assert response.status_code == status
        assert (f"This server is not {host}:" in response.text) == (status == 403)


@pytest.mark.parametrize(
    ("server_address", "host", "is_right"),
    [
        ("127.0.0.1", "My-Name:8501", True),
        ("127.0.0.1", "other-name", False),
        ("::ffff:127.0.0.1", "other-name", False),
        ("::1", "other-name", False),
        ("192.168.0.7", "other-name", True),
        ("127.0.0.1", None, True),  # HTTP/1.0; no browser sends that.
    ],
)
def test_a_name_is_right_if_it_was_given_or_asked_over_the_network(
    server_address, host, is_right
):
    headers = [] if host is None else [(b"host", host.encode())]
    request = Request(
        {"type": "http", "server": (server_address, 8501), "headers": headers}
    )
    if is_right:
        check_host(request, "my-name")
    else:
        with pytest.raises(RequestError, match="is not other-name"):
            check_host(request, "my-name")


GOOD = b'{"instances": ["ab"]}'


@pytest.mark.parametrize("encoding", ["gzip", "GZIP"])
def test_a_gzip_body_is_read(server, encoding):
    headers = {"Content-Encoding": encoding}
    body = gzip.compress(GOOD)
    response = server.client.post(
        server.url + ":predict", content=body, headers=headers
    )
    assert response.json() == {"predictions": ["AB"]}


@pytest.mark.parametrize(
    ("encoding", "body", "status", "message"),
    [
        ("gzip", GOOD, 400, "is not gzip"),
        ("gzip", b"", 400, "is not one whole gzip file"),
        ("gzip", gzip.compress(GOOD)[:-1], 400, "is not one whole gzip file"),
        ("gzip", gzip.compress(GOOD) + b"x", 400, "is not one whole gzip file"),
        ("gzip", gzip.compress(b" " * (8 * 2**20 + 1)), 413, "larger than 8388608"),
        ("br", GOOD, 415, "is encoded as br: send gzip or none"),
        ("gzip, gzip", gzip.compress(gzip.compress(GOOD)), 415, "send gzip or none"),
    ],
    ids=["plain", "empty", "cut", "more", "large", "brotli", "twice"],
)
def test_bodies_of_other_encodings_are_errors(server, encoding, body, status, message):
    headers = {"Content-Encoding": encoding}
    response = server.client.post(
        server.url + ":predict", content=body, headers=headers
    )
    assert response.status_code == status
    assert message in response.json()["error"]
    assert response.headers.get("accept-encoding") == (
        "gzip" if status == 415 else None
    )


def test_a_gzip_body_is_inflated_no_further_than_its_limit():
    bomb = gzip.compress(bytes(2**26))
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="larger than 1000 bytes"):
            decode_body(bomb, "gzip", 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
