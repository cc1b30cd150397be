"""Sentence pairs that are read again and again, checked line by line."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config.options import check_number
from keras_transformer.text.spans import hidden_pair

MAX_SENTENCE_BYTES = 1 << 16
EXAMPLES_KEPT = 5
_FEW = 10  # Bad lines that a small file may have.
SIDES = ("source", "target")


class Pair(NamedTuple):
    """A line of a corpus: its number, counted from 1, and its two sentences."""

    line: int
    source: str
    target: str


class BadLines:
    """Counts the lines that are skipped; more mistakes than a `share` are an error.

    It is a share of all lines, with those that cleaning leaves out. Some mistakes are
    allowed in few lines, if any are. A pair that is too long is skipped and counted
    apart, but is not a mistake.

    Raises:
        ValueError: If `share` is not from 0 to 1.
    """

    def __init__(self, share: float):
        check_number("bad_line_share", share, minimum=0.0, maximum=1.0)
        self.share = share
        self.lines = self.count = self.too_long = 0
        self.examples: list[str] = []
        self._first = ""  # mistake

    def add(self, place: str, reason: str, is_mistake: bool = True):
        """Counts the line at `place`, such as "train.de:17".

        Raises `ValueError` if it is one mistake too many.
        """
        self.count += 1
        example = f"{place}: {reason}"
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(example)
        if not is_mistake:
            self.too_long += 1
            return
        mistakes = self.count - self.too_long
        self._first = self._first or example
        allowed = max(_FEW, int(self.share * self.lines)) if self.share else 0
        if mistakes > allowed:
            raise ValueError(
                f"{self._first}. Bad so far: {mistakes:,} of {self.lines:,} "
                f"lines. `bad_line_share` {self.share:g} allows {allowed:,}: correct "
                "the file, or raise `bad_line_share` to skip more."
            )

    def __str__(self):
        if not self.count:
            return "no bad lines"
        more = self.count - len(self.examples)
        listed = "; ".join(self.examples) + (f"; and {more} more" if more else "")
        numbers = {"bad lines": self.count - self.too_long, "too long": self.too_long}
        counted = [f"{what}: {number}" for what, number in numbers.items() if number]
        return f"{', '.join(counted)} ({listed})"


class ParallelText:
    """Sentence pairs that can be read repeatedly. `open_pairs` makes one.

    Args:
        rows: Function that returns an iterator of line numbers and fields (bytes or
            strings). A good line has two fields.
        files: Files that `rows` reads.
        place: Format of a place in messages, with `path` and `line`; default the file
            and the line, or the row if there is no file.
        problem: What is wrong with a line of another number of fields.

    Attributes:
        files: Files of the pairs; empty if they come from Python objects.
        origin: Names of the files, for reports.
        parts: The corpora of a mix with their weights; otherwise this one, weight 1.
        cleaning: What `clean_pairs` found, if it made this text; printable.
    """

    def __init__(
        self,
        rows: Callable[[], Iterable[tuple[int, Sequence]]],
        files: Sequence[Path] = (),
        place: str | None = None,
        problem: str = "not source and target",
    ):
        self._rows = rows
        self.files = list(files)
        self._place = place or ("{path}:{line}" if files else "row {line}")
        self._problem = problem
        self.origin = " and ".join(map(str, files)) or "the program's rows"
        self.parts: list[tuple[ParallelText, int]] = [(self, 1)]
        self._known: tuple[int, str] | None = None  # number of lines and digest
        self._left_out = 0  # lines of the files that are not in this text
        self.cleaning: Any = None

    def place(self, line: int, side: str) -> str:
        """Returns the file and line of a sentence, for messages."""
        path = self.files[-1 if side == "target" else 0] if self.files else None
        return self._place.format(path=path, line=line)

    def with_rows(self, rows: Callable[[], Iterable], left_out: int) -> ParallelText:
        """Returns a text of rows of the same files, of which some are left out."""
        text = copy.copy(self)
        text._rows = rows
        text._known = None
        text._left_out += left_out
        text.parts = [(text, 1)]
        return text

    def of_mix(self, number):
        """Returns the same rows, whose messages name the corpus `number` of a mix."""
        named = copy.copy(self)
        named._place = f"{self._place} of corpus {number}"
        return named

    def count(self) -> int:
        """Returns the number of lines, good and bad. The first call reads them.

        Raises:
            ValueError: If there is no line, one side has more lines than the other, no
                line has a tab, or a file is damaged or has changed since the first
                reading.
        """
        if self._known is None:
            for _ in self.rows():
                pass
        return self._known[0]

    def fingerprint(self) -> str:
        """Returns a digest of the lines, whatever the files' names and compression.

        It raises the errors of `count`.
        """
        self.count()
        return self._known[1]

    def pairs(self, bad_lines: BadLines | None = None) -> Iterator[Pair]:
        """Yields the good pairs in order; by default a bad line is an error.

        It raises the errors of `count` and `BadLines.add`.
        """
        bad_lines = bad_lines or BadLines(0)
        bad_lines.lines += self.count() + self._left_out
        for line, fields in self.rows():
            texts, problems = checked(fields)
            if len(fields) != 2:
                problems = [self._problem]
            if any(problems):
                side = "source" if problems[0] else "target"
                bad_lines.add(self.place(line, side), problems[0] or problems[1])
            else:
                yield Pair(line, *texts)

    def sentences(self, sides: Sequence[str], bad_line_share: float) -> Iterator[str]:
        """Yields one or both sides of the good pairs, without the spans they share."""
        for pair in self.pairs(BadLines(bad_line_share)):
            sentences = hidden_pair(pair.source, pair.target)
            yield from (sentences[SIDES.index(side)] for side in sides)

    def rows(self) -> Iterator[tuple[int, Sequence]]:
        """Yields numbers and fields of all lines.

        Raises `ValueError` at the end if they changed since the first time.
        """
        digest = hashlib.blake2b(digest_size=16)
        count = 0
        for line, fields in self._rows():
            digest.update(b"\t".join(map(_bytes, fields)) + b"\n")
            count += 1
            yield line, fields
        if not count:
            message = f"There are no pairs in {self.origin}."
            if self._left_out:
                message = (
                    f"No pair of {self.origin} is left: cleaning (--keep) or the pairs "
                    f"held out for validation and test took all {self._left_out:,} "
                    "lines."
                )
            elif not self.files:
                message += (
                    " A generator can be read only once: give it to `open_pairs` and "
                    "use the result."
                )
            raise ValueError(message)
        found = count, digest.hexdigest()
        if self._known not in (None, found):
            raise ValueError(
                f"{self.origin} changed after it was first read: open it again."
            )
        self._known = found


class Mix(ParallelText):
    """Several corpora one after the other, each repeated by its weight."""

    def __init__(self, parts, cleaning=None):
        files = dict.fromkeys(path for part, _ in parts for path in part.files)
        super().__init__(list, list(files))
        self.parts = parts
        self.cleaning = cleaning

    def count(self):
        return sum(weight * part.count() for part, weight in self.parts)

    def fingerprint(self):
        digests = ([part.fingerprint()] * weight for part, weight in self.parts)
        return " ".join(itertools.chain(*digests))

    def pairs(self, bad_lines=None):
        bad_lines = bad_lines or BadLines(0)
        for part, weight in self.parts:
            yield from part.pairs(bad_lines)
            for _ in range(weight - 1):  # A bad line counts once.
                yield from part.pairs(BadLines(1.0))


def checked(fields: Sequence) -> tuple[Sequence, Sequence]:
    """Returns the texts of a line and their problems, `None` where there is none."""
    if len(fields) != 2:
        return [None], ["not two fields"]
    return tuple(zip(*map(_checked, SIDES, fields), strict=True))


def _checked(side, field):
    """Returns a field's text and its problem; one of them is `None`, if not empty."""
    if not isinstance(field, (bytes, str)):
        return None, f"{side} is not text: {field!r:.50}"
    content = _bytes(field)
    if len(content) > MAX_SENTENCE_BYTES:
        return None, f"{side} is longer than {MAX_SENTENCE_BYTES} bytes"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        is_windows = "\ufffd" not in content.decode("cp1252", "replace")
        hint = ", perhaps Windows-1252 (--encoding cp1252)" if is_windows else ""
        return None, f"{side} is not valid UTF-8 (byte {error.start + 1}){hint}"
    if "\0" in text:
        return None, f"{side} has a NUL character"
    return text, None if text.strip() else f"{side} is empty"


def _bytes(field):
    """Returns a field as bytes; a surrogate becomes invalid UTF-8."""
    if isinstance(field, bytes):
        return field
    # A field that is not text is a bad line; its `repr` only enters the digest.
    text = field if isinstance(field, str) else repr(field)
    return text.encode("utf-8", "surrogatepass")
