"""Files as plain values, and errors in one line: bytes, text, JSON, YAML, choices."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# More than any configuration has (bytes); a vocabulary may be larger.
_MOST_OF_TEXT = 2**26


class Bytes:
    """The bytes of a file, read in order and never beyond their end.

    Args:
        path: The file.
    """

    def __init__(self, path: Path):
        self.path = path
        self._bytes = memoryview(path.read_bytes())
        self._at = 0

    def take(self, count: int) -> memoryview:
        """Returns the next bytes.

        Raises:
            ValueError: If there are fewer.
        """
        left = len(self._bytes) - self._at
        if not 0 <= count <= left:
            raise ValueError(
                f"{self.path} is damaged: at byte {self._at:,} it claims {count:,} "
                f"bytes more, and {left:,} are left"
            )
        self._at += count
        return self._bytes[self._at - count : self._at]

    def numbers(self, kind: str, count: int = 1) -> tuple:
        """Returns little-endian numbers of a kind of `struct`, such as "Q"."""
        # The product is compared with the file's size before anything is made.
        taken = self.take(count * struct.calcsize(f"<{kind}"))
        return struct.unpack(f"<{count}{kind}", taken)

    def name(self, length: int) -> str:
        """Returns a name that ends in a zero byte, which `length` counts.

        Raises:
            ValueError: If it does not, or is not UTF-8.
        """
        taken = bytes(self.take(length))
        if taken[-1:] != b"\0":
            raise ValueError(f"{self.path} is damaged: a name does not end")
        with described(f"{self.path} is damaged: a name is not UTF-8", UnicodeError):
            return taken[:-1].decode("utf-8")

    def array(self, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Returns an array of the next bytes, which it shares."""
        count = size_of(shape)
        taken = self.take(count * np.dtype(dtype).itemsize)
        return np.frombuffer(taken, dtype, count).reshape(shape)


def size_of(shape: tuple[int, ...]) -> int:
    """Returns the number of elements of a shape, however large."""
    size = 1
    for axis in shape:
        size *= axis
    return size


@contextlib.contextmanager
def described(text: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns errors of a block into a `ValueError` of one line that begins with `text`.

    Args:
        text: What was being done, or to what.
        *errors: Classes of the errors.
    """
    try:
        yield
    except errors as error:
        reason = " ".join(str(error).split())
        # The beginning says it; what libraries quote may be long.
        reason = f"{reason[:200]}..." if len(reason) > 200 else reason
        raise ValueError(f"{text}: {reason or type(error).__name__}") from error


def read_json(path: Path) -> Any:
    """Returns the value of a JSON file.

    Raises:
        FileNotFoundError: If it is missing.
        ValueError: If it is no JSON.
    """
    with described(f"{path} is no JSON", ValueError, RecursionError):
        return json.loads(_text(path))


def read_yaml(path: Path, as_text: bool = False) -> Any:
    """Returns the value of a YAML file; see `parse_yaml`."""
    return parse_yaml(_text(path), path, as_text)


def parse_yaml(text: str | bytes, origin: str | Path, as_text: bool = False) -> Any:
    """Returns the plain value of YAML; no tag of it makes an object.

    Args:
        text: The YAML.
        origin: What has it, for errors.
        as_text: Whether every scalar is a string: `no` or `1` may be a word.

    Raises:
        ImportError: If PyYAML is not installed.
        ValueError: If it is no YAML, or has tags of Python's objects.
    """
    yaml = required("yaml", "PyYAML")
    loader = (
        getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        if as_text
        else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    failures = (yaml.YAMLError, ValueError, RecursionError)
    with described(f"{origin} is no YAML that can be read", *failures):
        return yaml.load(text, loader)  # noqa: S506, both loaders make plain values


def required(module: str, package: str) -> Any:
    """Imports a library that importers need.

    Raises:
        ImportError: If it is not installed; it names the extra.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This import needs {package}: pip install "
            "'keras-transformer-seq2seq[import]'"
        ) from error


def _text(path):
    size = path.stat().st_size
    if size > _MOST_OF_TEXT:
        raise ValueError(f"{path} is too large for what it is: {size:,} bytes")
    with described(f"{path} is not UTF-8", UnicodeError):
        return path.read_text("utf-8")


class Options:
    """Options of another system's model: each is read, known to be idle, or refused.

    Args:
        values: Options by name.
        origin: What has them, for errors.
    """

    def __init__(self, values: Any, origin: str | Path):
        if not isinstance(values, Mapping):
            raise ValueError(f"{origin} must hold options by name")
        self.values = {str(name): value for name, value in values.items()}
        self.origin = origin
        self._left = set(self.values)

    def number(self, name: str, default: Any = None, kind: type = int) -> Any:
        """Returns a number; an integer is a float too.

        Raises:
            ValueError: If it is missing without a default, or no number.
        """
        value = self._value(name, default)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not (is_integer or (kind is float and isinstance(value, float))):
            raise self.error(
                name, "must be a number" if kind is float else "must be a whole number"
            )
        return value

    def one_of(self, name: str, *accepted: Any, default: Any = None) -> Any:
        """Returns an option that has one of some values.

        Raises:
            ValueError: If it has another: the model uses what is not here.
        """
        value = self._value(name, default)
        # 0 and False are equal in Python, and other systems mix them too.
        if value not in accepted:
            words = " or ".join(map(repr, accepted))
            raise self.error(name, f"must be {words}: nothing else is built here")
        return value

    def pass_over(self, names: Iterable[str]):
        """Marks options that do not change what the model computes."""
        self._left.difference_update(names)

    def check_none_left(self):
        """Raises `ValueError` if there is an option that nobody asked for."""
        if self._left:
            name = min(self._left)
            raise self.error(name, "is not known, and may change what is computed")

    def error(self, name: str, rule: str) -> ValueError:
        """Returns the error that an option breaks a rule."""
        received = repr(self.values.get(name))
        received = f"{received[:60]}..." if len(received) > 60 else received
        return ValueError(f"{self.origin}: `{name}` {rule}. Received: {received}")

    def _value(self, name, default):
        self._left.discard(name)
        if name not in self.values and default is None:
            raise ValueError(f"{self.origin}: the option `{name}` is missing")
        return self.values.get(name, default)
