"""Printing of messages, made safe for a terminal, and of exact results.

File names, lines of a corpus and translations may contain escape sequences, markup such
as "[bold]", or characters that the encoding of the stream lacks.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

# Control characters other than tab, characters that end a line or change its direction,
# and surrogates, which are bytes of file names that are not text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, encoding: str | None = "utf-8") -> str:
    """Returns a text on one line, with escapes for unsafe or unencodable characters."""
    text = _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(console, text: str):
    """Prints a message, without markup, on one line of a Rich console."""
    console.out(printable(text, console.encoding), highlight=False)


def in_time(sentences: int, seconds: float, rate: float | None) -> str:
    """Returns how long sentences took; `rate` is their number a second, if known."""
    speed = "start included" if rate is None else f"{rate:.1f} sentences/s"
    return f"{plural(sentences, 'sentence')} in {seconds:.1f} s ({speed})"


def in_doubt(counts: Mapping[str, int]) -> str:
    """Returns how many translations have each of `Translation.doubts`."""
    found = [f"{name} {count:,}" for name, count in sorted(counts.items())]
    return f"doubtful: {', '.join(found)}"


def plain_console():
    """Returns a Rich console that prints plain lines in a notebook."""
    from rich.console import Console

    console = Console()
    if console.is_jupyter:
        # Otherwise a notebook keeps every move of a progress bar.
        return Console(force_jupyter=False, force_terminal=False)
    return console


def warn(console, text: str):
    """Prints a warning on a Rich console; from a quiet one on standard error."""
    if console.quiet:
        print_warning(text)
    else:
        say(console, f"warning: {text}")


def print_warning(text: str):
    """Prints a warning of the command line on standard error."""
    print_message(f"keras-transformer: warning: {text}")


def print_message(text: str):
    """Prints a message on one line of standard error."""
    if sys.stderr is not None:
        print(printable(text, sys.stderr.encoding), file=sys.stderr)  # noqa: T201


def print_result(result: str | Path):
    """Prints one line of a result, and flushes it.

    A terminal gets escapes, a file the exact bytes.
    """
    stream = sys.stdout
    if stream is None:
        return
    if stream.isatty() or not hasattr(stream, "buffer"):
        print(printable(str(result), stream.encoding), flush=True)  # noqa: T201
        return
    content = str(result).encode("utf-8", "surrogateescape")
    stream.flush()
    stream.buffer.write(content + b"\n")
    stream.buffer.flush()


@contextlib.contextmanager
def native_messages_hidden() -> Iterator[None]:
    """Hides all output to standard error in the block, that of native code included."""
    if sys.stderr is not None:
        sys.stderr.flush()
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def replace_closed_streams():
    """Opens the null device for each closed standard stream; `sys.stdin` stays `None`.

    Otherwise messages of native code could be written to a file with its number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)


def plural(number: float, noun: str) -> str:
    """Returns a number with its noun: "1 update", "1,200 updates"."""
    ending = "es" if noun.endswith("tch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"
