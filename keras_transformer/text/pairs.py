"""Sentence pairs from files or Python objects, checked line by line."""

from __future__ import annotations

import copy
import csv
import functools
import hashlib
import io
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config.extras import required
from keras_transformer.config.options import check_number
from keras_transformer.text.lines import opened, read_lines
from keras_transformer.text.spans import hidden_pair

MAX_SENTENCE_BYTES = 1 << 16
EXAMPLES_KEPT = 5
# Characters of a CSV field. An unclosed quote turns the rest of the file into one
# field, which must not fill the memory.
_MAX_FIELD = 1 << 24
SIDES = ("source", "target")
_EXPECTED = (
    "Pairs must be (source, target) strings, rows with named columns, a frame, a data "
    "set or the name of a file"
)


class Pair(NamedTuple):
    """A line of a corpus: its number, counted from 1, and its two sentences."""

    line: int
    source: str
    target: str


class BadLines:
    """Counts the lines that are skipped; more than `budget` mistakes are an error.

    A pair that is too long is skipped, but is not a mistake.
    """

    def __init__(self, budget: int):
        self.budget = budget
        self.count = self._mistakes = 0
        self.examples: list[str] = []

    def add(self, place: str, reason: str, is_mistake: bool = True):
        """Counts the line at `place`, such as "train.de:17".

        Raises `ValueError` if it is one mistake too many.
        """
        self.count += 1
        self._mistakes += is_mistake
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(f"{place}: {reason}")
        if self._mistakes > self.budget:
            raise ValueError(
                f"{place}: {reason}. This is bad line number {self._mistakes}, and "
                f"`bad_line_budget` is {self.budget}: correct the file, or raise "
                "`bad_line_budget` to skip more lines."
            )

    def __str__(self):
        if not self.count:
            return "no bad lines"
        more = self.count - len(self.examples)
        listed = "; ".join(self.examples) + (f"; and {more} more" if more else "")
        return f"bad lines: {self.count} ({listed})"


class ParallelText:
    """Sentence pairs that can be read repeatedly. `open_pairs` makes one.

    Args:
        rows: Function that returns an iterator of line numbers and fields (bytes or
            strings). A good line has two fields.
        files: Files that `rows` reads.
        place: Format of a place in messages, with `path` and `line`; default the file
            and the line, or the row if there is no file.
        problem: Function of a wrong number of fields that returns the message.

    Attributes:
        files: Files of the pairs; empty if they come from Python objects.
        origin: Names of the files, for reports.
        parts: The corpora of a mix with their weights; otherwise this one, weight 1.
    """

    def __init__(
        self,
        rows: Callable[[], Iterable[tuple[int, Sequence]]],
        files: Sequence[Path] = (),
        place: str | None = None,
        problem: Callable[[int], str] = "{} fields, expected source and target".format,
    ):
        self._rows = rows
        self.files = list(files)
        self._place = place or ("{path}:{line}" if files else "row {line}")
        self._problem = problem
        self.origin = " and ".join(map(str, files)) or "the program's rows"
        self.parts: list[tuple[ParallelText, int]] = [(self, 1)]
        self._known: tuple[int, str] | None = None  # number of lines and digest

    def place(self, line: int, side: str) -> str:
        """Returns the file and line of a sentence, for messages."""
        path = self.files[-1 if side == "target" else 0] if self.files else None
        return self._place.format(path=path, line=line)

    def _of_mix(self, number):
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
            for _ in self._read():
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
        bad_lines = BadLines(0) if bad_lines is None else bad_lines
        for line, fields in self._read():
            if len(fields) == 2:
                source = _checked("source", fields[0])
                target = _checked("target", fields[1])
                texts, problems = zip(source, target, strict=True)
            else:
                texts = []
                problems = [self._problem(len(fields))]
            if any(problems):
                side = "source" if problems[0] else "target"
                bad_lines.add(self.place(line, side), problems[0] or problems[1])
            else:
                yield Pair(line, *texts)

    def sentences(self, sides: Sequence[str], bad_line_budget: int) -> Iterator[str]:
        """Yields one or both sides of the good pairs, without the spans they share."""
        for pair in self.pairs(BadLines(bad_line_budget)):
            sentences = hidden_pair(pair.source, pair.target)
            yield from (sentences[SIDES.index(side)] for side in sides)

    def _read(self):
        """Yields the lines; raises at the end if they changed since the first time."""
        digest = hashlib.blake2b(digest_size=16)
        count = 0
        for line, fields in self._rows():
            digest.update(b"\t".join(map(_bytes, fields)) + b"\n")
            count += 1
            yield line, fields
        if not count:
            message = f"There are no pairs in {self.origin}."
            if not self.files:
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


class _Mix(ParallelText):
    """Several corpora one after the other, each repeated by its weight."""

    def __init__(self, parts):
        files = dict.fromkeys(path for part, _ in parts for path in part.files)
        super().__init__(list, list(files))
        self.parts = parts

    def count(self):
        return sum(weight * part.count() for part, weight in self.parts)

    def fingerprint(self):
        digests = [[part.fingerprint()] * weight for part, weight in self.parts]
        mixed = json.dumps(list(itertools.chain(*digests))).encode()
        return hashlib.blake2b(mixed, digest_size=16).hexdigest()

    def pairs(self, bad_lines=None):
        bad_lines = BadLines(0) if bad_lines is None else bad_lines
        for part, weight in self.parts:
            yield from part.pairs(bad_lines)
            for _ in range(weight - 1):  # A bad line counts once.
                yield from part.pairs(BadLines(math.inf))


def open_pairs(
    source: Any,
    target: Any = None,
    *,
    source_key: str | None = None,
    target_key: str | None = None,
) -> ParallelText:
    """Opens sentence pairs from files or Python objects.

    | `source`                                        | pairs                          |
    |-------------------------------------------------|--------------------------------|
    | a file, and another as `target`                 | line by line                   |
    | a file                                          | source, tab, target on a line  |
    | a .csv or tab-separated file with a header      | two columns, named by the keys |
    | a .parquet file                                 | two columns (needs PyArrow)    |
    | a list, a generator, any iterable of pairs      | its items                      |
    | a list, and another as `target`                 | item by item                   |
    | a pandas frame, a `datasets.Dataset`, an        | two columns, or two fields of  |
    | iterable of dictionaries                        | one, such as "translation"     |

    Text files may be gzip, whatever their names. Data of exactly two columns needs no
    keys: the first is the source. A generator is read once and kept in memory;
    everything else is read repeatedly and must yield the same pairs each time.

    Args:
        source: The pairs, or the source side.
        target: The target side, if it is separate.
        source_key: Name of the source column, or of a field of a column that holds both
            sides, such as "en" of `translation: {en, de}`.
        target_key: Name of the target column or field.

    Returns:
        A `ParallelText`.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If PyArrow is needed and missing.
        TypeError: If `source` holds no pairs.
        ValueError: If a path is a directory or a pipe, a file is damaged, a column is
            missing, or keys are given for data without columns.

    Example:
        >>> open_pairs("train.en.gz", "train.de.gz").count()
        29000
        >>> open_pairs([("Hello.", "Hallo."), ("Thanks.", "Danke.")]).count()
        2
        >>> open_pairs("train.csv", source_key="en", target_key="de").count()
        29000
    """
    keys = (source_key, target_key)
    if isinstance(source, (str, os.PathLike)):
        path = checked_path(source)
        kind = Path(path.name.lower().removesuffix(".gz")).suffix
        if target is None and kind == ".parquet":
            return _parquet(path, keys)
        if target is None and any(keys):
            return _delimited(path, kind == ".csv", keys)
        _check_no_keys(keys, "two files, or a file of tab-separated pairs")
        if target is None:
            rows = functools.partial(_tab_separated, path)
            return ParallelText(rows, [path], problem=_tabs)
        other = checked_path(target)
        return ParallelText(functools.partial(_aligned, path, other), [path, other])
    if target is not None:
        source = list(source)
        target = list(target)
        if len(source) != len(target):
            raise ValueError(
                "The lists of sentences must have the same length. Received: "
                f"{len(source)} and {len(target)}"
            )
        source = zip(source, target, strict=True)
    if isinstance(source, ParallelText):
        _check_no_keys(keys, "a ParallelText")
        return source
    if hasattr(source, "columns"):
        chosen = _chosen(list(source.columns), keys, "the frame")
        return _numbered(lambda: zip(*(source[key] for key in chosen), strict=True))
    if not isinstance(source, Iterable):
        raise TypeError(f"{_EXPECTED}. Received: {type(source).__name__}")
    source = list(source) if iter(source) is source else source
    first = next(iter(source), ("", ""))
    if isinstance(first, Mapping):
        return _numbered(_columns(lambda names: source, keys, "the rows"))
    _check_no_keys(keys, f"a {type(source).__name__} of pairs")
    if len(_fields(first)) != 2:
        raise TypeError(f"{_EXPECTED}. Received: first row {first!r:.100}")
    return _numbered(lambda: map(_fields, source))


def checked_path(path: str | Path) -> Path:
    """Returns `path`, or raises unless it is a file that can be read repeatedly."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ValueError(
            f"{path} must be a regular file, because it is read more than once. "
            f"Received: a {'directory' if path.is_dir() else 'pipe or device'}"
        )
    return path


def mixed_pairs(parts: Iterable[tuple[Any, int]]) -> ParallelText:
    """Mixes corpora, for example general text with a little text of a domain.

    A pair of a corpus with weight 4 occurs four times in each epoch. A bad line counts
    once.

    Args:
        parts: `(pairs, weight)` for each corpus: pairs as `open_pairs` returns or takes
            them, and an integer of at least 1.

    Returns:
        A `ParallelText`.

    Raises:
        TypeError: If a part is not such a pair, or holds no sentence pairs.
        ValueError: If there is no corpus, or a weight is not an integer of at least 1.

    Example:
        >>> general, domain = open_pairs("news.tsv"), open_pairs("manuals.tsv")
        >>> train(mixed_pairs([(general, 1), (domain, 4)]), "runs/manuals")
    """
    mixed = []
    for number, part in enumerate(parts, 1):
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            raise TypeError(
                "`parts` must have (pairs, weight) for each corpus. Received: "
                f"{part!r:.100}"
            )
        text, weight = part
        check_number("weight", weight, int, minimum=1)
        for corpus, times in open_pairs(text).parts:
            named = corpus if corpus.files else corpus._of_mix(number)
            mixed.append((named, times * weight))
    if not mixed:
        raise ValueError("`parts` must have at least one corpus. Received: none")
    return _Mix(mixed)


def _aligned(source, target):
    """Yields the lines of two files in pairs."""
    counts = [0, 0]
    # The longer file is read to its end, because the error names both numbers.
    lines = itertools.zip_longest(read_lines(source), read_lines(target))
    for line, fields in enumerate(lines, 1):
        for side, field in enumerate(fields):
            counts[side] += field is not None
        if None not in fields:
            yield line, fields
    if counts[0] != counts[1]:
        raise ValueError(
            f"{source} has {counts[0]} lines but {target} has {counts[1]}: line n of "
            "one must be the translation of line n of the other."
        )


def _tab_separated(path):
    """Yields the fields of each line of a file."""
    most = 0
    for line, text in enumerate(read_lines(path), 1):
        fields = text.split(b"\t")
        most = max(most, len(fields))
        yield line, fields
    if most == 1:
        raise ValueError(
            f"{path}:1: no tab, expected source, one tab, target; no line has one. If "
            "the file has a header, name two of its columns with `source_key` and "
            "`target_key`, or with --columns."
        )


def _tabs(count):
    problem = "no tab" if count == 1 else f"{count - 1} tabs"
    remedy = " (`cut -f1,2 FILE` keeps two columns)" if count > 2 else ""
    return f"{problem}, expected source, one tab, target{remedy}"


def _delimited(path, is_csv, keys):
    """Reads two columns of a file with a header: CSV, or tabs without quotes."""
    csv.field_size_limit(max(_MAX_FIELD, csv.field_size_limit()))
    options = {} if is_csv else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}

    def records():
        with opened(path) as stream:
            # Invalid UTF-8 passes here and is reported later with its line.
            text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
            reader = csv.reader(text, strict=True, **options)
            line = 1
            try:
                for record in reader:
                    if record:
                        yield line, record
                    line = reader.line_num + 1
            except csv.Error as error:
                raise ValueError(f"{path}:{line}: {error}") from error

    header = next(records(), None)
    if header is None:
        raise ValueError(f"{path} is empty.")
    names = header[1]
    places = [names.index(key) for key in _chosen(names, keys, str(path))]

    def rows():
        for line, record in itertools.islice(records(), 1, None):
            whole = len(record) == len(names)
            texts = [record[place] for place in places] if whole else []
            yield line, [text.encode("utf-8", "surrogateescape") for text in texts]

    problem = f"not {len(names)} columns, as the header has"
    return ParallelText(rows, [path], problem=lambda count: problem)


def _parquet(path, keys):
    """Reads two columns of a Parquet file, or two fields of one column."""
    need = "Reading Parquet files needs PyArrow"
    parquet = required("pyarrow.parquet", need, "parquet")

    def rows(names):
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(1024, columns=names):
                    yield from batch.to_pylist()
        except ValueError as error:  # PyArrow's ArrowInvalid is one.
            raise ValueError(f"{path} is not a Parquet file: {error}") from error

    fields = _columns(rows, keys, str(path))
    return _numbered(fields, [path], "{path}: row {line}")


def _columns(rows, keys, where):
    """Returns a function that yields two columns of dictionaries, or fields of one.

    `rows` is a function of the names of the needed columns, or of `None` for all.
    """
    first = next(iter(rows(None)), None)
    if first is None:
        return list
    parents = [name for name, field in first.items() if isinstance(field, Mapping)]
    named = [name for name in parents if all(key in first[name] for key in keys)]
    parent = next(iter(named or (parents if len(first) == 1 else ())), None)
    chosen = _chosen(list(first if parent is None else first[parent]), keys, where)

    def fields():
        for row in rows(chosen if parent is None else [parent]):
            row = row if parent is None else row[parent] or {}
            yield [row.get(key) for key in chosen]

    return fields


def _numbered(fields, files=(), place=None):
    """Returns the pairs of a function that returns an iterator of fields."""
    return ParallelText(lambda: enumerate(fields(), 1), files, place)


def _chosen(names, keys, where):
    """Returns the names of the source and target columns; two need no keys."""
    if not any(keys) and len(names) == 2:
        return names
    for name, key in zip(("source_key", "target_key"), keys, strict=True):
        if key not in names:
            raise ValueError(
                f"`{name}` must be one of {', '.join(map(repr, names))} for {where}. "
                f"Received: {name}={key!r} (at the command line: --columns)"
            )
    return keys


def _check_no_keys(keys, what):
    if any(keys):
        raise ValueError(
            "`source_key` and `target_key` need data with named columns: rows, a frame "
            f"or a .csv, .tsv or .parquet file. Received: {what}"
        )


def _fields(row):
    """Returns a row as a list of fields; a string is one field."""
    is_one = isinstance(row, (str, bytes)) or not isinstance(row, Iterable)
    return [row] if is_one else list(row)


def _checked(side, field):
    """Returns a field's text and its problem; one of them is `None`."""
    if not isinstance(field, (bytes, str)):
        return None, f"{side} is not text: {field!r:.50}"
    content = _bytes(field)
    if len(content) > MAX_SENTENCE_BYTES:
        return None, f"{side} is longer than {MAX_SENTENCE_BYTES} bytes"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, f"{side} is not valid UTF-8 (byte {error.start + 1})"
    return (text, None) if text.strip() else (None, f"{side} is empty")


def _bytes(field):
    """Returns a field as bytes; a surrogate becomes invalid UTF-8."""
    if isinstance(field, bytes):
        return field
    # A field that is not text is a bad line; its `repr` only enters the digest.
    text = field if isinstance(field, str) else repr(field)
    return text.encode("utf-8", "surrogatepass")
