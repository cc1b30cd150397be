"""The lines of text files, as bytes.

Only a line feed ends a line, and a carriage return before it is dropped: no other
character in a sentence can shift the lines of one file against another.
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


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file, gzip or not, after its byte order mark; errors name the file."""
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
    """Yields the lines of a text file, gzip or not, as bytes without line ends.

    A byte order mark is dropped, and a line is cut after `MAX_LINE_BYTES`. Raises
    `ValueError` if the gzip data is damaged.
    """
    with opened(path) as stream:
        yield from lines_of(stream)


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines of a binary stream, as `read_lines` does for a file."""
    while line := stream.readline(MAX_LINE_BYTES):
        rest = line
        while len(rest) == MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def one_line(text: str) -> str:
    """Returns a text with spaces in place of its line breaks."""
    return " ".join(text.splitlines())
