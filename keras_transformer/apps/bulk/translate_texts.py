"""Translation of lines in windows, into a file or as an iterator."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeVar

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from keras_transformer.config.options import check_number
from keras_transformer.files import (
    check_another_file,
    digest,
    flush,
    naming,
    read_json,
    take_lock,
    write_json,
)
from keras_transformer.search.translation import Translation
from keras_transformer.terminal import in_doubt, in_time
from keras_transformer.text.lines import MAX_LINE_BYTES, lines_of, one_line, read_lines

WINDOW = 1024
# Doubtful lines that a summary has, and that it shows.
_NAMED = 100
_SHOWN = 10
_Found = TypeVar("_Found")
# Files that determine the translations of a SavedModel, a training run and a LiteRT
# export, whose translator.json has the digests of its other files.
_MODEL_PARTS = (
    "saved_model.pb",
    "variables",
    "assets",
    "model.keras",
    "tokenizer",
    "translator.json",
)


@dataclass(frozen=True)
class BulkSummary:
    """The result of a bulk translation."""

    sentences: int  #: lines of the source
    resumed: int  #: lines that an earlier, interrupted process translated
    seconds: float  #: for the other lines
    left_out: int = 0  #: lines without a translation of use, of `distill`
    truncated: int = 0  #: lines of the source that were too long and were cut
    first_truncated: int | None = None  #: the first of them, counted from 1
    #: how many lines have each of `Translation.doubts`
    doubts: dict[str, int] = field(default_factory=dict)
    #: the first hundred lines that have one, counted from 1
    doubtful: list[int] = field(default_factory=list)
    #: Lines a second after the first window, which also loads and compiles.
    rate: float | None = None

    def __str__(self):
        new = self.sentences - self.resumed
        text = in_time(new, self.seconds, self.rate)
        if self.resumed:
            text += f", {self.resumed:,} more were done earlier"
        if self.left_out:
            text += f"; {self.left_out:,} of all were empty or looped and are left out"
        if self.truncated:
            text += (
                f"; {self.truncated:,} of all were too long and were cut, the first is "
                f"number {self.first_truncated:,}"
            )
        if self.doubts:
            lines = ", ".join(map(str, self.doubtful[:_SHOWN]))
            text += f"; {in_doubt(self.doubts)} (the first lines: {lines})"
        return text


def translate_file(
    translate: Callable[[list[str]], Sequence[str | Translation]],
    source: str | Path | BinaryIO,
    output: str | Path,
    *,
    window: int = WINDOW,
    fingerprint: str = "",
    show_progress: bool = False,
) -> BulkSummary:
    """Translates a file of one sentence per line, in constant memory.

    A killed process loses at most one window. The next call resumes there, and the
    output equals that of an uninterrupted call. Until it is complete, the output is
    OUTPUT.partial, with the progress in OUTPUT.partial.json.

    Args:
        translate: A `Translator` or another `TextTranslator`, or a function from a list
            of texts to their translations: strings, or `Translation`s, which say what
            was cut. A translation must not depend on other texts in the list.
        source: Text file, gzip or not, or a binary stream. A file is first checked for
            invalid UTF-8 and lines of 256 KiB or more.
        output: Text file to write or replace; gzip if it ends in ".gz".
        window: Lines that `translate` gets at a time.
        fingerprint: Identity of model and options, such as `model_fingerprint(...)`. An
            unfinished output with another one is not resumed.
        show_progress: Show a progress bar, if standard error is a terminal.

    Returns:
        A `BulkSummary`.

    Raises:
        BlockingIOError: If another process is writing `output`.
        OSError: If a file cannot be read or written.
        ValueError: If `window` is less than 1, a line is not UTF-8 or has 256 KiB, an
            unfinished output has other lines or another `fingerprint`.

    Example:
        >>> translator = load("saved_models/en-de/1")
        >>> translate_file(translator, "news.en.gz", "news.de.gz", show_progress=True)
    """
    texts = read_texts(source)
    total = None
    if isinstance(source, str | Path) and Path(source).is_file():
        check_another_file(output, [source])
        # Finds a bad line before the work begins, not hours later.
        total = sum(1 for _ in read_texts(source))
    return translate_texts(
        getattr(translate, "translate", translate),
        texts,
        output,
        total,
        window=window,
        fingerprint=fingerprint,
        show_progress=show_progress,
    )


def translate_texts(
    translate: Callable[[list[str]], Sequence[str | Translation | None]],
    texts: Iterator[str],
    output: str | Path,
    total: int | None,
    *,
    window: int,
    fingerprint: str,
    show_progress: bool,
) -> BulkSummary:
    """Translates an iterator of texts as `translate_file` does a file's lines.

    `total` is their number, for the bar. A translation of `None` writes no line.
    """
    windows = _windows_of(texts, window)
    console = Console(stderr=True)
    progress = Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not (show_progress and console.is_terminal),
        transient=True,
        speed_estimate_period=600,  # seconds: a window may take minutes
    )
    with _PartialOutput(Path(output), fingerprint) as partial, progress:
        partial.resume(texts)
        start = partial.done.lines
        times = [time.monotonic()]
        rate = None
        task = progress.add_task("translating", total=total, completed=start)
        for lines in windows:
            partial.append(lines, _translated(translate, lines))
            progress.advance(task, len(lines))
            times.append(time.monotonic())
        partial.finish()
    done = partial.done
    others = done.lines - start - window
    if others > 0:
        rate = others / max(times[-1] - times[1], 1e-9)
    return BulkSummary(
        sentences=done.lines,
        resumed=start,
        seconds=times[-1] - times[0],
        truncated=done.truncated,
        first_truncated=done.first_truncated,
        doubts=done.doubts,
        doubtful=done.doubtful,
        rate=rate,
    )


def translate_lines(
    translate: Callable[[list[str]], Sequence[_Found]],
    texts: Iterable[str],
    *,
    window: int = WINDOW,
) -> Iterator[_Found]:
    """Yields what a function finds for each text, in order and in constant memory.

    The function and `window` are those of `translate_file`.

    Raises:
        ValueError: If `window` is less than 1, or `translate` returns another number of
            translations.
    """
    for lines in _windows_of(texts, window):
        yield from _translated(translate, lines)


def _windows_of(texts: Iterable[str], window: int) -> Iterator[list[str]]:
    """Returns an iterator over lists of `window` texts; the last may be shorter.

    Raises:
        ValueError: If `window` is less than 1.
    """
    check_number("window", window, int, minimum=1)
    texts = iter(texts)
    return iter(lambda: list(itertools.islice(texts, window)), [])


def read_texts(source: str | Path | BinaryIO) -> Iterator[str]:
    """Yields the lines of a text file, gzip or not, or of a binary stream.

    Only a line feed ends a line, and a carriage return before it is dropped, as is a
    byte order mark of UTF-8.

    Raises:
        ValueError: If a line is not valid UTF-8 or has 256 KiB or more, or gzip data is
            damaged.
    """
    if isinstance(source, str | Path):
        name = source
        lines = read_lines(Path(source))
    else:
        name = "standard input"
        lines = lines_of(source)
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if len(line) >= MAX_LINE_BYTES:
            raise ValueError(
                f"{name}:{number}: a line must be shorter than {MAX_LINE_BYTES:,} bytes"
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}:{number}: not valid UTF-8") from error
        yield text


def model_fingerprint(directory: str | Path, options: str = "") -> str:
    """Returns a digest of a model's files and options, for `translate_file`.

    `directory` is a version of a SavedModel, a LiteRT export or a training run, and
    `options` any text, such as a `DecodingConfig` as JSON.

    Raises:
        FileNotFoundError: If the directory holds no model.
    """
    directory = Path(directory)
    files = [
        path
        for part in _MODEL_PARTS
        for path in sorted([directory / part, *(directory / part).rglob("*")])
        if path.is_file()
    ]
    if not files:
        raise FileNotFoundError(f"{directory} holds no model.")
    lines = [f"{path.relative_to(directory)} {digest(path)}" for path in files]
    whole = "\n".join([*lines, options])
    return hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()


def _translated(translate, texts):
    """Returns what a function finds for each text."""
    translations = translate(texts)
    if len(translations) != len(texts):
        raise ValueError(
            "`translate` must return one translation for each text. Received: "
            f"{len(translations)} for {len(texts)} texts"
        )
    return translations


_NOTHING = hashlib.sha256().hexdigest()


@dataclass
class _Done:
    """The content of the sidecar of an unfinished output."""

    lines: int = 0  # of the source
    bytes: int = 0  # of the output
    source: str = _NOTHING  # digest of those lines
    fingerprint: str = ""  # of the model and its options
    truncated: int = 0  # lines that were cut
    first_truncated: int | None = None  # the first of them, counted from 1
    doubts: dict[str, int] = field(default_factory=dict)  # how many lines have each
    doubtful: list[int] = field(default_factory=list)  # the first lines that have one


class _PartialOutput(contextlib.AbstractContextManager):
    """OUTPUT.partial and its sidecar, which counts its bytes.

    Bytes are on the disk before they are counted; others remain from a crash.
    """

    def __init__(self, output, fingerprint):
        if output.exists() and not output.is_file():
            raise ValueError(
                f"{output} must be a regular file, which is replaced when all "
                "translations are written."
            )
        self._output = output
        self._fingerprint = fingerprint
        self._path = output.with_name(f"{output.name}.partial")
        self._sidecar = output.with_name(f"{output.name}.partial.json")
        self._read = hashlib.sha256()
        output.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._path.open("a+b")

    def __exit__(self, *exception):
        # On a full disk closing fails like the write, which has raised already.
        with contextlib.suppress(OSError):
            self._stream.close()

    def resume(self, texts):
        """Locks the output and skips the texts that are translated already."""
        if not take_lock(self._stream.fileno(), self._path):
            raise BlockingIOError(
                f"Another process is writing {self._output}: wait until it ends, or "
                "choose another output."
            )
        done = _Done(fingerprint=self._fingerprint)
        # A new file: an existing sidecar belongs to a removed one.
        if self._stream.seek(0, os.SEEK_END) and self._sidecar.exists():
            done = _Done(**read_json(self._sidecar))
        if done.fingerprint != self._fingerprint:
            raise self._refused("it was made with another model or other options")
        self._count(itertools.islice(texts, done.lines))
        if done.source != self._read.hexdigest():
            raise self._refused("the first lines of the input have changed since")
        self._stream.truncate(done.bytes)
        self.done = done
        write_json(self._sidecar, vars(done))

    def _count(self, texts):
        for text in texts:
            self._read.update(text.encode("utf-8") + b"\n")

    def _refused(self, reason):
        return ValueError(
            f"{self._path} cannot be resumed: {reason}. Restore what was there, choose "
            f"another output, or start again: rm {self._path}"
        )

    def append(self, texts, translations):
        """Adds a window; a later crash cannot lose it."""
        self._count(texts)
        done = self.done
        kept = []
        for found in translations:
            done.lines += 1
            if found is not None:
                kept.append(one_line(getattr(found, "text", found)) + "\n")
            if getattr(found, "truncated", False):
                done.truncated += 1
                done.first_truncated = done.first_truncated or done.lines
            doubts = getattr(found, "doubts", ())
            for doubt in doubts:
                done.doubts[doubt] = done.doubts.get(doubt, 0) + 1
            if doubts and len(done.doubtful) < _NAMED:
                done.doubtful.append(done.lines)
        content = "".join(kept).encode("utf-8")
        if self._output.suffix == ".gz":
            # A gzip member for each window, without a time: resuming changes no byte.
            content = gzip.compress(content, mtime=0)
        with naming(self._path):
            self._stream.write(content)
            self._stream.flush()
            os.fsync(self._stream.fileno())
        done.bytes += len(content)
        done.source = self._read.hexdigest()
        write_json(self._sidecar, vars(done))

    def finish(self):
        """Gives the file its name and removes the sidecar."""
        if not self.done.bytes:
            self.append([], [])  # A gzip file without a line has a header.
        os.replace(self._path, self._output)
        flush(self._output.parent)
        self._sidecar.unlink(missing_ok=True)
