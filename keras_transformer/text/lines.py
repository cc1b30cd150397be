"""Lines of a text file, gzip or not, as bytes; and a text as one line.

Only a line feed ends a line (a carriage return before it is dropped), so that no odd
character inside a sentence can put two files out of step.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAX_LINE_BYTES = 1 << 18


def checked_path(path: str | Path) -> Path:
    """Returns `path`, if it is a file that can be read more than once, or raises."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(
            f"{path} must be a regular file, since it is read more than once. "
            f"Received: a {'directory' if path.is_dir() else 'pipe or device'}"
        )
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file, unpacked, after its byte order mark; errors name the file."""
    with open(path, "rb") as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        # The buffer makes reading line by line several times faster.
        stream = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
        try:
            if stream.peek(3)[:3] == b"\xef\xbb\xbf":
                stream.read(3)
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from error


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file without their line ends, in constant memory.

    Args:
        path: Text file, gzip or not; a byte order mark at its start is dropped.

    Yields:
        Bytes; a line longer than `MAX_LINE_BYTES` is cut to that.

    Raises:
        ValueError: If the gzip data is damaged.
    """
    with opened(path) as stream:
        yield from lines_of(stream)


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a binary stream as `read_lines` does those of a file."""
    while line := stream.readline(MAX_LINE_BYTES):
        rest = line
        while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def one_line(text: str) -> str:
    """Returns a text without line breaks: one would shift all lines after it."""
    return " ".join(text.splitlines())
