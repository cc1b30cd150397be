"""Two columns of files and rows that have named columns."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.text.lines import opened


def delimited(
    path: Path, delimiter: str | None, keys: Sequence, encoding: str | None
) -> tuple[Callable[[], Iterator], str]:
    """Reads two columns of a CSV file, or of lines with tabs if `delimiter` is `None`.

    Without keys it has two columns and no header. Returns a function that yields
    numbered rows, and what is wrong with a row of another length.
    """
    options = {"delimiter": delimiter}
    if delimiter is None:
        options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}

    def records():
        with opened(path, encoding) as stream:
            # Invalid UTF-8 becomes surrogates, which are reported with their line.
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

    names = places = [0, 1]
    if any(keys):
        header = next(records(), None)
        if header is None:
            raise ValueError(f"{path} is empty.")
        names = header[1]
        if len(names) == 1:
            raise ValueError(
                f"{path}:1: the header has one column, {names[0]!r}. Name the mark "
                'between its columns with `delimiter` (--delimiter ";").'
            )
        places = [names.index(key) for key in chosen(names, keys, str(path))]

    def rows():
        for line, record in itertools.islice(records(), int(any(keys)), None):
            is_whole = len(record) == len(names)
            yield line, [record[place] for place in places if is_whole]

    why = "as the header has" if any(keys) else "source and target"
    return rows, f"not {len(names)} columns, {why}"


def columns(
    rows: Callable[[Any], Iterable[Mapping]], keys: Sequence, where: str
) -> Callable[[], Iterable]:
    """Returns a function that yields two columns of dictionaries, or fields of one.

    `rows` is a function of the names of the needed columns, or of `None` for all.
    """
    first = next(iter(rows(None)), None)
    if first is None:
        return list
    found = chosen(list(_flat(first)), keys, where)
    needed = [n for n, x in first.items() if _flat({n: x}).keys() & {*found}]

    def fields():
        for row in map(_flat, rows(needed)):
            yield [row.get(key) for key in found]

    return fields


def _flat(row):
    """Returns the columns of a row, with the fields of a column in its place."""
    flat = {}
    for name, field in row.items():
        flat |= field if isinstance(field, Mapping) else {name: field}
    return flat


def chosen(names: Sequence, keys: Sequence, where: str) -> Sequence:
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
