"""Pairs of sentences from columns that have names: CSV, Parquet, TFDS."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from keras_transformer.text.lines import checked_path, opened
from keras_transformer.text.parallel_text import ParallelText

# Characters of a field that are read, to be counted as a bad line. A quote that nothing
# closes makes one field of the rest of a file, which must not fill the memory.
_MAX_FIELD = 1 << 24


class DelimitedFile(ParallelText):
    """Two named columns of a CSV file, or of a TSV file with a header, gzip or not.

    A file whose name ends in .csv or .csv.gz has commas and may have quotes, and in
    them line breaks; any other has tabs and no quotes. Empty lines are passed over.

    Args:
        path: The file; its first line names the columns.
        source_key: Name of the column of source sentences.
        target_key: Name of the column of target sentences.

    Raises:
        FileNotFoundError: If the file is missing.
        ValueError: If the path is a directory or a pipe, the file is empty or damaged,
            or it has no such column.
    """

    def __init__(
        self, path: str | Path, source_key: str | None, target_key: str | None
    ):
        self.path = checked_path(path)
        header = next(self._records(), None)
        if header is None:
            raise ValueError(f"{self.path} is empty.")
        names = header[1]
        keys = chosen_keys(names, source_key, target_key, str(self.path))
        self._width = len(names)
        self._columns = [names.index(key) for key in keys]

    def count(self):
        count = sum(1 for _ in self._numbered_rows())
        if not count:
            raise ValueError(f"{self.path} has no line below its header.")
        return count

    def place(self, line, side):
        return f"{self.path}:{line}"

    def files(self):
        return [self.path]

    def _rows(self):
        return (fields for _, fields in self._numbered_rows())

    def _numbered_rows(self):
        for line, record in itertools.islice(self._records(), 1, None):
            whole = len(record) == self._width
            chosen = [record[column] for column in self._columns] if whole else []
            yield line, [text.encode("utf-8", "surrogateescape") for text in chosen]

    def _shape_problem(self, fields):
        return f"not {self._width} columns, as the header has"

    def _records(self):
        """Yields the line on which each record begins, and its fields as text."""
        is_csv = kind_of(self.path) == ".csv"
        options = {} if is_csv else {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
        with opened(self.path) as stream:
            # Bytes that are no UTF-8 pass, to be reported with their line.
            text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
            reader, line = csv.reader(text, strict=True, **options), 1
            try:
                for record in _with_long_fields(reader):
                    if record:
                        yield line, record
                    line = reader.line_num + 1
            except csv.Error as error:
                raise ValueError(f"{self.path}:{line}: {error}") from error


def _with_long_fields(reader) -> Iterator[list[str]]:
    """Yields the records of a `csv.reader`, those with very long fields too.

    `csv` has one limit for the whole process, which others may rely on.
    """
    while True:
        limit = csv.field_size_limit(_MAX_FIELD)
        try:
            record = next(reader, None)
        finally:
            csv.field_size_limit(limit)
        if record is None:
            return
        yield record


class ParquetFile(ParallelText):
    """Two named columns of a Parquet file; needs PyArrow.

    Args:
        path: The file.
        source_key: Name of the column of source sentences, or of a field of a column
            that holds both, such as "en" of `translation: {en, de}`. Without names a
            file of exactly two columns is source and target.
        target_key: The same for the target.

    Raises:
        FileNotFoundError: If the file is missing.
        ImportError: If PyArrow is not installed.
        ValueError: If the path is a directory or a pipe, the file is no Parquet file,
            or it has no such column.
    """

    def __init__(
        self, path: str | Path, source_key: str | None, target_key: str | None
    ):
        self.path = checked_path(path)
        self._parquet = _parquet()
        with self._opened() as file:
            self._count = file.metadata.num_rows
            schema = file.schema_arrow
        fields = {field.name: field.type for field in schema}
        columns = {
            name: [kind.field(i).name for i in range(kind.num_fields)]
            for name, kind in fields.items()
        }
        self._parent = parent_of(columns, source_key, target_key)
        names = columns[self._parent] if self._parent else list(fields)
        self._keys = chosen_keys(names, source_key, target_key, str(self.path))

    def count(self):
        if not self._count:
            raise ValueError(f"{self.path} has no row.")
        return self._count

    def place(self, line, side):
        return f"{self.path}: row {line}"

    def files(self):
        return [self.path]

    def _rows(self):
        columns = [self._parent] if self._parent else self._keys
        with self._opened() as file:
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                parent = batch.column(self._parent) if self._parent else None
                read = batch.column if parent is None else parent.field
                sides = (read(key).to_pylist() for key in self._keys)
                yield from zip(*sides, strict=True)

    def _opened(self):
        try:
            return self._parquet.ParquetFile(self.path)
        except ValueError as error:  # PyArrow's ArrowInvalid is one.
            raise ValueError(f"{self.path} is no Parquet file: {error}") from error


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
        check_one_of("split", split, info.splits, f"tfds:{name}")
        check_one_of("source_key", source_key, info.features, f"tfds:{name}")
        check_one_of("target_key", target_key, info.features, f"tfds:{name}")
        self._count = info.splits[split].num_examples

    def count(self):
        return self._count

    def place(self, line, side):
        return f"tfds:{self.name}/{self.split}:{line}"

    @property
    def origin(self):
        return f"tfds:{self.name}/{self.split}"

    def _rows(self):
        tfds = _tfds()
        data = tfds.load(self.name, split=self.split, shuffle_files=False)
        for example in tfds.as_numpy(data):
            yield [example[self.source_key], example[self.target_key]]


def chosen_keys(
    names: Sequence[str], source_key: str | None, target_key: str | None, where: str
) -> tuple[str, str]:
    """Returns the names of the source's and the target's column.

    Args:
        names: All columns; if there are two, neither needs to be named.
        source_key: Name of the source's, or `None`.
        target_key: Name of the target's, or `None`.
        where: What has the columns, for messages.

    Raises:
        ValueError: If there is no such column.
    """
    if source_key is None and target_key is None and len(names) == 2:
        source_key, target_key = names
    check_one_of("source_key", source_key, names, where)
    check_one_of("target_key", target_key, names, where)
    return source_key, target_key


def parent_of(
    columns: Mapping[str, Collection[str]],
    source_key: str | None,
    target_key: str | None,
) -> str | None:
    """Returns the column whose fields hold both sides, or `None`.

    Args:
        columns: All columns, with the names of the fields that each holds, if any.
        source_key: Name of the source's field.
        target_key: Name of the target's field.
    """
    for name, fields in columns.items():
        if source_key in fields and target_key in fields:
            return name
    return next(iter(columns)) if len(columns) == 1 and any(columns.values()) else None


def check_one_of(name: str, value: str | None, known: Sequence[str], where: str):
    """Raises `ValueError` if `value`, given as `name`, is not in `known`."""
    if value not in known:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, known))} for {where}. "
            f"Received: {name}={value!r}"
        )


def kind_of(path: str | Path) -> str:
    """Returns the end of a file's name, such as ".csv", without ".gz"."""
    name = Path(path).name.lower().removesuffix(".gz")
    return Path(name).suffix


def _parquet():
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "Reading Parquet files needs PyArrow: "
            'pip install "keras-transformer-seq2seq[parquet]"'
        ) from error
    return pyarrow.parquet


def _tfds():
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "Reading `tfds:` corpora needs TensorFlow Datasets: "
            'pip install "keras-transformer-seq2seq[tfds]"'
        ) from error
    return tensorflow_datasets
