"""Sentence pairs from files or Python objects."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from keras_transformer.config.options import check_number
from keras_transformer.text.lines import read_lines
from keras_transformer.text.parallel_text import Mix, ParallelText
from keras_transformer.text.table_files import chosen, columns, delimited
from keras_transformer.text.xml_files import unit_rows

_EXPECTED = (
    "Pairs must be (source, target) strings, rows with named columns, a frame, a data "
    "set or the name of a file"
)
_NO_PAIR = "not source, one tab, target"
_CURES = '`cut -f1,2 FILE` drops more columns, --delimiter ";" reads another mark'


def open_pairs(
    source: Any,
    target: Any = None,
    *,
    source_key: str | None = None,
    target_key: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> ParallelText:
    """Opens sentence pairs from files or Python objects.

    | `source`                                        | pairs                          |
    |-------------------------------------------------|--------------------------------|
    | a file, and another as `target`                 | line by line                   |
    | a file                                          | source, tab, target on a line  |
    | a .csv or tab-separated file with a header      | two columns, named by the keys |
    | a .tmx                                          | two languages of each unit     |
    | a list, a generator, any iterable of pairs      | its items                      |
    | a list, and another as `target`                 | item by item                   |
    | a pandas frame, a `datasets.Dataset`, an        | two columns, or two fields of  |
    | iterable of dictionaries                        | one, such as "translation"     |

    Text files may be gzip, whatever their names, and UTF-16 with a byte order mark.
    Other data of exactly two columns needs no keys: the first is the source, in a .tmx
    what its header says. A generator is read once and kept in memory; everything else
    is read repeatedly and must yield the same pairs each time.

    Args:
        source: The pairs, or the source side.
        target: The target side, if it is separate.
        source_key: Name of the source column, or of a field of a column that holds both
            sides, such as "en" of `translation: {en, de}`, or a language of a .tmx, for
            which "en" means "en-US" too.
        target_key: Name of the target column, field or language.
        delimiter: What stands between the columns of a text file, such as ";"; a field
            that holds it is quoted, as in CSV. Without keys it has no header.
        encoding: Encoding of text files, such as "cp1252"; default UTF-8. A byte order
            mark counts more.

    Returns:
        A `ParallelText`.

    Raises:
        FileNotFoundError: If a file is missing.
        TypeError: If `source` holds no pairs, or only one of two sides is a file.
        ValueError: If a path is a directory or a pipe, a file is damaged or no text, a
            column is missing, or keys or a `delimiter` are given for data without
            columns.

    Example:
        >>> open_pairs("train.en.gz", "train.de.gz").count()
        29000
        >>> open_pairs([("Hello.", "Hallo."), ("Thanks.", "Danke.")]).count()
        2
        >>> open_pairs("train.csv", source_key="en", target_key="de").count()
        29000
    """
    keys = (source_key, target_key)
    options = (*keys, delimiter)
    _check_reading(delimiter, encoding)
    is_file = isinstance(source, (str, os.PathLike))
    if target is not None and isinstance(target, (str, os.PathLike)) != is_file:
        raise TypeError(
            "`source` and `target` must both be names of files or both hold sentences. "
            f"Received: source={source!r:.50}, target={target!r:.50}"
        )
    if is_file:
        path = checked_path(source)
        if target is None:
            return _of_one_file(path, keys, delimiter, encoding)
        _check_no_columns(options, "two files")
        other = checked_path(target)
        rows = functools.partial(_aligned, path, other, encoding)
        return ParallelText(rows, [path, other])
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
        _check_no_columns(options, "a ParallelText")
        return source
    if hasattr(source, "columns"):
        names = chosen(list(source.columns), keys, "the frame")
        return _numbered(lambda: zip(*(source[key] for key in names), strict=True))
    if not isinstance(source, Iterable):
        raise TypeError(f"{_EXPECTED}. Received: {type(source).__name__}")
    source = list(source) if iter(source) is source else source
    first = next(iter(source), ("", ""))
    if isinstance(first, Mapping):
        return _numbered(columns(lambda names: source, keys, "the rows"))
    _check_no_columns(options, f"a {type(source).__name__} of pairs")
    if len(_fields(first)) != 2:
        raise TypeError(f"{_EXPECTED}. Received: first row {first!r:.100}")
    return _numbered(lambda: map(_fields, source))


def _of_one_file(path, keys, delimiter, encoding):
    """Returns the pairs of a file, by the end of its name."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == ".tmx":
        rows, problem = unit_rows(path, keys)
    elif any(keys) or delimiter:
        comma = "," if kind == ".csv" else None
        rows, problem = delimited(path, delimiter or comma, keys, encoding)
    else:
        rows = functools.partial(_tab_separated, path, encoding)
        problem = f"{_NO_PAIR} ({_CURES})"
    return ParallelText(rows, [path], problem=problem)


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
        corpora = open_pairs(text).parts
        check_number("weight", weight, int, minimum=1)
        for corpus, times in corpora:
            named = corpus if corpus.files else corpus.of_mix(number)
            mixed.append((named, times * weight))
    if not mixed:
        raise ValueError("`parts` must have at least one corpus. Received: none")
    return Mix(mixed)


def _aligned(source, target, encoding):
    """Yields the lines of two files in pairs."""
    files = (read_lines(path, encoding) for path in (source, target))
    lines = itertools.zip_longest(*files)
    for line, fields in enumerate(lines, 1):
        if None in fields:
            longer = line + sum(1 for _ in lines)
            counts = [line - 1 if field is None else longer for field in fields]
            raise ValueError(
                f"{source} has {counts[0]} lines but {target} has {counts[1]}: line n "
                "of one must be the translation of line n of the other."
            )
        yield line, fields


def _tab_separated(path, encoding):
    """Yields the fields of each line of a file."""
    most = 0
    for line, text in enumerate(read_lines(path, encoding), 1):
        fields = text.split(b"\t")
        most = max(most, len(fields))
        yield line, fields
    if most == 1:
        raise ValueError(
            f"{path}:1: {_NO_PAIR}; no line has a tab. If the file has a header, name "
            "two of its columns with `source_key` and `target_key` (--columns). If "
            'another character stands between source and target, such as ";", name it '
            'with `delimiter` (--delimiter ";").'
        )


def _numbered(fields):
    """Returns the pairs of a function that returns an iterator of fields."""
    return ParallelText(lambda: enumerate(fields(), 1))


def _check_reading(delimiter, encoding):
    """Raises `ValueError` unless text can be read with them."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ValueError(
            '`delimiter` must be one character, such as ";". Received: '
            f"delimiter={delimiter!r}"
        )
    try:
        "".encode(encoding or "utf-8")
    except LookupError as error:
        raise ValueError(
            "`encoding` must be the name of one that Python knows, such as cp1252 or "
            f"utf-16. Received: encoding={encoding!r}"
        ) from error


def _check_no_columns(options, what):
    if any(options):
        raise ValueError(
            "`source_key`, `target_key` and `delimiter` need data with columns: rows, "
            f"a frame or a .csv, .tsv or .tmx file. Received: {what}"
        )


def _fields(row):
    """Returns a row as a list of fields; a string is one field."""
    is_one = isinstance(row, (str, bytes)) or not isinstance(row, Iterable)
    return [row] if is_one else list(row)
