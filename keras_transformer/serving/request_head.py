"""Checks of a request's head: its length and its `Host`."""

from __future__ import annotations

import ipaddress
import re

from starlette.requests import Request

from keras_transformer.serving.errors import RequestError

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


def check_host(request: Request, own_name: str, is_strict: bool = False):
    """Raises a `RequestError` if a local request names another machine.

    A web page whose name is made to resolve to 127.0.0.1 could otherwise read answers
    through the browser of whoever opens it (DNS rebinding). The names that others have
    for this machine are not known, so over the network any is right, or any address
    where the check is strict: an address cannot be made to resolve.

    Args:
        request: The request.
        own_name: A name to accept besides those of the loopback address.
        is_strict: Whether a request over the network is checked too.
    """
    host = request.headers.get("host")
    is_local = _is_loopback(request.scope["server"][0])
    if not is_strict and (host is None or not is_local):
        return
    match = _HOST.fullmatch((host or "").lower())
    name = match and (match["ipv6"] or match["name"])
    is_right = name is not None and (
        name == own_name.lower()
        or _is_loopback(name)
        or (not is_local and _address(name) is not None)
    )
    if not is_right:
        raise RequestError(
            403,
            f"This server is not {host}: ask for localhost, or start the server with "
            "that name as its `--host`",
        )


def _is_loopback(name):
    address = _address(name)
    if address is None:
        return name == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _address(name):
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
