"""Reads the body of a request, up to a limit, and undoes its compression."""

from __future__ import annotations

import asyncio
import zlib

from starlette.requests import Request

from keras_transformer.serving.errors import RequestError, bad_request

# A body that is too large is read on and dropped, up to this many times the limit: a
# client may not look for an answer before it has sent everything.
_DROPPED = 8


async def read_body(
    request: Request, limit: int, seconds: float, keep: bool = True
) -> bytes:
    """Returns the body; with `keep=False` it is read and dropped.

    If bytes were left unread, closing the connection could destroy the answer.

    Args:
        request: The request.
        limit: Most bytes to return.
        seconds: Longest wait for the whole body.
        keep: Whether to return it.

    Raises:
        RequestError: If the body is too large (status 413) or too slow (408).
    """
    chunks, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= limit and keep:
                    chunks.append(chunk)
                elif size > _DROPPED * limit:
                    break
    except TimeoutError:
        raise RequestError(408, "The body of the request came too slowly") from None
    if size > limit:
        raise too_large(limit)
    return b"".join(chunks)


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
