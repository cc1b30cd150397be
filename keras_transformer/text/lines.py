"""The lines of text files, as bytes of UTF-8.

Only a line feed ends a line, and a carriage return before it is dropped: no other
character in a sentence can shift the lines of one file against another.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from keras_transformer.files import replacing

MAX_LINE_BYTES = 1 << 18
# What a file may begin with. The mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_SHEET = "save it as tab-separated text or as CSV (UTF-8)"
_UNPACK = "unpack it first, or pack it with gzip"
_REFUSED = {
    b"PK\x03\x04": f"a spreadsheet (.xlsx, .ods) or a .zip: {_SHEET}, or {_UNPACK}",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": f"a spreadsheet (.xls): {_SHEET}",
    b"PAR1": "a Parquet file: give `open_pairs` what `pandas.read_parquet` returns",
    b"BZh91AY&SY": f"packed with bzip2: {_UNPACK}",
    b"\xfd7zXZ\x00": f"packed with xz: {_UNPACK}",
    b"\x28\xb5\x2f\xfd": f"packed with Zstandard: {_UNPACK}",
}
_INVALID = b"\x81"  # Neither UTF-8 nor Windows-1252.
_SAMPLE = 1 << 12  # Bytes that show the encoding of a file.


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[io.BufferedReader]:
    """Opens a file, gzip or not; errors name the file. Refuses what is no text."""
    with open(path, "rb") as raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        # The buffer makes reading line by line several times faster.
        stream = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
        try:
            start = stream.peek(_SAMPLE)
            for mark, what in _REFUSED.items():
                if start.startswith(mark):
                    raise ValueError(f"{path} is {what}.")
            yield stream
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from error


@contextlib.contextmanager
def opened(path: Path, encoding: str | None = None) -> Iterator[io.BufferedReader]:
    """Opens a file as UTF-8 after its byte order mark, which counts before `encoding`.

    Raises `ValueError` if it has none and looks like UTF-16.
    """
    with unpacked(path) as stream:
        start = stream.peek(_SAMPLE)[:_SAMPLE]
        marked = (name for mark, name in _MARKS.items() if start.startswith(mark))
        found = next(marked, encoding)
        if found is None and 4 * start.count(0) > len(start):
            name = "utf-16-le" if start[0] else "utf-16-be"
            raise ValueError(
                f"{path}:1: every second byte is 0, as in UTF-16 without a byte order "
                f"mark: `encoding` {name!r} (--encoding {name}) reads that."
            )
        if found == "utf-8-sig":
            stream.read(3)
        elif found and codecs.lookup(found).name != "utf-8":
            stream = io.BufferedReader(_Recoded(stream, found))
        yield stream


class _Recoded(io.RawIOBase):
    """A stream of another encoding as UTF-8, with `_INVALID` where it is damaged."""

    def __init__(self, stream, encoding):
        self._text = io.TextIOWrapper(stream, encoding, "replace", newline="")

    def readable(self):
        return True

    def readinto(self, buffer):
        # A character has four bytes at most.
        content = self._text.read(len(buffer) // 4).encode("utf-8", "surrogatepass")
        content = content.replace("\ufffd".encode(), _INVALID)
        buffer[: len(content)] = content
        return len(content)


def read_lines(path: Path, encoding: str | None = None) -> Iterator[bytes]:
    """Yields the lines of a text file, gzip or not, as bytes without line ends.

    A byte order mark is dropped, and a line is cut after `MAX_LINE_BYTES`. Raises
    `ValueError` if the gzip data is damaged, or as `opened` does.
    """
    with opened(path, encoding) as stream:
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


def pair_line(source: str, target: str) -> str:
    """Returns the line of a pair in a file: source, tab, target."""
    return "\t".join(one_line(text.replace("\t", " ")) for text in (source, target))


def write_lines(path: str | Path, texts: Iterable[str]) -> int:
    """Writes texts to a file, one per line, and returns their number.

    The file is written whole or not at all; gzip if its name ends in ".gz".
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    with (
        replacing(path) as temporary,
        opener(temporary, "wt", encoding="utf-8", newline="\n") as file,
    ):
        for number, text in enumerate(texts, 1):  # noqa: B007
            file.write(one_line(text) + "\n")
    return number
