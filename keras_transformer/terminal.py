"""Printing: messages are made safe for a terminal, results are exact.

File names, lines of a corpus and translations are other people's words. Printed
unchanged, an escape sequence in them would reach the terminal, "[bold]" would be taken
for markup, and a character that the stream's encoding lacks would end a run.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Control characters, but for the harmless tab; characters that end a line or change its
# direction; surrogates, which stand for bytes of a file name that are not text.
_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str, encoding: str | None = "utf-8") -> str:
    """Returns a text on one line, with escapes for control characters.

    Characters that the encoding of the stream lacks become escapes too.
    """
    text = _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(console, text: str):
    """Prints a message on one line of Rich's console, nothing taken for markup."""
    console.out(printable(text, console.encoding), highlight=False)


def plain_console():
    """Returns Rich's console, which in a notebook prints lines in place of HTML."""
    from rich.console import Console

    console = Console()
    if console.is_jupyter:
        # There standard output calls itself a terminal, and keeps a bar's every move.
        return Console(force_jupyter=False, force_terminal=False)
    return console


def warnings_only():
    """Returns a Rich console on which `say` prints warnings, on standard error."""
    from rich.console import Console

    class Warnings(Console):
        def out(self, *objects, **options):
            if str(objects[0]).startswith("warning:"):
                super().out(*objects, **options)

    return Warnings(stderr=True, force_terminal=False)


def print_message(text: str):
    """Prints a message on one line of standard error."""
    if sys.stderr is not None:
        print(printable(text, sys.stderr.encoding), file=sys.stderr)  # noqa: T201


def print_result(result: str | Path):
    """Prints one line of a verb's result, and flushes it.

    A terminal gets escapes, a file the exact bytes: UTF-8, or a path as it is stored.
    """
    stream = sys.stdout
    if stream is None:
        return
    if stream.isatty() or not hasattr(stream, "buffer"):
        print(printable(str(result), stream.encoding), flush=True)  # noqa: T201
        return
    if isinstance(result, Path):
        content = os.fsencode(result)
    else:
        content = result.encode("utf-8", "surrogateescape")
    stream.flush()
    stream.buffer.write(content + b"\n")
    stream.buffer.flush()


@contextlib.contextmanager
def native_messages_hidden() -> Iterator[None]:
    """Hides what native code, and all else, prints to standard error in the block."""
    if sys.stderr is not None:
        sys.stderr.flush()
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def replace_closed_streams():
    """Opens the null device for each standard stream that was closed at the start.

    `sys.stdin` and `sys.stdout` stay `None`, which tells a verb that it has none.
    """
    # Else the next files that are opened would take their numbers, and what native code
    # writes to standard error would land in one of them.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number.
    if sys.stderr is None:
        # Libraries write to it unasked.
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
