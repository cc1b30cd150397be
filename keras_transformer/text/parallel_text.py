"""Pairs of sentences from files: read as a stream, checked line by line."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_transformer.text.lines import checked_path, count_lines, read_lines

MAX_SENTENCE_BYTES = 1 << 16
EXAMPLES_KEPT = 5


class Pair(NamedTuple):
    """One line of a corpus: its number, counted from 1, and its two sentences."""

    line: int
    source: str
    target: str


class BadLines:
    """Counts the bad lines of one pass over a corpus, each once; too many are an error.

    Args:
        budget: Bad lines that are skipped; one more is an error.
    """

    def __init__(self, budget: int):
        self.budget = budget
        self.count = 0
        self.examples: list[str] = []
        self._places: set[str] = set()

    def add(self, place: str, reason: str):
        """Counts a bad line.

        Args:
            place: File and line, such as "train.de:17".
            reason: What is wrong with it.

        Raises:
            ValueError: If the budget is used up.
        """
        if place in self._places:
            return  # A corpus may be read more than once in a pass.
        self._places.add(place)
        self.count += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(f"{place}: {reason}")
        if self.count > self.budget:
            raise ValueError(
                f"{place}: {reason}. This is bad line number {self.count}, and "
                f"`bad_line_budget` is {self.budget}: mend the file, or raise "
                "`bad_line_budget` to skip more lines."
            )

    def __str__(self):
        if not self.count:
            return "no bad lines"
        more = self.count - len(self.examples)
        listed = "; ".join(self.examples) + (f"; and {more} more" if more else "")
        return f"bad lines: {self.count} ({listed})"


class ParallelText:
    """Base class of corpora of pairs; a subclass says where the lines come from."""

    def count(self) -> int:
        """Returns the number of lines, good and bad, in one cheap pass.

        Raises:
            ValueError: If there is no line, or one side has more lines than the other.
        """
        raise NotImplementedError

    def place(self, line: int, side: str) -> str:
        """Returns the file and line of a sentence, for messages.

        Args:
            line: Number of the pair, counted from 1.
            side: "source" or "target".
        """
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Returns the files that are read; none where the lines come from elsewhere."""
        return []

    weights: Sequence[int] = (1,)
    """How many times an epoch has the pairs of each part."""

    @property
    def parts(self) -> Sequence[ParallelText]:
        """The corpora that this one is made of; itself, unless it is a mix."""
        return (self,)

    def part_of(self, line: int) -> int:
        """Returns the number of the part, counted from 0, that a line is from."""
        return 0

    @property
    def origin(self) -> str:
        """Where the pairs come from, for reports."""
        return " and ".join(map(str, self.files())) or "the program's rows"

    def _rows(self) -> Iterator[Sequence]:
        """Yields the fields of each line; a good line has two, bytes or text."""
        raise NotImplementedError

    def _numbered_rows(self) -> Iterator[tuple[int, Sequence]]:
        """Yields each line's number, by which `place` knows it, and its fields."""
        return enumerate(self._rows(), start=1)

    def _shape_problem(self, fields: Sequence) -> str:
        """Returns what is wrong with a line that has not two fields."""
        return f"{len(fields)} fields, expected source and target"

    def fingerprint(self) -> str:
        """Returns a digest of the lines, whatever the files' names or compression.

        Raises:
            ValueError: If a file is damaged, or one side has more lines than the other.
        """
        digest = hashlib.blake2b(digest_size=16)
        for fields in self._rows():
            digest.update(b"\t".join(map(_bytes, fields)) + b"\n")
        return digest.hexdigest()

    def pairs(self, bad_lines: BadLines | None = None) -> Iterator[Pair]:
        """Streams the good pairs in the order of the file.

        Args:
            bad_lines: Counter of the bad ones; by default none is allowed.

        Yields:
            One `Pair` at a time.

        Raises:
            ValueError: If there are more bad lines than allowed, the two sides differ
                in number of lines, or a gzip file is damaged.
        """
        bad_lines = BadLines(0) if bad_lines is None else bad_lines
        for line, fields in self._numbered_rows():
            try:
                if len(fields) != 2:
                    raise _BadPair("source", self._shape_problem(fields))
                source, target = _decode(fields)
            except _BadPair as error:
                bad_lines.add(self.place(line, error.side), error.reason)
            else:
                yield Pair(line, source, target)


class AlignedFiles(ParallelText):
    """Two text files whose lines correspond, gzip or not.

    Args:
        source_path: File of source sentences.
        target_path: File of target sentences, with as many lines.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a path is a directory or a pipe.

    Example:
        >>> for pair in AlignedFiles("train.en", "train.de").pairs():
        ...     print(pair.line, pair.source, pair.target)
    """

    def __init__(self, source_path: str | Path, target_path: str | Path):
        self.source_path = checked_path(source_path)
        self.target_path = checked_path(target_path)

    def count(self):
        counts = [count_lines(p) for p in (self.source_path, self.target_path)]
        self._check_aligned(*counts)
        return counts[0]

    def place(self, line, side):
        path = self.source_path if side == "source" else self.target_path
        return f"{path}:{line}"

    def files(self):
        return [self.source_path, self.target_path]

    def _rows(self):
        counts = [0, 0]
        sides = read_lines(self.source_path), read_lines(self.target_path)
        # Read to the end of the longer one, so that the error can name both numbers.
        for fields in itertools.zip_longest(*sides):
            for side, field in enumerate(fields):
                counts[side] += field is not None
            if counts[0] == counts[1]:
                yield list(fields)
        self._check_aligned(*counts)

    def _check_aligned(self, source_count, target_count):
        if source_count != target_count:
            raise ValueError(
                f"{self.source_path} has {source_count} lines but {self.target_path} "
                f"has {target_count}: line n of one must be the translation of line n "
                "of the other."
            )
        if not source_count:
            raise ValueError(f"{self.source_path} and {self.target_path} are empty.")


class TsvFile(ParallelText):
    """One file with source, tab, target on each line, gzip or not; no quoting.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If the path is a directory or a pipe.
    """

    def __init__(self, path: str | Path):
        self.path = checked_path(path)

    def count(self):
        count = self._check_filled(count_lines(self.path))
        # Otherwise the budget of bad lines would be spent before anything is said.
        if not any(b"\t" in line for line in read_lines(self.path)):
            raise ValueError(
                f"{self.path}:1: no tab, expected source, one tab, target; no line has "
                "one. To read columns of a file with a header, name two of them: "
                "`source_key` and `target_key`, or --columns."
            )
        return count

    def place(self, line, side):
        return f"{self.path}:{line}"

    def files(self):
        return [self.path]

    def _rows(self):
        count = 0
        for line in read_lines(self.path):
            count += 1
            yield line.split(b"\t")
        self._check_filled(count)

    def _shape_problem(self, fields):
        problem = "no tab" if len(fields) == 1 else f"{len(fields) - 1} tabs"
        return f"{problem}, expected source, one tab, target"

    def _check_filled(self, count):
        if not count:
            raise ValueError(f"{self.path} is empty.")
        return count


class _BadPair(Exception):
    def __init__(self, side, reason):
        super().__init__(reason)
        self.side, self.reason = side, reason


def _decode(fields):
    """Returns source and target as text, or raises `_BadPair`."""
    sides = dict(zip(("source", "target"), fields, strict=True))
    for side, field in sides.items():
        if not isinstance(field, (bytes, str)):
            raise _BadPair(side, f"{side} is not text: {field!r:.50}")
        sides[side] = _bytes(field)
        if len(sides[side]) > MAX_SENTENCE_BYTES:
            raise _BadPair(side, f"{side} is longer than {MAX_SENTENCE_BYTES} bytes")
    texts = []
    for side, field in sides.items():
        try:
            text = field.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"{side} is not valid UTF-8 (byte {error.start + 1})"
            raise _BadPair(side, reason) from error
        if not text.strip():
            raise _BadPair(side, f"{side} is empty")
        texts.append(text)
    return texts


def _bytes(field):
    """Returns a field as bytes; a surrogate, which no text has, gives invalid ones."""
    if isinstance(field, bytes):
        return field
    # What is not text is a bad line; here it only has to tell corpora apart.
    text = field if isinstance(field, str) else repr(field)
    return text.encode("utf-8", "surrogatepass")
