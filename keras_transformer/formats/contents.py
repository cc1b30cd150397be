"""The options and tensors of other systems' files.

No code of a file is run. An option or a tensor that is not used is an error, because it
may change what the model computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.extras import required
from keras_transformer.files import read_json


@contextlib.contextmanager
def described(text: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turns `errors` of a block into a `ValueError` of one line, `text` first."""
    try:
        yield
    except errors as error:
        reason = " ".join(str(error).split())
        # Libraries may quote long content after the reason.
        reason = f"{reason[:200]}..." if len(reason) > 200 else reason
        raise ValueError(f"{text}: {reason or type(error).__name__}") from error


def content_of(path: Path) -> bytes:
    """Returns the content of a file; Git LFS must have put it there."""
    content = path.read_bytes()
    if content.startswith(b"version https://git-lfs.github.com/spec/"):
        raise ValueError(
            f"{path} is a pointer of Git LFS, not the file: fetch that with `git lfs "
            "pull` in the clone, or the whole folder with `hf download`"
        )
    return content


def read_yaml(content: bytes, origin: str | Path, as_text: bool = False) -> Any:
    """Returns the value of YAML; `as_text` leaves every scalar a string."""
    yaml = required("yaml", "This import needs PyYAML", "import")
    name = "BaseLoader" if as_text else "SafeLoader"
    # The loaders in C are many times faster, if PyYAML has them.
    loader = getattr(yaml, f"C{name}", None) or getattr(yaml, name)
    failures = yaml.YAMLError, ValueError, RecursionError
    with described(f"{origin} is not YAML in UTF-8", failures):
        text = content.decode("utf-8")
        return yaml.load(text, loader)  # noqa: S506, both loaders make plain values


class Options:
    """Options of another system's model; each is read, passed over or refused."""

    def __init__(self, values: Any, origin: str | Path):
        if not isinstance(values, Mapping):
            raise ValueError(f"{origin} must hold options by name")
        self.values = {str(name): value for name, value in values.items()}
        self.origin = origin
        self._left = set(self.values)

    def number(self, name: str, default: float | None = None) -> Any:
        """Returns an integer; any number as a float, if the default is one."""
        value = self._value(name, default)
        value = default if value is None else value
        is_real = isinstance(default, float)
        kinds = (int, float) if is_real else int
        if not isinstance(value, kinds) or isinstance(value, bool):
            what = "a number" if is_real else "an integer"
            raise self.error(name, f"must be {what}")
        return float(value) if is_real else value

    def one_of(self, name: str, *accepted: Any, default: Any = None) -> Any:
        """Returns an option that has one of the supported values."""
        value = self._value(name, default)
        if value not in accepted:  # 0 equals False, as in other systems.
            words = " or ".join(map(repr, accepted))
            raise self.error(name, f"must be {words}: nothing else is supported")
        return value

    def check(self, needed: Mapping[str, tuple]):
        """Checks options that must have one of some values if they are given."""
        for name, accepted in needed.items():
            if name in self.values:
                self.one_of(name, *accepted)

    def pass_over(self, *names: str):
        """Marks options that do not change what the model computes."""
        self._left.difference_update(names)

    def check_none_left(self):
        """Raises `ValueError` if an option was not read."""
        if self._left:
            raise self.error(min(self._left), "is not supported")

    def error(self, name: str, rule: str) -> ValueError:
        """Returns the error of an option that breaks a rule."""
        received = f"{self.values.get(name)!r:.60}"
        return ValueError(f"{self.origin}: `{name}` {rule}. Received: {received}")

    def _value(self, name, default):
        self._left.discard(name)
        if name not in self.values and default is None:
            raise ValueError(f"{self.origin}: the option `{name}` is missing")
        return self.values.get(name, default)


def read_options(path: Path, as_text: bool = False) -> Options:
    """Returns the options in a file of JSON or YAML; `as_text` is that of YAML."""
    content = content_of(path)
    if path.suffix == ".json":
        return Options(read_json(path), path)
    return Options(read_yaml(content, path, as_text), path)


def first_with(name: str, *files: Options) -> Options:
    """Returns the first of some files that has an option, or the last one."""
    return next((o for o in files if o.values.get(name) is not None), files[-1])


class Tensors:
    """The named arrays of a file, each checked when it is taken."""

    def __init__(self, arrays: Mapping[str, np.ndarray], origin: Path):
        self._arrays = dict(arrays)
        self._left = set(self._arrays)
        self._origin = origin

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def take(self, name: str, *shape: int | None) -> np.ndarray:
        """Returns an array as float32; an axis `None` has any size."""
        if name not in self._arrays:
            raise ValueError(f"{self._origin}: the tensor {name} is missing")
        array = self._arrays[name]
        fits = len(shape) == array.ndim and all(
            axis in (None, size) for axis, size in zip(shape, array.shape, strict=True)
        )
        if not fits:
            expected = ", ".join("any" if axis is None else str(axis) for axis in shape)
            raise ValueError(
                f"{self._origin}: {name} must have the shape ({expected}). Received: "
                f"{array.shape}"
            )
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ValueError(
                f"{self._origin}: {name} must have finite floating-point numbers. "
                f"Received: {array.dtype}"
            )
        self._left.discard(name)
        return np.ascontiguousarray(array, np.float32)

    def pass_over(self, *names: str):
        """Marks arrays that are not needed, if they exist."""
        self._left.difference_update(names)

    def check_none_left(self):
        """Raises `ValueError` if an array was not taken."""
        if self._left:
            more = f" and {len(self._left) - 1} more" if len(self._left) > 1 else ""
            raise ValueError(
                f"{self._origin}: a `Transformer` has no place for the tensor "
                f"{min(self._left)}{more}"
            )
