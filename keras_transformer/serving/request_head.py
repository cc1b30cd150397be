"""Checks of a request's head: its length, its `Host`, the encoding of its body."""

from __future__ import annotations

import ipaddress
import re
import zlib

from starlette.requests import Request

from keras_transformer.serving.errors import RequestError, bad_request

_HOST = re.compile(r"\[(?P<ipv6>[^]]*)\](?::\d*)?|(?P<name>[^:]*)(?::\d*)?")


def check_framing(request: Request):
    """Raises a `RequestError` if a request states its length in two ways.

    Nobody knows where it ends, so the connection is closed: the bytes that follow must
    not be taken for another request (RFC 9112, section 6.1).
    """
    if {"content-length", "transfer-encoding"} <= set(request.headers):
        raise RequestError(
            400,
            "Both Content-Length and Transfer-Encoding: send one of them",
            {"Connection": "close"},
        )


def check_host(request: Request, own_name: str):
    """Raises a `RequestError` if a local request names another machine.

    A web page whose name is made to resolve to 127.0.0.1 could otherwise read answers
    through the browser of whoever opens it (DNS rebinding). Requests that come over the
    network are let through: the names that others have for this machine are not known.

    Args:
        request: The request.
        own_name: A name to accept besides those of the loopback address.
    """
    host = request.headers.get("host")
    if host is None or not _is_loopback(request.scope["server"][0]):
        return
    match = _HOST.fullmatch(host.lower())
    name = match and (match["ipv6"] or match["name"])
    if name is None or not (name == own_name.lower() or _is_loopback(name)):
        raise RequestError(
            403,
            f"This server is not {host}: ask for localhost, or start the server with "
            "that name as its `--host`",
        )


def _is_loopback(name):
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def decode_body(body: bytes, encoding: str, limit: int) -> bytes:
    """Returns a body, decompressed if it was compressed.

    Args:
        body: The body as it came.
        encoding: The header Content-Encoding, "" without one.
        limit: Most bytes to return.

    Raises:
        RequestError: If the encoding is not known, or the body is damaged or too large.
    """
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() != "gzip":
        raise RequestError(
            415,
            f"The body of the request is encoded as {encoding}: send gzip or none",
            {"Accept-Encoding": "gzip"},
        )
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # With gzip's header.
    try:
        # A few kilobytes may expand to gigabytes, so the output is limited.
        decoded = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise bad_request(f"The body of the request is not gzip: {error}") from None
    if len(decoded) > limit:
        raise too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise bad_request("The body of the request is not one whole gzip file")
    return decoded


def too_large(limit: int) -> RequestError:
    """Returns the error of a body of more than `limit` bytes."""
    return RequestError(413, f"The body of the request is larger than {limit} bytes")
