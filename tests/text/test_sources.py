"""Pairs from whatever holds them: `open_pairs` gives the same from each."""

import csv
import gzip
import sys

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from keras_transformer.config import TokenizerConfig
from keras_transformer.text import (
    BadLines,
    Corpus,
    ParallelText,
    learn_tokenizers,
    open_pairs,
)
from tests import tiny_run

PAIRS = [("one", "eins"), ('two, "2"', "zwei\tzwo"), ("three\nlines", "drei")]
EN, DE = (list(side) for side in zip(*PAIRS, strict=True))
KEYS = {"source_key": "en", "target_key": "de"}


def read(text, budget=0):
    assert isinstance(text, ParallelText)
    first, again = ([*text.pairs(BadLines(budget))] for _ in range(2))
    assert first == again  # Read again and again, it gives the same.
    return [(pair.source, pair.target) for pair in first]


class Rows:
    """Iterable again and again, without a length, as `datasets.IterableDataset`."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


DICTIONARIES = [{"n": 1, "en": s, "de": t} for s, t in PAIRS]
NESTED = [{"translation": {"de": t, "en": s}} for s, t in PAIRS]
HELD = {
    "a list": lambda: open_pairs(PAIRS),
    "lists of two": lambda: open_pairs(list(map(list, PAIRS))),
    "a generator": lambda: open_pairs(pair for pair in PAIRS),
    "an iterable": lambda: open_pairs(Rows(PAIRS)),
    "two lists": lambda: open_pairs(EN, DE),
    "a ParallelText": lambda: open_pairs(open_pairs(PAIRS)),
    "bytes": lambda: open_pairs([(s.encode(), t.encode()) for s, t in PAIRS]),
    "dictionaries": lambda: open_pairs(DICTIONARIES, **KEYS),
    "a generator of dictionaries": lambda: open_pairs(iter(DICTIONARIES), **KEYS),
    "nested dictionaries": lambda: open_pairs(NESTED, **KEYS),
    "one column of two fields": lambda: open_pairs(
        [{"translation": {"en": s, "de": t}} for s, t in PAIRS]
    ),
    "a split": lambda: open_pairs({"train": NESTED, "test": []}, **KEYS),
    "a frame": lambda: open_pairs(pandas.DataFrame(DICTIONARIES), **KEYS),
    "a frame of two columns": lambda: open_pairs(pandas.DataFrame(PAIRS)),
}


@pytest.mark.parametrize("name", HELD)
def test_what_a_program_holds_gives_its_pairs(name):
    text = HELD[name]()
    assert read(text) == PAIRS
    assert text.count() == 3
    assert text.files() == []
    assert text.place(2, "source") == "row 2"
    assert text.fingerprint() == HELD["a list"]().fingerprint()


def test_a_data_set_of_hugging_face_gives_its_pairs():
    datasets = pytest.importorskip("datasets")
    for rows in (DICTIONARIES, NESTED):
        data = datasets.Dataset.from_list(rows)
        assert read(open_pairs(data, **KEYS)) == PAIRS
        splits = datasets.DatasetDict({"train": data, "valid": data.select([1])})
        assert read(open_pairs(splits, **KEYS)) == PAIRS
        assert read(open_pairs(splits, split="valid", **KEYS)) == PAIRS[1:2]
        assert read(open_pairs(data.to_iterable_dataset(), **KEYS)) == PAIRS


def test_bad_rows_are_named_and_skipped():
    rows = [("one", "eins"), ("two", None), ("", "drei"), ("four", float("nan"))]
    rows += [("five", "fünf", "5"), "six", ("x\ud800", "y"), ("ten", "zehn")]
    text = open_pairs(rows)
    bad_lines = BadLines(10)
    assert [pair.line for pair in text.pairs(bad_lines)] == [1, 8]
    assert bad_lines.examples == [
        "row 2: target is not text: None",
        "row 3: source is empty",
        "row 4: target is not text: nan",
        "row 5: 3 fields, expected source and target",
        "row 6: 1 fields, expected source and target",
    ]
    assert bad_lines.count == 6
    with pytest.raises(ValueError, match=r"^row 2: target is not text: None\. This"):
        read(text)


def test_a_generator_that_was_read_is_told():
    generator = (pair for pair in PAIRS)
    list(generator)
    with pytest.raises(ValueError, match="only once: give it to `open_pairs`"):
        open_pairs(generator).count()


CSV = (
    'n,de,en\r\n1,eins,one\r\n2,zwei\tzwo,"two, ""2"""\r\n\r\n3,drei,"three\nlines"\r\n'
)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_columns_of_a_csv_file(tmp_path, name):
    content = b"\xef\xbb\xbf" + CSV.encode()
    packed = gzip.compress(content) if name.endswith("gz") else content
    (tmp_path / name).write_bytes(packed)
    text = open_pairs(tmp_path / name, **KEYS)
    assert read(text) == PAIRS
    assert text.count() == 3
    assert [pair.line for pair in text.pairs()] == [2, 3, 5]
    assert text.files() == [tmp_path / name]
    assert text.fingerprint() == open_pairs(PAIRS).fingerprint()


def test_columns_of_a_tsv_file_with_a_header(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('en\tde\tscore\none "1"\teins\t0.5\n')
    assert read(open_pairs(path, **KEYS)) == [('one "1"', "eins")]


def test_bad_rows_of_a_csv_file_have_their_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'en,de\n"a\nb",x\nonly\nfour,\nfi\xffve,y\n1,2,3\nsix,z\n')
    bad_lines = BadLines(10)
    pairs = list(open_pairs(path, **KEYS).pairs(bad_lines))
    assert [tuple(pair) for pair in pairs] == [(2, "a\nb", "x"), (8, "six", "z")]
    assert bad_lines.examples == [
        f"{path}:4: not 2 columns, as the header has",
        f"{path}:5: target is empty",
        f"{path}:6: source is not valid UTF-8 (byte 3)",
        f"{path}:7: not 2 columns, as the header has",
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_very_long_field_is_a_bad_line(tmp_path, name):
    between = "," if name == "a.csv" else "\t"
    rows = [("en", "de"), ("one", "eins"), ("x" * 140_000, "y"), ("two", "zwei")]
    path = tmp_path / name
    path.write_text("".join(between.join(row) + "\n" for row in rows), "utf-8")
    limit, bad_lines = csv.field_size_limit(), BadLines(1)
    pairs = list(open_pairs(path, **KEYS).pairs(bad_lines))
    assert [pair.source for pair in pairs] == ["one", "two"]
    assert bad_lines.examples == [f"{path}:3: source is longer than 65536 bytes"]
    assert csv.field_size_limit() == limit


def parquet(path, table):
    pyarrow.parquet.write_table(table, path)
    return path


def test_columns_of_a_parquet_file(tmp_path):
    path = tmp_path / "a.parquet"
    for rows in (DICTIONARIES, NESTED):
        text = open_pairs(parquet(path, pyarrow.Table.from_pylist(rows)), **KEYS)
        assert read(text) == PAIRS
        assert text.count() == 3
        assert text.files() == [path]
        assert text.fingerprint() == open_pairs(PAIRS).fingerprint()
    nested = pyarrow.table({"translation": [{"en": s, "de": t} for s, t in PAIRS]})
    assert read(open_pairs(parquet(path, nested))) == PAIRS
    two = pyarrow.table({"en": [*EN, None], "de": [*DE, "x"]})
    text = open_pairs(parquet(path, two))  # Two columns need no names.
    bad_lines = BadLines(1)
    assert len(list(text.pairs(bad_lines))) == 3
    assert bad_lines.examples == [f"{path}: row 4: source is not text: None"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = parquet(tmp_path / "a.parquet", pyarrow.table({"en": EN, "de": DE}))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"keras-transformer-seq2seq\[parquet\]"):
        open_pairs(path)


def write(path, content):
    path.write_text(content)
    return path


ERRORS = {
    "a file without tabs": (
        lambda d: open_pairs(write(d / "x.csv", "one,eins\n" * 300)).count(),
        r"x\.csv:1: no tab, expected source, one tab, target; no line has one\. .*`sou",
    ),
    "no such column": (
        lambda d: open_pairs(write(d / "x.csv", "a,b\n1,2\n"), **KEYS),
        r"`source_key` must be one of 'a', 'b' for .*x\.csv.*source_key='en'",
    ),
    "one column named": (
        lambda d: open_pairs(write(d / "x.csv", "en,de\n1,2\n"), source_key="en"),
        r"`target_key` must be one of 'en', 'de' .*target_key=None",
    ),
    "a header alone": (
        lambda d: open_pairs(write(d / "x.csv", "en,de\n"), **KEYS).count(),
        r"x\.csv has no line below its header",
    ),
    "an empty file": (
        lambda d: open_pairs(write(d / "x.csv", ""), **KEYS), r"x\.csv is empty"
    ),
    "a quote that never ends": (
        lambda d: read(open_pairs(write(d / "x.csv", 'en,de\na,"b\n'), **KEYS)),
        r"x\.csv:2: unexpected end of data",
    ),
    "no Parquet": (
        lambda d: open_pairs(write(d / "x.parquet", "text"), **KEYS),
        r"x\.parquet is no Parquet file",
    ),
    "no row": (
        lambda d: open_pairs(
            parquet(d / "x.parquet", pyarrow.table({"en": [], "de": []}))
        ).count(),
        r"x\.parquet has no row",
    ),
    "an empty list": (lambda d: open_pairs([]).count(), "There are no pairs"),
    "texts in place of pairs": (
        lambda d: open_pairs(["one", "two"]), "Pairs must be .*first row 'one'"
    ),
    "a number": (lambda d: open_pairs(5), "Pairs must be .*Received: int"),
    "keys with a list": (
        lambda d: open_pairs(PAIRS, **KEYS),
        "`source_key`, `target_key` only go with data that has names. .* a list",
    ),
    "a split of a list": (
        lambda d: open_pairs(PAIRS, split="train"), "`split` only go with data"
    ),
    "no such split": (
        lambda d: open_pairs({"train": NESTED}, split="dev", **KEYS),
        "`split` must be one of 'train' for the data set. Received: split='dev'",
    ),
    "lists of two lengths": (
        lambda d: open_pairs(["a", "b"], ["c"]), "as many sentences. Received: 2 and 1"
    ),
    "frame without keys": (
        lambda d: open_pairs(pandas.DataFrame(DICTIONARIES)),
        "`source_key` must be one of 'n', 'en', 'de' for the frame",
    ),
    "nested without keys": (
        lambda d: open_pairs(NESTED + [{"translation": {}, "more": 1}], source_key="x"),
        "`source_key` must be one of 'de', 'en' for the rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_read_is_told(tmp_path, name):
    make, message = ERRORS[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make(tmp_path)


def test_a_corpus_of_a_list_is_that_of_its_file(tmp_path):
    path = tiny_run.write_pairs(tmp_path / "a.tsv")
    config = TokenizerConfig(vocabulary_size=300)
    tokenizers = learn_tokenizers(tiny_run.TRAIN, config)
    from_file = learn_tokenizers(str(path), config)
    assert tokenizers.source.content == from_file.source.content
    for a, b in zip(
        Corpus(tiny_run.TRAIN, tokenizers).epoch(0),
        Corpus(open_pairs(path), tokenizers).epoch(0),
        strict=True,
    ):
        assert (a[0][0] == b[0][0]).all() and (a[1] == b[1]).all()
