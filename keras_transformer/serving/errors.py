"""Errors of a request, with the HTTP status that TensorFlow Serving gives them."""

from __future__ import annotations

import re

# Codes of `tf.errors.OpError`: their names, and their HTTP status as http_server.cc of
# TensorFlow Serving has it.
_CODES = {
    1: ("CANCELLED", 499),
    2: ("UNKNOWN", 500),
    3: ("INVALID_ARGUMENT", 400),
    4: ("DEADLINE_EXCEEDED", 504),
    5: ("NOT_FOUND", 404),
    6: ("ALREADY_EXISTS", 409),
    7: ("PERMISSION_DENIED", 403),
    8: ("RESOURCE_EXHAUSTED", 429),
    9: ("FAILED_PRECONDITION", 400),
    10: ("ABORTED", 409),
    11: ("OUT_OF_RANGE", 400),
    12: ("UNIMPLEMENTED", 501),
    13: ("INTERNAL", 500),
    14: ("UNAVAILABLE", 503),
    15: ("DATA_LOSS", 500),
    16: ("UNAUTHENTICATED", 401),
}
# What Python's TensorFlow writes around the message of an operation.
_AROUND = re.compile(
    r"\AGraph execution error:.*?<stack traces unavailable>\s*| \[Op:\w+\]\Z", re.DOTALL
)


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status, such as 400.
        message: What the body's "error" says.
        headers: Headers of the answer besides the usual ones.
    """

    def __init__(self, status: int, message: str, headers: dict | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


def bad_request(message: str) -> RequestError:
    """Returns the error of a request that can never succeed (status 400)."""
    return RequestError(400, message)


def run_error(error: Exception) -> RequestError:
    """Returns the answer to a request whose signature failed with `error`."""
    return RequestError(_code(error)[1], describe(error))


def code_name(error: Exception) -> str:
    """Returns the name of an error's code, such as "NOT_FOUND"."""
    return _code(error)[0]


def describe(error: Exception) -> str:
    """Returns an error's text, without what Python's TensorFlow adds to it."""
    text = _AROUND.sub("", str(error)).strip()
    return text or type(error).__name__


def _code(error):
    return _CODES.get(getattr(error, "error_code", 2), _CODES[2])
