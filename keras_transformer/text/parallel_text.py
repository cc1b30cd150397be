"""Pairs of sentences from files: read as a stream, checked line by line."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
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
    """Counts the bad lines of one pass over a corpus, and ends it at too many.

    Args:
        budget: Bad lines that are skipped; one more is an error.
    """

    def __init__(self, budget: int):
        self.budget = budget
        self.count = 0
        self.examples: list[str] = []

    def add(self, place: str, reason: str):
        """Counts a bad line.

        Args:
            place: File and line, such as "train.de:17".
            reason: What is wrong with it.

        Raises:
            ValueError: If the budget is used up.
        """
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
    """Base of the corpora of pairs; a subclass says where the lines come from."""

    def count(self) -> int:
        """Returns the number of lines, good and bad, in one cheap pass.

        Raises:
            ValueError: If there is no line, or the two sides differ in number.
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

    def _rows(self) -> Iterator[list[bytes]]:
        """Yields the undecoded fields of each line; a good line has two."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Returns a digest of the lines, whatever the files' names and packing.

        Raises:
            ValueError: If a file is damaged, or the two sides differ in number.
        """
        digest = hashlib.blake2b(digest_size=16)
        for fields in self._rows():
            digest.update(b"\t".join(fields) + b"\n")
        return digest.hexdigest()

    def pairs(self, bad_lines: BadLines | None = None) -> Iterator[Pair]:
        """Streams the good pairs in the order of the file.

        Args:
            bad_lines: Counter of the others; by default none is allowed.

        Yields:
            A `Pair` at a time.

        Raises:
            ValueError: If there are more bad lines than allowed, the two sides differ
                in their number of lines, or a gzip file is damaged.
        """
        bad_lines = BadLines(0) if bad_lines is None else bad_lines
        for line, fields in enumerate(self._rows(), start=1):
            try:
                source, target = _decode(fields)
            except _BadPair as error:
                bad_lines.add(self.place(line, error.side), error.reason)
            else:
                yield Pair(line, source, target)


class AlignedFiles(ParallelText):
    """Two text files whose lines correspond, gzip or not.

    Args:
        source_path: File of source sentences.
        target_path: File of target sentences, as many lines.

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
        # To the end of the longer one, so that the error can name both numbers.
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
        return self._check_filled(count_lines(self.path))

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

    def _check_filled(self, count):
        if not count:
            raise ValueError(f"{self.path} is empty.")
        return count


class TfdsPairs(ParallelText):
    """Pairs of a TensorFlow Datasets split; needs the optional extra `tfds`.

    Args:
        name: Name of the dataset, such as "ted_hrlr_translate/pt_to_en".
        source_key: Feature that holds the source sentence, such as "pt"; default the
            first of the dataset's supervised keys.
        target_key: Feature that holds the target sentence, such as "en"; default the
            second.
        split: Split of the dataset.

    Raises:
        ImportError: If the extra is not installed.
        ValueError: If the dataset has no such split or feature.
    """

    def __init__(
        self,
        name: str,
        source_key: str | None = None,
        target_key: str | None = None,
        split: str = "train",
    ):
        info = _tfds().builder(name).info
        defaults = info.supervised_keys or (None, None)
        source_key = defaults[0] if source_key is None else source_key
        target_key = defaults[1] if target_key is None else target_key
        self.name, self.split = name, split
        self.source_key, self.target_key = source_key, target_key
        for kind, value, known in (
            ("split", split, info.splits),
            ("source_key", source_key, info.features),
            ("target_key", target_key, info.features),
        ):
            if value not in known:
                raise ValueError(
                    f"`{kind}` must be one of {', '.join(map(repr, known))} for "
                    f"tfds:{name}. Received: {kind}={value!r}"
                )
        self._count = info.splits[split].num_examples

    def count(self):
        return self._count

    def place(self, line, side):
        return f"tfds:{self.name}/{self.split}:{line}"

    def _rows(self):
        tfds = _tfds()
        data = tfds.load(self.name, split=self.split, shuffle_files=False)
        for example in tfds.as_numpy(data):
            yield [example[self.source_key], example[self.target_key]]


def open_pairs(
    source: str | Path, target: str | Path | None = None, **tfds_options
) -> ParallelText:
    """Opens a corpus of sentence pairs by its name.

    Args:
        source: File of source sentences; or, without `target`, a TSV file of both or
            "tfds:NAME". A file may be gzip, whatever its name.
        target: File of target sentences.
        **tfds_options: `source_key`, `target_key` and `split` of `TfdsPairs`.

    Returns:
        A `ParallelText`: it can be read again and again.

    Raises:
        OSError: If a file is missing or is not a regular file.
        ValueError: If TFDS options come with files, or the TFDS corpus lacks them.

    Example:
        >>> open_pairs("train.en-de.tsv.gz").count()
        29000
    """
    if str(source).startswith("tfds:") and target is None:
        return TfdsPairs(str(source).removeprefix("tfds:"), **tfds_options)
    if tfds_options:
        raise ValueError(
            f"{', '.join(map('`{}`'.format, tfds_options))} only go with a source of "
            f"the form tfds:NAME. Received: source={str(source)!r}"
        )
    return TsvFile(source) if target is None else AlignedFiles(source, target)


class _BadPair(Exception):
    def __init__(self, side, reason):
        super().__init__(reason)
        self.side, self.reason = side, reason


def _decode(fields):
    """Returns source and target as text, or raises `_BadPair`."""
    for side, field in zip(("source", "target"), fields, strict=False):
        if len(field) > MAX_SENTENCE_BYTES:
            raise _BadPair(side, f"{side} is longer than {MAX_SENTENCE_BYTES} bytes")
    if len(fields) != 2:
        problem = "no tab" if len(fields) == 1 else f"{len(fields) - 1} tabs"
        raise _BadPair("source", f"{problem}, expected source, one tab, target")
    texts = []
    for side, field in zip(("source", "target"), fields, strict=True):
        try:
            text = field.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"{side} is not valid UTF-8 (byte {error.start + 1})"
            raise _BadPair(side, reason) from error
        if not text.strip():
            raise _BadPair(side, f"{side} is empty")
        texts.append(text)
    return texts


def _tfds():
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "Reading `tfds:` corpora needs TensorFlow Datasets: "
            'pip install "keras-transformer-seq2seq[tfds]"'
        ) from error
    return tensorflow_datasets
