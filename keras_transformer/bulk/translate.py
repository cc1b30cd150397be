"""Translates lines window by window, in order, into a file or as an iterator."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from keras_transformer.bulk.partial_output import PartialOutput
from keras_transformer.text.lines import MAX_LINE_BYTES, lines_of, read_lines

WINDOW = 2048
BATCH_SIZE = 32
# What decides the translations of a SavedModel, of a training run and, by the digests
# that it has of the other files, of a LiteRT export.
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
        before = f", {self.resumed:,} more were done before" if self.resumed else ""
        return (
            f"{new:,} sentences in {self.seconds:.1f} s ({rate:.1f} sentences/s)"
            + before
        )


def translate_file(
    translate: Callable[[list[str]], list[str]],
    source: str | Path | BinaryIO,
    output: str | Path,
    *,
    window: int = WINDOW,
    batch_size: int = BATCH_SIZE,
    fingerprint: str = "",
    show_progress: bool = False,
) -> BulkSummary:
    """Translates a file with one sentence per line, in constant memory, in order.

    A process that is killed, at any moment, loses at most the window that it was
    translating. The next call continues there, and the output is byte for byte that of
    an uninterrupted one. `output` appears when it is whole.

    Args:
        translate: Translates a list of texts, such as a `Translator`. A text's
            translation must not depend on the other texts in the list.
        source: Text file, gzip or not, or a binary stream. A file is read through for
            bad UTF-8 before the translation begins.
        output: Text file to write, or to replace; a gzip file if it ends in ".gz".
        window: Lines sorted by length, translated and kept at a time.
        batch_size: Most sentences given to `translate` at a time.
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
        ValueError: If an option is out of range; if a line is not UTF-8, with its
            number; if an unfinished output was made from other lines or with another
            `fingerprint`, belongs to somebody else or has links.

    Example:
        >>> translator = ExportedTranslator("saved_models/en-de/1")
        >>> translate_file(translator, "news.en.gz", "news.de.gz", show_progress=True)
    """
    check_sizes(window, batch_size)

    def translated(texts, start, advance):
        for lines in windows_of(texts, window):
            yield lines, translate_window(translate, lines, batch_size, advance)

    return save_translations(translated, source, output, fingerprint, show_progress)


def translate_lines(
    translate: Callable[[list[str]], list[str]],
    texts: Iterable[str],
    *,
    window: int = WINDOW,
    batch_size: int = BATCH_SIZE,
) -> Iterator[str]:
    """Yields the translations of any number of texts, in order, in constant memory.

    Args:
        translate: Translates a list of texts, such as a `Translator`.
        texts: Sentences; a whole window is read before its first translation comes.
        window: Texts sorted by length and translated at a time.
        batch_size: Most sentences given to `translate` at a time.

    Yields:
        One translation for each text.

    Raises:
        ValueError: If `window` or `batch_size` is less than 1, or `translate` gives
            another number of translations.

    Example:
        >>> for text in translate_lines(translator, read_texts("news.en")):
        ...     print(text)
    """
    check_sizes(window, batch_size)
    for lines in windows_of(texts, window):
        yield from translate_window(translate, lines, batch_size)


def check_sizes(window: int, batch_size: int):
    """Raises a ValueError unless both are at least 1."""
    for name, value in (("window", window), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")


def windows_of(texts: Iterable[str], window: int) -> Iterator[list[str]]:
    """Yields lists of `window` texts, and last a list of the rest."""
    texts = iter(texts)
    while lines := list(itertools.islice(texts, window)):
        yield lines


def translate_window(
    translate: Callable[[list[str]], list[str]],
    texts: list[str],
    batch_size: int,
    advance: Callable[[int], None] = lambda sentences: None,
) -> list[str]:
    """Translates texts in batches of similar length: little padding, few wasted steps.

    Args:
        translate: Translates a list of texts.
        texts: Sentences.
        batch_size: Most sentences given to `translate` at a time.
        advance: Called with the number of sentences done, after each batch.

    Returns:
        One translation for each text, in order.

    Raises:
        ValueError: If `translate` gives another number of translations.
    """
    # The longest first: if memory is short, that shows at once.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
    results = [""] * len(texts)
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        translations = translate([texts[place] for place in places])
        if len(translations) != len(places):
            raise ValueError(
                "`translate` must give one translation for each text. Received: "
                f"{len(translations)} for {len(places)} texts"
            )
        for place, translation in zip(places, translations, strict=True):
            results[place] = translation
        advance(len(places))
    return results


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


def save_translations(
    translated: Callable[..., Iterator[tuple[list[str], list[str]]]],
    source: str | Path | BinaryIO,
    output: str | Path,
    fingerprint: str,
    show_progress: bool,
) -> BulkSummary:
    """Writes what `translated` yields; continues where an earlier process stopped.

    Args:
        translated: `translated(texts, start, advance)` yields windows of texts and
            their translations. `texts` yields the lines that are left, `start` is how
            many are done, `advance(sentences)` moves the progress bar.
        source: As for `translate_file`.
        output: As for `translate_file`.
        fingerprint: As for `translate_file`.
        show_progress: As for `translate_file`.

    Returns:
        A `BulkSummary`.

    Raises:
        ValueError: As for `translate_file`.
    """
    is_path = isinstance(source, str | Path)
    if is_path and Path(output).exists() and Path(source).samefile(output):
        raise ValueError(f"The output must be another file than the input, {source}.")
    total = None
    if is_path and Path(source).is_file():
        # A bad line stops the work before it begins, not hours later.
        total = sum(1 for _ in read_texts(source))
    with PartialOutput(output, fingerprint) as partial:
        texts = read_texts(source)
        partial.skip_done(texts)
        start, begin = partial.lines, time.monotonic()
        with _progress_bar(show_progress) as progress:
            task = progress.add_task("translating", total=total, completed=start)
            for lines, translations in translated(
                texts, start, lambda sentences: progress.advance(task, sentences)
            ):
                partial.append(lines, translations)
        partial.finish()
    return BulkSummary(partial.lines, start, time.monotonic() - begin)


class _Rate(ProgressColumn):
    def render(self, task):
        return "" if task.speed is None else f"{task.speed:,.1f} sentences/s"


def _progress_bar(show):
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(None, table_column=Column(ratio=1)),  # The rest of the line.
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=True,
        disable=not (show and console.is_terminal),
    )


def model_fingerprint(directory: str | Path, options: str = "") -> str:
    """Returns a digest of a model's files and options, for `translate_file`.

    Args:
        directory: A SavedModel (one version), a LiteRT export, or the directory of a
            training run.
        options: What else decides the translations, such as a run's `DecodingConfig`
            as JSON.

    Returns:
        32 hexadecimal digits.

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
    digest = hashlib.blake2b(options.encode("utf-8"), digest_size=16)
    for path in files:
        digest.update(f"\n{path.relative_to(directory)}\n".encode())
        with open(path, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    return digest.hexdigest()
