"""An error or a warning in one line."""

from __future__ import annotations

import contextlib
import warnings

from keras_transformer.terminal import print_message


def print_error(error: str | Exception):
    """Prints one line about an error; its kind too where its text says too little."""
    print_message(f"keras-transformer: error: {_describe(error)}")


def _describe(error):
    expected = (ValueError, TypeError, ImportError, FloatingPointError, OSError)
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    message = " ".join(str(error).split())
    if isinstance(error, (str, *expected)) and message:
        return message
    hint = "keras-transformer --traceback VERB ... shows where"
    return f"{type(error).__name__}: {message} ({hint})"


@contextlib.contextmanager
def warnings_as_lines():
    """Prints each warning of the block once, on a line like that of an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default", UserWarning)
        yield
    for warning in dict.fromkeys(str(warning.message) for warning in caught):
        message = " ".join(warning.split())
        print_message(f"keras-transformer: warning: {message}")
