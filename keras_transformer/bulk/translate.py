"""Translates lines window by window, in order, into a file or as an iterator."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from keras_transformer.files import digest, naming, sync_directory, take_lock
from keras_transformer.text.lines import MAX_LINE_BYTES, lines_of, one_line, read_lines

WINDOW = 1024
# What decides the translations of a SavedModel, of a training run and of a LiteRT
# export, whose translator.json holds the digests of its other files.
_MODEL_PARTS = (
    "saved_model.pb", "variables", "assets", "model.keras", "tokenizer",
    "translator.json",
)  # fmt: skip


@dataclass(frozen=True)
class BulkSummary:
    """What a bulk translation did.

    Attributes:
        sentences: Lines of the output.
        resumed: Those that an earlier, interrupted process had translated.
        seconds: Time to translate the others.
    """

    sentences: int
    resumed: int
    seconds: float

    def __str__(self):
        new = self.sentences - self.resumed
        rate = new / max(self.seconds, 1e-9)
        text = f"{new:,} sentences in {self.seconds:.1f} s ({rate:.1f} sentences/s)"
        if self.resumed:
            text += f", {self.resumed:,} more were done before"
        return text


def translate_file(
    translate: Callable[[list[str]], list[str]],
    source: str | Path | BinaryIO,
    output: str | Path,
    *,
    window: int = WINDOW,
    fingerprint: str = "",
    show_progress: bool = False,
) -> BulkSummary:
    """Translates a file with one sentence per line, in constant memory, in order.

    A process that is killed, at any moment, loses at most the window that it was
    translating. The next call continues there, and the lines of the output are those of
    an uninterrupted one. Until it is whole it is called OUTPUT.partial, beside
    OUTPUT.partial.json, which says how much of that is done, and by what.

    Args:
        translate: Translates a list of texts, such as a `Translator`. A text's
            translation must not depend on the other texts in the list.
        source: Text file, gzip or not, or a binary stream. A file is read through for
            bad UTF-8 before the translation begins.
        output: Text file to write, or to replace; a gzip file if it ends in ".gz".
        window: Lines given to `translate` and kept at a time, the longest first.
        fingerprint: What names the model and its options, such as
            `model_fingerprint(...)`: an unfinished output made with another one is not
            continued.
        show_progress: Whether to show a progress bar on standard error, if that is a
            terminal.

    Returns:
        A `BulkSummary`.

    Raises:
        BlockingIOError: If another process is writing `output`.
        OSError: If a file cannot be read or written.
        ValueError: If `window` is less than 1; if a line is not UTF-8, with its number;
            if an unfinished output was made from other lines or with another
            `fingerprint`, or has changed since.

    Example:
        >>> translator = ExportedTranslator("saved_models/en-de/1")
        >>> translate_file(translator, "news.en.gz", "news.de.gz", show_progress=True)
    """
    texts = read_texts(source)
    windows = windows_of(texts, window)
    total = None
    if isinstance(source, str | Path) and Path(source).is_file():
        if Path(output).exists() and Path(source).samefile(output):
            raise ValueError(f"The output must be another file than the input {source}")
        # A bad line stops the work before it begins, not hours later.
        total = sum(1 for _ in read_texts(source))
    console = Console(stderr=True)
    progress = Progress(
        *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, disable=not (show_progress and console.is_terminal),
        transient=True,
        speed_estimate_period=600,  # seconds: a window may take minutes
    )  # fmt: skip
    with _PartialOutput(Path(output), fingerprint) as partial, progress:
        partial.resume(texts)
        start, begin = partial.done.lines, time.monotonic()
        task = progress.add_task("translating", total=total, completed=start)
        for lines in windows:
            partial.append(lines, _translated(translate, lines))
            progress.advance(task, len(lines))
        partial.finish()
    return BulkSummary(partial.done.lines, start, time.monotonic() - begin)


def translate_lines(
    translate: Callable[[list[str]], list[str]],
    texts: Iterable[str],
    *,
    window: int = WINDOW,
) -> Iterator[str]:
    """Yields the translations of any number of texts, in order, in constant memory.

    Args:
        translate: Translates a list of texts, such as a `Translator`.
        texts: Sentences; a whole window is read before its first translation comes.
        window: Texts given to `translate` at a time, the longest first.

    Yields:
        One translation for each text.

    Raises:
        ValueError: If `window` is less than 1, or `translate` gives another number of
            translations.

    Example:
        >>> for text in translate_lines(translator, read_texts("news.en")):
        ...     print(text)
    """
    for lines in windows_of(texts, window):
        yield from _translated(translate, lines)


def windows_of(texts: Iterable[str], window: int) -> Iterator[list[str]]:
    """Returns an iterator over lists of `window` texts, and last one of the rest."""
    if window < 1:
        raise ValueError(f"`window` must be at least 1. Received: window={window}")
    texts = iter(texts)
    return iter(lambda: list(itertools.islice(texts, window)), [])


def read_texts(source: str | Path | BinaryIO) -> Iterator[str]:
    """Yields the lines of a text file, gzip or not, or of a binary stream.

    Only a line feed ends a line; a carriage return before it is dropped.

    Args:
        source: A path, or a binary stream such as `sys.stdin.buffer`.

    Yields:
        Text; a line longer than 256 KiB is cut to that.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a line is not valid UTF-8, or gzip data is damaged.
    """
    if isinstance(source, str | Path):
        name, lines = source, read_lines(Path(source))
    else:
        name, lines = "standard input", lines_of(source)
    for number, line in enumerate(lines, start=1):
        whole = len(line) < MAX_LINE_BYTES
        try:
            # A cut may have split the last character, which is then left out.
            text, _ = codecs.utf_8_decode(line, "strict", whole)
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}:{number}: not valid UTF-8") from error
        yield text


def model_fingerprint(directory: str | Path, options: str = "") -> str:
    """Returns a digest of a model's files and options, for `translate_file`.

    Args:
        directory: A SavedModel (one version), a LiteRT export, or the directory of a
            training run.
        options: What else decides the translations, such as a run's `DecodingConfig`
            as JSON.

    Returns:
        64 hexadecimal digits.

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
    whole = hashlib.sha256(options.encode("utf-8"))
    for path in files:
        name = os.fsencode(path.relative_to(directory))
        whole.update(b"\n" + name + b"\n" + digest(path).encode())
    return whole.hexdigest()


def _translated(translate, texts):
    """Returns the translations of texts, which are given the longest first."""
    # Batches of similar length have little padding, and short memory shows at once.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    translations = translate([texts[i] for i in order])
    if len(translations) != len(texts):
        raise ValueError(
            "`translate` must give one translation for each text. Received: "
            f"{len(translations)} for {len(texts)} texts"
        )
    places = dict(zip(order, translations, strict=True))
    return [places[i] for i in range(len(texts))]


_NOTHING = hashlib.sha256().hexdigest()


class _Done(NamedTuple):
    """What the sidecar says of an unfinished output."""

    lines: int = 0  # of the source
    bytes: int = 0  # of the output
    source: str = _NOTHING  # digest of those lines
    written: str = _NOTHING  # digest of those bytes
    fingerprint: str = ""  # of the model and its options


class _PartialOutput(contextlib.AbstractContextManager):
    """OUTPUT.partial, and its sidecar: one line about what is done.

    Bytes reach the disk before the sidecar counts them: what lies beyond its count is
    left over from a crash, and is cut off.
    """

    def __init__(self, output, fingerprint):
        if output.exists() and not output.is_file():
            raise ValueError(
                f"{output} must be a regular file: translations are written beside it "
                "and moved there when they are whole."
            )
        self._output, self._fingerprint = output, fingerprint
        self._path = output.with_name(f"{output.name}.partial")
        self._sidecar = output.with_name(f"{output.name}.partial.json")
        self._read, self.done = hashlib.sha256(), _Done()
        output.parent.mkdir(parents=True, exist_ok=True)
        self._stream = open(self._path, "a+b")

    def __exit__(self, *exception):
        # On a full disk, closing fails as writing did, which has raised already.
        with contextlib.suppress(OSError):
            self._stream.close()

    def resume(self, texts):
        """Locks the output and skips the texts that are translated already."""
        # Its last holder may have moved it since it was opened.
        if not take_lock(self._stream.fileno(), self._path):
            raise BlockingIOError(
                f"Another process is writing {self._output}: wait until it ends, or "
                "choose another output."
            )
        size = self._stream.seek(0, os.SEEK_END)
        if not size:  # A new file: a sidecar that is there belongs to one that is gone.
            self._sidecar.unlink(missing_ok=True)
        if self._sidecar.exists():
            try:
                self.done = _Done(**json.loads(self._sidecar.read_bytes()))
            except (ValueError, TypeError) as error:
                raise self._refused(f"{self._sidecar} is damaged") from error
            if self.done.fingerprint != self._fingerprint:
                raise self._refused("it was made with another model or other options")
        self._stream.truncate(min(size, self.done.bytes))
        self._stream.seek(0)
        self._written = hashlib.file_digest(self._stream, "sha256")
        if self.done.written != self._written.hexdigest():
            raise self._refused("it has changed since it was written")
        self._count(itertools.islice(texts, self.done.lines))
        if self.done.source != self._read.hexdigest():
            raise self._refused("the first lines of the input have changed since")

    def _count(self, texts):
        for text in texts:
            self._read.update(text.encode("utf-8") + b"\n")

    def _refused(self, reason):
        return ValueError(
            f"{self._path} holds an unfinished translation that cannot be continued: "
            f"{reason}. Restore what was there, or start again: rm {self._path}"
        )

    def append(self, texts, translations):
        """Adds a window; once this returns, no crash can lose it."""
        self._count(texts)
        content = "".join(one_line(text) + "\n" for text in translations)
        content = content.encode("utf-8")
        if self._output.suffix == ".gz":
            # A member for each window, without a time: resumed, the bytes are the same.
            content = gzip.compress(content, mtime=0)
        self._written.update(content)
        with naming(self._path):
            self._stream.write(content)
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self.done = _Done(
            self.done.lines + len(texts),
            self.done.bytes + len(content),
            self._read.hexdigest(),
            self._written.hexdigest(),
            self._fingerprint,
        )
        new = self._sidecar.with_suffix(".new")
        with naming(new), open(new, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(self.done._asdict()) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, self._sidecar)

    def finish(self):
        """Gives the file its name and removes the sidecar."""
        if not self.done.bytes:
            self.append([], [])  # Even without a line, a gzip file has a header.
        os.replace(self._path, self._output)
        sync_directory(self._output.parent)
        self._sidecar.unlink(missing_ok=True)
