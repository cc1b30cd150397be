"""Pairs from whatever holds them: `open_pairs` gives the same from each."""

import gzip
import os
import sys

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from keras_transformer.text import (
    BadLines,
    ParallelText,
    mixed_pairs,
    open_pairs,
    pairs,
)
from keras_transformer.text import lines as lines_module
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
    "a frame": lambda: open_pairs(pandas.DataFrame(DICTIONARIES), **KEYS),
    "a frame of two columns": lambda: open_pairs(pandas.DataFrame(PAIRS)),
}


@pytest.mark.parametrize("name", HELD)
def test_what_a_program_holds_gives_its_pairs(name):
    text = HELD[name]()
    assert read(text) == PAIRS
    assert text.count() == 3
    assert text.fingerprint() == HELD["a list"]().fingerprint()
    assert text.files == []
    assert text.place(2, "source") == "row 2"


def test_a_data_set_of_hugging_face_gives_its_pairs():
    datasets = pytest.importorskip("datasets")
    for rows in (DICTIONARIES, NESTED):
        data = datasets.Dataset.from_list(rows)
        assert read(open_pairs(data, **KEYS)) == PAIRS
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
    assert [pair.line for pair in text.pairs()] == [2, 3, 5]
    assert text.files == [tmp_path / name]
    assert text.fingerprint() == open_pairs(PAIRS).fingerprint()


def test_columns_of_a_tsv_file_with_a_header(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('en\tde\tscore\none "1"\teins\t0.5\n')
    assert read(open_pairs(path, **KEYS)) == [('one "1"', "eins")]


def test_bad_rows_of_a_csv_file_have_their_line(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'en,de\n"a\nb",x\nonly\nfour,\nfi\xffve,y\n1,2,3\nsix,z\n')
    bad_lines = BadLines(10)
    found = list(open_pairs(path, **KEYS).pairs(bad_lines))
    assert [tuple(pair) for pair in found] == [(2, "a\nb", "x"), (8, "six", "z")]
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
    bad_lines = BadLines(1)
    found = list(open_pairs(path, **KEYS).pairs(bad_lines))
    assert [pair.source for pair in found] == ["one", "two"]
    assert bad_lines.examples == [f"{path}:3: source is longer than 65536 bytes"]


def parquet(path, table):
    pyarrow.parquet.write_table(table, path)
    return path


def test_columns_of_a_parquet_file(tmp_path):
    path = tmp_path / "a.parquet"
    for rows in (DICTIONARIES, NESTED):
        text = open_pairs(parquet(path, pyarrow.Table.from_pylist(rows)), **KEYS)
        assert read(text) == PAIRS
        assert text.files == [path]
        assert text.fingerprint() == open_pairs(PAIRS).fingerprint()
    rows = [{"en": s, "de": t} for s, t in PAIRS]
    nested = pyarrow.table({"translation": [*rows, None]})
    assert read(open_pairs(parquet(path, nested)), budget=1) == PAIRS
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
        r"There are no pairs in .*x\.csv\.$",
    ),
    "an empty file": (
        lambda d: open_pairs(write(d / "x.csv", ""), **KEYS), r"x\.csv is empty"
    ),
    "an empty file of pairs": (
        lambda d: read(open_pairs(write(d / "x.tsv", ""))), r"no pairs in .*x\.tsv\.$"
    ),
    "two empty files": (
        lambda d: open_pairs(write(d / "x", ""), write(d / "y", "")).count(),
        r"There are no pairs in .*x and .*y\.$",
    ),
    "a quote that never ends": (
        lambda d: read(open_pairs(write(d / "x.csv", 'en,de\na,"b\n'), **KEYS)),
        r"x\.csv:2: unexpected end of data",
    ),
    "no Parquet": (
        lambda d: open_pairs(write(d / "x.parquet", "text"), **KEYS),
        r"x\.parquet is not a Parquet file",
    ),
    "no row": (
        lambda d: open_pairs(
            parquet(d / "x.parquet", pyarrow.table({"en": [], "de": []}))
        ).count(),
        r"There are no pairs in .*x\.parquet\.$",
    ),
    "an empty list": (lambda d: open_pairs([]).count(), "There are no pairs"),
    "texts in place of pairs": (
        lambda d: open_pairs(["one", "two"]), "Pairs must be .*first row 'one'"
    ),
    "a number": (lambda d: open_pairs(5), "Pairs must be .*Received: int"),
    "keys with a list": (
        lambda d: open_pairs(PAIRS, **KEYS),
        "`source_key` and `target_key` need data with named columns: .* a list",
    ),
    "keys with two files": (
        lambda d: open_pairs(write(d / "a", "x\n"), d / "a", target_key="de"),
        "`source_key` and `target_key` need data with .* two files",
    ),
    "splits": (lambda d: open_pairs({"train": NESTED}), "first row 'train'"),
    "lists of two lengths": (
        lambda d: open_pairs(["a", "b"], ["c"]), "must have the same length"
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


def packed(path, content):
    content = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def aligned(tmp_path):
    def make(source, target, suffix=""):
        return open_pairs(
            packed(tmp_path / f"a.en{suffix}", source),
            packed(tmp_path / f"a.de{suffix}", target),
        )

    return make


@pytest.fixture
def tsv(tmp_path):
    return lambda content, name="a.tsv": open_pairs(packed(tmp_path / name, content))


def triples(text, budget=0):
    return [tuple(pair) for pair in text.pairs(BadLines(budget))]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_aligned_files_give_pairs_with_line_numbers(aligned, suffix):
    text = aligned("one\ntwo\n", "eins\nzwei\n", suffix)
    assert triples(text) == [(1, "one", "eins"), (2, "two", "zwei")]
    assert triples(text) == triples(text)  # again and again
    assert text.count() == 2


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_a_tsv_file_gives_pairs(tsv, name):
    text = tsv("one\teins\ntwo\tzwei", name)  # no line feed at the end
    assert triples(text) == [(1, "one", "eins"), (2, "two", "zwei")]
    assert text.count() == 2


def test_gzip_is_recognised_by_content_not_by_name(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(gzip.compress(b"one\teins\n"))
    assert triples(open_pairs(path)) == [(1, "one", "eins")]


def test_only_a_line_feed_ends_a_line(aligned):
    odd = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\rh\x00i"
    text = aligned(f"{odd}\r\ntwo \r\r\n", "eins\nzwei\n")
    assert triples(text) == [(1, odd, "eins"), (2, "two \r", "zwei")]
    assert text.count() == 2


def test_a_byte_order_mark_is_dropped(aligned):
    text = aligned(b"\xef\xbb\xbfone\n", b"\xef\xbb\xbfeins\n", ".gz")
    assert triples(text) == [(1, "one", "eins")]
    assert triples(aligned(b"\xef\xbb\xbfone\n", b"eins\n"))[0][1] == "one"


@pytest.mark.parametrize(
    "content, error",
    [
        (b"only one side", r"a\.tsv:2: no tab, expected source, one tab, target"),
        (b"", r"a\.tsv:2: no tab"),
        (b"a\tb\tc", r"a\.tsv:2: 2 tabs, expected"),
        (b"\tb", r"a\.tsv:2: source is empty"),
        (b"a\t \xc2\xa0 ", r"a\.tsv:2: target is empty"),
        (b"a\tb\xff", r"a\.tsv:2: target is not valid UTF-8 \(byte 2\)"),
        (b"\xed\xa0\x80\tb", r"a\.tsv:2: source is not valid UTF-8 \(byte 1\)"),
        (b"a" * 65537 + b"\tb", r"a\.tsv:2: source is longer than 65536 bytes"),
        (b"a\t" + b"b" * 900000, r"a\.tsv:2: target is longer than 65536 bytes"),
    ],
)
def test_a_bad_line_is_named_with_its_reason_and_skipped(tsv, content, error):
    text = tsv(b"one\teins\n" + content + b"\nthree\tdrei\n")
    with pytest.raises(ValueError, match=error):
        triples(text)
    bad_lines = BadLines(1)
    good = [tuple(pair) for pair in text.pairs(bad_lines)]
    assert good == [(1, "one", "eins"), (3, "three", "drei")]
    assert bad_lines.count == 1
    assert text.count() == 3


def test_a_bad_side_of_two_files_names_the_file_of_that_side(aligned):
    text = aligned("one\n\nthree\n", "eins\nzwei\n\n")
    bad_lines = BadLines(5)
    assert [pair.line for pair in text.pairs(bad_lines)] == [1]
    assert bad_lines.examples[0].endswith("a.en:2: source is empty")
    assert bad_lines.examples[1].endswith("a.de:3: target is empty")


def test_the_budget_is_skipped_and_one_more_is_an_error(tsv):
    text = tsv("bad\n" * 3 + "one\teins\n")
    assert len(triples(text, budget=3)) == 1
    with pytest.raises(ValueError) as caught:
        triples(text, budget=2)
    assert str(caught.value).endswith(
        "a.tsv:3: no tab, expected source, one tab, target. This is bad line number 3, "
        "and `bad_line_budget` is 2: correct the file, or raise `bad_line_budget` to "
        "skip more lines."
    )


def test_the_report_shows_the_first_few_and_counts_the_rest():
    bad_lines = BadLines(10)
    assert str(bad_lines) == "no bad lines"
    for line in range(1, 8):
        bad_lines.add(f"f:{line}", "why")
    assert str(bad_lines) == (
        "bad lines: 7 (f:1: why; f:2: why; f:3: why; f:4: why; f:5: why; and 2 more)"
    )


@pytest.mark.parametrize("source_lines, target_lines", [(3, 5), (5, 3), (0, 2)])
def test_different_numbers_of_lines_are_an_error(aligned, source_lines, target_lines):
    text = aligned("x\n" * source_lines, "y\n" * target_lines)
    error = rf"a\.en has {source_lines} lines but .*a\.de has {target_lines}:"
    with pytest.raises(ValueError, match=error):
        text.count()
    seen = []
    with pytest.raises(ValueError, match=error):
        for pair in text.pairs(BadLines(100)):
            seen.append(pair.line)
    assert seen == list(range(1, min(source_lines, target_lines) + 1))


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-20],
        lambda packed: packed[:300] + b"\xff" * 300 + packed[600:],
        lambda packed: packed + b"not gzip",
    ],
    ids=["cut off", "overwritten", "something appended"],
)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    content = "".join(f"source {n}\ttarget {n * n}\n" for n in range(500))
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(damage(gzip.compress(content.encode())))
    with pytest.raises(ValueError, match=r"a\.tsv\.gz is a damaged gzip file: "):
        open_pairs(path).count()
    with pytest.raises(ValueError, match=r"a\.tsv\.gz is a damaged gzip file: "):
        triples(open_pairs(path), budget=1000)


def test_paths_that_are_no_readable_files_are_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.tsv: no such file"):
        open_pairs(tmp_path / "none.tsv")
    with pytest.raises(ValueError, match="regular file.*Received: a directory"):
        open_pairs(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ValueError, match="Received: a pipe or device"):
            open_pairs(tmp_path / "pipe")


def test_a_line_without_end_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 8)
    path = packed(tmp_path / "a", b"12345678901234567890\n12345678\nx\n1234567\n")
    cut = [b"12345678", b"12345678", b"x", b"1234567"]
    assert list(lines_module.read_lines(path)) == cut


def test_a_cut_line_is_always_a_bad_line():
    # Two good sentences, a tab and the line end fit, so a cut line holds a bad one.
    room = 2 * pairs.MAX_SENTENCE_BYTES + len("\t\r\n")
    assert lines_module.MAX_LINE_BYTES > room


GENERAL, DOMAIN = tiny_run.TRAIN, tiny_run.VALID  # 40 and 8 pairs.


def test_a_bad_line_of_a_mix_names_its_own_file_and_is_counted_once(tmp_path):
    good = "".join(f"a{i}\tb{i}\n" for i in range(9))
    first = write(tmp_path / "general.tsv", good + "no tab\n")
    second = [write(tmp_path / "d.en", "one\n\nthree\n")]
    second.append(write(tmp_path / "d.de", "x\ny\nz\n"))
    parts = [(first, 1), (open_pairs(*second), 5), ([("a", "b"), ("c", "")], 2)]
    mixed = mixed_pairs([*parts, ([("", "d")] * 2, 3)])
    bad_lines = BadLines(9)
    assert len(list(mixed.pairs(bad_lines))) == 9 + 5 * 2 + 2 * 1
    assert bad_lines.examples == [
        f"{first}:10: no tab, expected source, one tab, target",
        f"{second[0]}:2: source is empty",
        "row 2 of corpus 3: target is empty",
        "row 1 of corpus 4: source is empty",
        "row 2 of corpus 4: source is empty",
    ]
    assert bad_lines.count == 5
    assert mixed.files == [first, *second]


def test_a_mix_may_be_part_of_a_mix():
    inner = mixed_pairs([(DOMAIN, 2), (GENERAL[:3], 1)])
    outer = mixed_pairs([(inner, 2), (GENERAL, 1)])
    assert [weight for _, weight in outer.parts] == [4, 2, 1]
    assert outer.count() == len(list(outer.pairs())) == 4 * 8 + 2 * 3 + 40


def test_a_text_is_read_once_for_its_number_and_digest(tmp_path):
    path = write(tmp_path / "a.tsv", "one\teins\n")
    text = open_pairs(path)
    assert len(list(text.pairs())) == 1
    path.unlink()
    assert text.count() == 1 and len(text.fingerprint()) == 32


def test_the_fingerprint_is_of_corpora_and_weights(tmp_path):
    made = [((GENERAL, 1), (DOMAIN, 4)), ((GENERAL, 1), (DOMAIN, 3)),
            ((DOMAIN, 1), (GENERAL, 4)), ((GENERAL, 1), (DOMAIN[1:], 4))]  # fmt: skip
    prints = [mixed_pairs(parts).fingerprint() for parts in made]
    assert len(set(prints)) == 4
    path = tiny_run.write_pairs(tmp_path / "a.tsv", DOMAIN)
    assert mixed_pairs([(GENERAL, 1), (path, 4)]).fingerprint() == prints[0]


BAD_MIXES = {
    "`parts` must have at least one corpus": (ValueError, []),
    r"`parts` must have \(pairs, weight\)": (TypeError, [GENERAL]),
    "The weight .* must be an integer .* Received: 0.5": (ValueError, [(GENERAL, 0.5)]),
    "The weight .* an integer .* Received: True": (ValueError, [(GENERAL, True)]),
    "The weight .* at least 1. Received: 0$": (ValueError, [(GENERAL, 0)]),
    "Pairs must be": (TypeError, [(3, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_MIXES)
def test_what_is_no_mix_is_told(message):
    error, parts = BAD_MIXES[message]
    with pytest.raises(error, match=message):
        mixed_pairs(parts)
