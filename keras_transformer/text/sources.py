"""Pairs of sentences from whatever a program has: files, lists, frames, data sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_transformer.text.parallel_text import AlignedFiles, ParallelText, TsvFile
from keras_transformer.text.tables import (
    DelimitedFile,
    ParquetFile,
    TfdsPairs,
    check_one_of,
    chosen_keys,
    kind_of,
    parent_of,
)

_EXPECTED = (
    "Pairs must be (source, target) of strings, rows with named columns, a frame, a "
    "data set or the name of a file"
)


class RowPairs(ParallelText):
    """Pairs that a program holds.

    Args:
        rows: (source, target) each, to be read more than once. An iterator, such as a
            generator, is read here, once, and its pairs are kept in memory.

    Raises:
        TypeError: If the first row is not a pair.
    """

    def __init__(self, rows: Iterable[Any]):
        is_iterator = iter(rows) is rows
        self._all = list(rows) if is_iterator else rows
        first = next(iter(self._all), ("", ""))
        if len(_fields(first)) != 2:
            raise TypeError(f"{_EXPECTED}. Received: first row {first!r:.100}")

    def count(self):
        rows = self._all
        count = len(rows) if hasattr(rows, "__len__") else sum(1 for _ in rows)
        if not count:
            raise ValueError(
                "There are no pairs: what was given is empty. A generator can be read "
                "only once: give it to `open_pairs`, and use what that returns."
            )
        return count

    def place(self, line, side):
        return f"row {line}"

    def _rows(self):
        return map(_fields, self._all)


class _KeyedRows:
    """Two columns of rows that are dictionaries, such as those of `datasets.Dataset`.

    Both may be fields of one column: `{"translation": {"en": ..., "de": ...}}`.
    """

    def __init__(self, rows: Iterable[Mapping], source_key, target_key):
        first = next(iter(rows))
        columns = {n: v if isinstance(v, Mapping) else () for n, v in first.items()}
        self._parent = parent_of(columns, source_key, target_key)
        names = list(first[self._parent] if self._parent else first)
        self._keys = chosen_keys(names, source_key, target_key, "the rows")
        self._all = rows

    def __iter__(self) -> Iterator[tuple]:
        source_key, target_key = self._keys
        for row in self._all:
            row = row[self._parent] if self._parent else row
            yield row.get(source_key), row.get(target_key)


class _FrameColumns:
    """Two columns of a pandas frame, or another whose columns have names."""

    def __init__(self, frame, source_key, target_key):
        names = list(frame.columns)
        self._keys = chosen_keys(names, source_key, target_key, "the frame")
        self._frame = frame

    def __len__(self):
        return len(self._frame)

    def __iter__(self):
        return zip(*(self._frame[key] for key in self._keys), strict=True)


def open_pairs(
    source: Any,
    target: Any = None,
    *,
    source_key: str | None = None,
    target_key: str | None = None,
    split: str | None = None,
) -> ParallelText:
    """Opens a corpus of sentence pairs, whatever holds it.

    | `source`                                        | pairs                          |
    |-------------------------------------------------|--------------------------------|
    | a file; `target` another                        | their lines                    |
    | a file                                          | source, tab, target on a line  |
    | a .csv or other file with a header; two keys    | two columns                    |
    | a .parquet file                                 | two columns (PyArrow)          |
    | "tfds:NAME"                                     | two features (extra `tfds`)    |
    | a list, a generator, any iterable of pairs      | those                          |
    | a list; `target` another                        | their items                    |
    | a pandas frame, a `datasets.Dataset`, an        | two columns, or two fields of  |
    | iterable of dictionaries                        | one, such as of "translation"  |

    Text files may be gzip, whatever their names. What has exactly two columns needs no
    keys: the first is the source. A generator is read once and kept in memory; all else
    is read again and again, and must give the same pairs each time.

    Args:
        source: What holds the pairs, or the source side.
        target: The target side, or `None`.
        source_key: Name of the source's column.
        target_key: Name of the target's column.
        split: Split of a `datasets.DatasetDict` or of TFDS; default "train".

    Returns:
        A `ParallelText`, which can be read again and again.

    Raises:
        FileNotFoundError: If a file is missing.
        ImportError: If a library that reads such data is not installed.
        TypeError: If `source` is none of these.
        ValueError: If a path is a directory or a pipe, a file is damaged, an option
            does not go with the data, or there is no such column or split.

    Example:
        >>> open_pairs("train.en-de.tsv.gz").count()
        29000
        >>> open_pairs([("Hello.", "Hallo."), ("Thanks.", "Danke.")]).count()
        2
        >>> open_pairs("train.csv", source_key="en", target_key="de").count()
        29000
    """
    keys = {"source_key": source_key, "target_key": target_key}
    if isinstance(source, (str, os.PathLike)):
        return _opened_file(os.fspath(source), target, keys, split)
    if isinstance(source, ParallelText) or target is not None:
        _check_none(keys | {"split": split}, source)
        return source if target is None else RowPairs(_paired(source, target))
    if isinstance(source, Mapping):
        check_one_of("split", split or "train", list(source), "the data set")
        source = source[split or "train"]
    elif split is not None:
        _check_none({"split": split}, source)
    if not isinstance(source, Iterable):
        raise TypeError(f"{_EXPECTED}. Received: {type(source).__name__}")
    if hasattr(source, "columns"):
        return RowPairs(_FrameColumns(source, **keys))
    source = list(source) if iter(source) is source else source
    if isinstance(next(iter(source), None), Mapping):
        return RowPairs(_KeyedRows(source, **keys))
    _check_none(keys, source)
    return RowPairs(source)


def _opened_file(source, target, keys, split):
    """Returns the `ParallelText` of a file's name, or of two."""
    if source.startswith("tfds:") and target is None:
        split = {} if split is None else {"split": split}
        return TfdsPairs(source.removeprefix("tfds:"), **keys, **split)
    given, what = {"split": split}, "a source of the form tfds:NAME"
    if target is not None:
        given |= keys
        what += ", keys also with one .csv, .tsv or .parquet file"
    given = [name for name, value in given.items() if value is not None]
    if given:
        raise ValueError(
            f"{', '.join(map('`{}`'.format, given))} only go with {what}. Received: "
            f"source={source!r}, target={target!r}"
        )
    if target is not None:
        return AlignedFiles(source, target)
    if kind_of(source) == ".parquet":
        return ParquetFile(source, **keys)
    if any(keys.values()):
        return DelimitedFile(source, **keys)
    return TsvFile(source)


def _check_none(options, source):
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(
            f"{', '.join(f'`{name}`' for name in given)} only go with data that has "
            f"names. Received: a {type(source).__name__}"
        )


def _paired(sources, targets):
    """Returns the items of two sequences as pairs."""
    sources, targets = list(sources), list(targets)
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `target` must have as many sentences. Received: "
            f"{len(sources)} and {len(targets)}"
        )
    return list(zip(sources, targets, strict=True))


def _fields(row):
    """Returns a row as a sequence; text alone is one field, not its characters."""
    is_one = isinstance(row, (str, bytes)) or not isinstance(row, Iterable)
    return [row] if is_one else list(row)
