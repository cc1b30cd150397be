"""Pairs from whatever holds them: `open_pairs` gives the same from each."""

import bz2
import csv
import gzip
import lzma
import os
import tracemalloc

import pandas
import pytest

from keras_transformer.text import (
    BadLines,
    ParallelText,
    mixed_pairs,
    open_pairs,
)
from keras_transformer.text import lines as lines_module
from keras_transformer.text.parallel_text import MAX_SENTENCE_BYTES
from tests import tiny_run

PAIRS = [("one", "eins"), ('two, "2"', "zwei\tzwo"), ("three\nlines", "drei")]
EN, DE = (list(side) for side in zip(*PAIRS, strict=True))
KEYS = {"source_key": "en", "target_key": "de"}
GENERAL, DOMAIN = tiny_run.TRAIN, tiny_run.VALID  # 40 and 8 pairs.
WINDOWS = "perhaps Windows-1252 (--encoding cp1252)"
NO_TAB = (
    "not source, one tab, target (`cut -f1,2 FILE` drops more columns, "
    '--delimiter ";" reads another mark)'
)


def triples(text, share=0):
    """Line, source and target of each good pair."""
    assert isinstance(text, ParallelText)
    first, again = ([*text.pairs(BadLines(share))] for _ in range(2))
    assert first == again  # Read again and again, it gives the same.
    return [tuple(pair) for pair in first]


def read(text, share=0):
    return [pair[1:] for pair in triples(text, share)]


def checked(text, *bad):
    """The good pairs of a text whose bad lines are these."""
    bad_lines = BadLines(1.0)
    found = [tuple(pair) for pair in text.pairs(bad_lines)]
    assert bad_lines.examples == list(bad)
    return found


def write(path, content):
    """Writes a text or bytes, packed if the name says so."""
    content = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# What a program holds.


class Rows:
    """Iterable again and again, without a length, as `datasets.IterableDataset`."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


DICTIONARIES = [{"n": 1, "en": s, "de": t} for s, t in PAIRS]
NESTED = [{"translation": {"de": t, "en": s}} for s, t in PAIRS]
IN_ORDER = [{"translation": {"en": s, "de": t}} for s, t in PAIRS]
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
    "one column of two fields": lambda: open_pairs(IN_ORDER),
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
        for each in (data, data.to_iterable_dataset()):
            assert read(open_pairs(each, **KEYS)) == PAIRS


def test_bad_rows_are_named_and_skipped():
    rows = [("one", "eins"), ("two", None), ("", "drei"), ("four", float("nan"))]
    rows += [("five", "fünf", "5"), "six", ("x\ud800", "y"), ("ten", "zehn")]
    text, bad_lines = open_pairs(rows), BadLines(0.5)
    assert [pair.line for pair in text.pairs(bad_lines)] == [1, 8]
    assert bad_lines.examples == [
        "row 2: target is not text: None",
        "row 3: source is empty",
        "row 4: target is not text: nan",
        "row 5: not source and target",
        "row 6: not source and target",
    ]
    assert bad_lines.count == 6
    with pytest.raises(
        ValueError,
        match=r"^row 2: target is not text: None\. Bad so far: 1 of 8 lines\.",
    ):
        read(text)


# Tables.

TABLE = 'n,de,en\r\n1,eins,one\r\n2,zwei\tzwo,"two, ""2"""\r\n\r\n'
TABLE += '3,drei,"three\nlines"\r\n'


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_columns_of_a_file_of_columns(tmp_path, name):
    path = write(tmp_path / name, b"\xef\xbb\xbf" + TABLE.encode())
    text = open_pairs(path, **KEYS)
    assert read(text) == PAIRS
    assert [pair.line for pair in text.pairs()] == [2, 3, 5]
    assert text.files == [path]
    assert text.fingerprint() == open_pairs(PAIRS).fingerprint()
    path = write(tmp_path / "a.tsv", 'en\tde\tscore\none "1"\teins\t0.5\n')
    assert read(open_pairs(path, **KEYS)) == [('one "1"', "eins")]


def test_bad_rows_of_a_csv_file_have_their_line(tmp_path):
    content = b'en,de\n"a\nb",x\nonly\nfour,\nfi\xffve,y\n1,2,3\nsix,z\n'
    path = write(tmp_path / "a.csv", content)
    assert checked(
        open_pairs(path, **KEYS),
        f"{path}:4: not 2 columns, as the header has",
        f"{path}:5: target is empty",
        f"{path}:6: source is not valid UTF-8 (byte 3), {WINDOWS}",
        f"{path}:7: not 2 columns, as the header has",
    ) == [(2, "a\nb", "x"), (8, "six", "z")]
    # So has a long field.
    for name, between in (("b.csv", ","), ("b.tsv", "\t")):
        rows = [("en", "de"), ("one", "eins"), ("x" * 100_000, "y"), ("two", "zwei")]
        path = write(tmp_path / name, "".join(between.join(r) + "\n" for r in rows))
        long = f"{path}:3: source is longer than 65536 bytes"
        assert len(checked(open_pairs(path, **KEYS), long)) == 2
    # Python's limit of a field stays as it is: what an open quote swallows is an error.
    path = write(tmp_path / "c.csv", 'en,de\na,"b\n' + "c,d\n" * 40_000)
    with pytest.raises(ValueError, match=r"c\.csv:2: field larger than field limit"):
        open_pairs(path, **KEYS).count()
    assert csv.field_size_limit() == 131_072


# Lines.


@pytest.fixture
def aligned(tmp_path):
    def make(source, target, end=""):
        files = (tmp_path / f"a.en{end}", source), (tmp_path / f"a.de{end}", target)
        return open_pairs(*(write(*each) for each in files))

    return make


@pytest.fixture
def tsv(tmp_path):
    return lambda content, name="a.tsv": open_pairs(write(tmp_path / name, content))


@pytest.mark.parametrize("end", ["", ".gz"])
def test_files_give_pairs_with_line_numbers(aligned, tsv, end):
    for text in (
        aligned("one\ntwo\n", "eins\nzwei\n", end),
        tsv("one\teins\ntwo\tzwei", f"a.tsv{end}"),  # No line feed at the end.
        # gzip is known by the content, not by the name.
        tsv(gzip.compress(b"one\teins\ntwo\tzwei\n"), "b.tsv"),
    ):
        assert triples(text) == [(1, "one", "eins"), (2, "two", "zwei")]
        assert text.count() == 2


def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_dropped(aligned):
    odd = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\rhi"
    text = aligned(f"{odd}\r\ntwo \r\r\n", "eins\nzwei\n")
    assert triples(text) == [(1, odd, "eins"), (2, "two \r", "zwei")]
    assert text.count() == 2
    for start, end in ((b"\xef\xbb\xbf", ".gz"), (b"", "")):
        text = aligned(b"\xef\xbb\xbfone\n", start + b"eins\n", end)
        assert triples(text) == [(1, "one", "eins")]


BAD_LINES = [
    (b"only one side", "not source, one tab"), (b"", "not source, one tab"),
    (b"a\tb\tc", "not source, one tab, target .`cut -f1,2 FILE`"),
    (b"a;b", 'not source, one tab, target .*--delimiter ";" reads another mark'),
    (b"\tb", "source is empty"), (b"a\t \xc2\xa0 ", "target is empty"),
    (b"a\tb\xff", r"target is not valid UTF-8 \(byte 2\), perhaps Windows-1252"),
    (b"a\tb\x81", r"target is not valid UTF-8 \(byte 2\)\. Bad"),
    (b"a\tb\0", "target has a NUL character"),
    (b"\xed\xa0\x80\tb", r"source is not valid UTF-8 \(byte 1\)"),
    (b"a" * 65537 + b"\tb", "source is longer than 65536 bytes"),
    (b"a\t" + b"b" * 900000, "target is longer than 65536 bytes"),
]  # fmt: skip


@pytest.mark.parametrize("content, error", BAD_LINES)
def test_a_bad_line_is_named_with_its_reason_and_skipped(tsv, content, error):
    text = tsv(b"one\teins\n" + content + b"\nthree\tdrei\n")
    with pytest.raises(ValueError, match=rf"a\.tsv:2: {error}"):
        triples(text)
    assert triples(text, share=0.01) == [(1, "one", "eins"), (3, "three", "drei")]
    assert text.count() == 3


def test_a_bad_side_of_two_files_names_the_file_of_that_side(aligned, tmp_path):
    bad = f"{tmp_path}/a.en:2: source is empty", f"{tmp_path}/a.de:3: target is empty"
    text = aligned("one\n\nthree\n", "eins\nzwei\n\n")
    assert checked(text, *bad) == [(1, "one", "eins")]


@pytest.mark.parametrize("lines, share, allowed", [(2000, 0.01, 20), (40, 0.01, 10)])
def test_a_share_is_skipped_one_more_is_an_error(tsv, lines, share, allowed):
    good = "one\teins\n" * (lines - allowed)
    assert len(triples(tsv("bad\n" * allowed + good), share)) == lines - allowed
    with pytest.raises(ValueError) as caught:
        triples(tsv("bad\n" * (allowed + 1) + good[9:]), share)
    assert str(caught.value).endswith(
        f"a.tsv:1: {NO_TAB}. Bad so far: {allowed + 1} of {lines:,} lines. "
        f"`bad_line_share` 0.01 allows {allowed}: correct the file, or raise "
        "`bad_line_share` to skip more."
    )


def test_the_report_of_bad_lines_is_short():
    bad_lines = BadLines(0.01)
    assert str(bad_lines) == "no bad lines"
    for line in range(1, 8):
        bad_lines.add(f"f:{line}", "why")
    shown = "; ".join(f"f:{line}: why" for line in range(1, 6))
    assert str(bad_lines) == f"bad lines: 7 ({shown}; and 2 more)"


@pytest.mark.parametrize("source_lines, target_lines", [(3, 5), (5, 3), (0, 2)])
def test_different_numbers_of_lines_are_an_error(aligned, source_lines, target_lines):
    text = aligned("x\n" * source_lines, "y\n" * target_lines)
    error = rf"a\.en has {source_lines} lines but .*a\.de has {target_lines}:"
    with pytest.raises(ValueError, match=error):
        text.count()
    with pytest.raises(ValueError, match=error):
        next(text.pairs(BadLines(1.0)))  # Before anything is done with a pair.


DAMAGES = {
    "cut off": lambda packed: packed[:-20],
    "overwritten": lambda packed: packed[:300] + b"\xff" * 300 + packed[600:],
    "something appended": lambda packed: packed + b"not gzip",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_gzip_file_is_named(tmp_path, damage):
    content = "".join(f"source {n}\ttarget {n * n}\n" for n in range(500))
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(DAMAGES[damage](gzip.compress(content.encode())))
    for take in (ParallelText.count, lambda text: triples(text, share=1.0)):
        with pytest.raises(ValueError, match=r"a\.tsv\.gz is a damaged gzip file: "):
            take(open_pairs(path))


def test_a_line_without_end_is_not_held_in_memory(tmp_path, monkeypatch):
    # Two good sentences, a tab and the line end fit, so a cut line holds a bad one.
    room = 2 * MAX_SENTENCE_BYTES + len("\t\r\n")
    assert lines_module.MAX_LINE_BYTES > room
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 8)
    path = write(tmp_path / "a", b"12345678901234567890\n12345678\nx\n1234567\n")
    cut = [b"12345678", b"12345678", b"x", b"1234567"]
    assert list(lines_module.read_lines(path)) == cut


# Encodings.

LETTERS = "Öl\tœuf\r\nE\ré\t“ß”\r\n"
ENCODED = [
    ("utf-16", None), ("utf-16-le", "utf-16-le"), ("utf-16-be", "utf-16-be"),
    ("utf-32", None), ("utf-16", "cp1252"), ("cp1252", "cp1252"),
    ("utf-8-sig", "ascii"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), ENCODED)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_another_encoding_gives_the_same_pairs(tmp_path, name, given, end):
    expected = open_pairs(write(tmp_path / "a.tsv", LETTERS))
    path = write(tmp_path / f"b.tsv{end}", LETTERS.encode(name))
    text = open_pairs(path, encoding=given)
    assert triples(text) == [(1, "Öl", "œuf"), (2, "E\ré", "“ß”")]
    assert text.fingerprint() == expected.fingerprint()
    sides = zip(*(line.split("\t") for line in LETTERS.split("\r\n")[:2]), strict=True)
    files = [
        write(tmp_path / f"{side}{end}", "\n".join(lines).encode(name))
        for side, lines in enumerate(sides)
    ]
    assert open_pairs(*files, encoding=given).fingerprint() == expected.fingerprint()
    plain = LETTERS.replace("\ré", "é")  # Which ends a row of a table.
    path = write(tmp_path / f"b.csv{end}", f"en\tde\n{plain}".encode(name))
    text = open_pairs(path, **KEYS, delimiter="\t", encoding=given)
    assert (
        text.fingerprint() == open_pairs(write(tmp_path / "c.tsv", plain)).fingerprint()
    )


def test_what_is_not_of_the_given_encoding_is_a_bad_line(tmp_path):
    content = ("ßß\tœœ\n" * 3000).encode("utf-16-le") + "ß\t".encode("utf-16-le")
    path = write(tmp_path / "a.tsv", content + b"\x00\xd8x\x00")
    text = open_pairs(path, encoding="utf-16-le")
    bad = f"{path}:3001: target is not valid UTF-8 (byte 1)"
    assert len(checked(text, bad)) == 3000


def test_columns_with_another_delimiter(tmp_path):
    path = write(tmp_path / "a.txt", 'one;eins\n"two; 2";"zwei ""2"""\nthree;a;b\n')
    bad = f"{path}:3: not 2 columns, source and target"
    text = open_pairs(path, delimiter=";")
    assert checked(text, bad) == [(1, "one", "eins"), (2, "two; 2", 'zwei "2"')]
    path = write(tmp_path / "a.csv", "n;en;de\n1;one;eins\n")
    assert read(open_pairs(path, **KEYS, delimiter=";")) == [("one", "eins")]


# Translation memories.

TMX = """<?xml version="1.0" encoding="{0}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en-us" datatype="xml"><note>n</note></header><body>
<tu><tuv xml:lang="de-DE"><seg>Öl <bpt i="1">&lt;b&gt;</bpt><hi>ist</hi><ept i="1">
&lt;/b&gt;</ept>&amp; gut<ph x="1"><sub>no</sub></ph>.</seg></tuv>
  <tuv xml:lang="EN-US"><seg>Oil.</seg></tuv></tu>
<tu><tuv xml:lang="EN-US"><seg>Alone.</seg></tuv></tu>
<tu><tuv lang="en_US"><seg>Old.</seg></tuv><tuv lang="en_US"><seg>X</seg></tuv>
<tuv lang="de-de"><seg>Alt.</seg></tuv></tu>
<tu><tuv xml:lang="EN-US"><seg>Empty.</seg></tuv><tuv xml:lang="de-DE"><seg/></tuv></tu>
</body></tmx>
"""
UNITS = [(4, "Oil.", "Öl ist& gut."), (8, "Old.", "Alt.")]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_a_translation_memory_gives_its_pairs(tmp_path, encoding):
    content = TMX.format(encoding).encode(encoding)
    for name in "a.tmx", "a.TMX.gz":
        path = write(tmp_path / name, content)
        bad = f"{path}:7: a unit without en-us or de-de", f"{path}:10: target is empty"
        assert checked(open_pairs(path), *bad) == UNITS
    text = open_pairs(path, source_key="de", target_key="en")
    assert checked(text, bad[0].replace("en-us or de-de", "de-de or en-us"),
                   bad[1].replace("target", "source")) == [
        (line, target, source) for line, source, target in UNITS
    ]  # fmt: skip
    third = TMX.replace("</seg></tuv></tu>", '</seg></tuv><tuv xml:lang="fr"/></tu>', 1)
    path = write(
        tmp_path / "b.tmx",
        third.replace('lang="fr"/', 'lang="fr"><seg>H</seg></tuv').format("utf-8"),
    )
    with pytest.raises(
        ValueError, match="`source_key` must be one of 'en-us', 'de-de', 'fr' for"
    ):
        open_pairs(path)
    assert read(open_pairs(path, source_key="FR", target_key="en"), share=1.0) == [
        ("H", "Oil.")
    ]


def test_a_segment_may_be_nested_deeply(tmp_path):
    deep = "<hi>" * 1100 + "Oil" + "</hi>" * 1100
    text = TMX.format("utf-8").replace("<seg>Oil", f"<seg>{deep}")
    assert text.count("<hi>") > 1100
    assert read(open_pairs(write(tmp_path / "a.tmx", text)), share=1.0) == [
        pair[1:] for pair in UNITS
    ]


def test_a_large_translation_memory_is_not_held_in_memory(tmp_path):
    unit = '<tu><tuv lang="a"><seg>%d</seg></tuv><tuv lang="b"><seg>x</seg></tuv></tu>'
    units = "".join(unit % number for number in range(40_000))  # On one line.
    path = write(tmp_path / "a.tmx.gz", f"<tmx><body>{units}</body></tmx>")
    text = open_pairs(path)
    tracemalloc.start()
    assert sum(pair.line == 1 for pair in text.pairs()) == 40_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21 < len(units)


# Mixes.


def test_a_bad_line_of_a_mix_names_its_own_file_and_is_counted_once(tmp_path):
    good = "".join(f"a{i}\tb{i}\n" for i in range(9))
    first = write(tmp_path / "general.tsv", good + "no tab\n")
    second = [write(tmp_path / "d.en", "one\n\nthree\n")]
    second.append(write(tmp_path / "d.de", "x\ny\nz\n"))
    parts = [(first, 1), (open_pairs(*second), 5), ([("a", "b"), ("c", "")], 2)]
    mixed = mixed_pairs([*parts, ([("", "d")] * 2, 3)])
    found = checked(
        mixed,
        f"{first}:10: {NO_TAB}",
        f"{second[0]}:2: source is empty",
        "row 2 of corpus 3: target is empty",
        "row 1 of corpus 4: source is empty",
        "row 2 of corpus 4: source is empty",
    )
    assert len(found) == 9 + 5 * 2 + 2 * 1
    assert mixed.files == [first, *second]
    # A mix may be part of a mix.
    inner = mixed_pairs([(DOMAIN, 2), (GENERAL[:3], 1)])
    outer = mixed_pairs([(inner, 2), (GENERAL, 1)])
    assert [weight for _, weight in outer.parts] == [4, 2, 1]
    assert outer.count() == len(list(outer.pairs())) == 4 * 8 + 2 * 3 + 40


def test_the_fingerprint_is_of_corpora_and_weights_and_read_once(tmp_path):
    made = [((GENERAL, 1), (DOMAIN, 4)), ((GENERAL, 1), (DOMAIN, 3)),
            ((DOMAIN, 1), (GENERAL, 4)), ((GENERAL, 1), (DOMAIN[1:], 4))]  # fmt: skip
    prints = [mixed_pairs(parts).fingerprint() for parts in made]
    assert len(set(prints)) == 4
    path = tiny_run.write_pairs(tmp_path / "a.tsv", DOMAIN)
    assert mixed_pairs([(GENERAL, 1), (path, 4)]).fingerprint() == prints[0]
    text = open_pairs(path)
    assert len(list(text.pairs())) == 8
    path.unlink()
    assert text.count() == 8 and len(text.fingerprint()) == 32


# What cannot be read: a file's name and content, or a call; and the words.


def all_read(iterator):
    list(iterator)
    return iterator


BOMB = "<!DOCTYPE tmx [" + '<!ENTITY a "' + "x" * 50_000 + '">'
BOMB += "]><tmx><body><tu>" + "&a;" * 9_000 + "</tu></body></tmx>"
FILES = [
    ("x.csv", "one,eins\n" * 300, {}, r"x\.csv:1: not .*; no line has a tab\. .*`sou"),
    ("x.csv", "a,b\n1,2\n", KEYS, r"`source_key` must be one of 'a', 'b' for .*x\.csv"),
    (
        "x.csv", "en,de\n1,2\n", {"source_key": "en"},
        r"`target_key` must be one of 'en', 'de' .*target_key=None",
    ),
    ("x.csv", "en,de\n", KEYS, r"There are no pairs in .*x\.csv\.$"),
    ("x.csv", "", KEYS, r"x\.csv is empty"),
    ("x.tsv", "", {}, r"There are no pairs in .*x\.tsv\.$"),
    ("x.csv", 'en,de\na,"b\n', KEYS, r"x\.csv:2: unexpected end of data"),
    ("x.csv", "en;de\n", KEYS, r"one column, 'en;de'\. .*\(--delimiter \";\"\)\.$"),
    ("x.parquet", b"PAR1", KEYS, r"x\.parquet is a Parquet file: .*pandas.read_parq"),
    ("x.xlf", "<xliff/>", {}, r"x\.xlf:1: not source, one tab, target; no line has"),
    ("x.csv", "a;b\nc;d", {}, r'x\.csv:1: not source, one .* \(--delimiter ";"\)\.$'),
    ("x.tsv", "\0a\0\t\0b\0\n", {}, r"x\.tsv:1: .*`encoding` 'utf-16-be' \(--enc"),
    ("x.tsv", "a\0\t\0b\0\n\0", {}, r"x\.tsv:1: .*`encoding` 'utf-16-le' \(--enc"),
    ("x.tsv", b"PK\x03\x04", {}, r"x\.tsv is a spreadsheet \(.xlsx, .ods\) or a .zip"),
    ("x", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", {}, r"spreadsheet \(.xls\): save"),
    ("x", bz2.compress(b"a\tb"), {}, "packed with bzip2: unpack it first"),
    ("x", lzma.compress(b"a\tb"), {}, "packed with xz: unpack it first"),
    ("x", b"\x28\xb5\x2f\xfd", {}, "packed with Zstandard: unpack it first"),
    ("x.tmx", "<tmx>\n<body>\n<tu>\n</body>", {}, r"x\.tmx:4: not valid XML: mis"),
    ("x.tmx", BOMB, {}, r"x\.tmx:\d+: not valid XML: .*amplification"),
    ("x.tmx", "<tmx/>", {}, r"There are no pairs in .*x\.tmx"),
    ("x.tsv", "a\tb", {"delimiter": "::"}, "`delimiter` must be one character"),
    ("x.tsv", "a\tb", {"encoding": "utf8mb4"}, "`encoding` must be the name of one"),
    ("x.tsv", "a\tb", {"encoding": "base64"}, "`encoding` must be the name of one"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "keys", "words"), FILES)
def test_a_file_that_cannot_be_read_is_told(tmp_path, name, content, keys, words):
    with pytest.raises(ValueError, match=words):
        open_pairs(write(tmp_path / name, content), **keys).count()


A_WEIGHT = "`weight` must be .*at least 1. Received: weight="
CALLS = {
    r"There are no pairs in .*x and .*y\.$": (
        lambda d: open_pairs(write(d / "x", ""), write(d / "y", "")).count()
    ),
    "There are no pairs": lambda d: open_pairs([]).count(),
    "Pairs must be .*first row 'one'": lambda d: open_pairs(["one", "two"]),
    "Pairs must be .*Received: int": lambda d: open_pairs(5),
    "`source_key`, `target_key` and `delimiter` need data with columns: .* a list": (
        lambda d: open_pairs(PAIRS, **KEYS)
    ),
    "`source_key`, `target_key` and `delimiter` need .* two files": (
        lambda d: open_pairs(write(d / "a", "x\n"), d / "a", target_key="de")
    ),
    "`target_key` and `delimiter` need data with columns: .*two files": (
        lambda d: open_pairs(write(d / "a", "x\n"), d / "a", delimiter=";")
    ),
    "first row 'train'": lambda d: open_pairs({"train": NESTED}),
    "`source` and `target` must both be .*\\['a', 'b'\\], target='de'$": (
        lambda d: open_pairs(["a", "b"], "de")
    ),
    "`source` and `target` must both be .*source='a', target=\\['b'\\]$": (
        lambda d: open_pairs("a", ["b"])
    ),
    "must have the same length": lambda d: open_pairs(["a", "b"], ["c"]),
    "`source_key` must be one of 'n', 'en', 'de' for the frame": (
        lambda d: open_pairs(pandas.DataFrame(DICTIONARIES))
    ),
    "`source_key` must be one of 'de', 'en' for the rows": lambda d: open_pairs(
        NESTED + [{"translation": {}, "more": 1}], source_key="x"
    ),
    "only once: give it to `open_pairs`": (
        lambda d: open_pairs(all_read(pair for pair in PAIRS)).count()
    ),
    r"none\.tsv: no such file": lambda d: open_pairs(d / "none.tsv"),
    "regular file.*Received: a directory": open_pairs,
    "Received: a pipe or device": (
        lambda d: open_pairs(os.mkfifo(d / "pipe") or d / "pipe")
    ),
    "`parts` must have at least one corpus": lambda d: mixed_pairs([]),
    r"`parts` must have \(pairs, weight\)": lambda d: mixed_pairs([GENERAL]),
    A_WEIGHT + "0.5": lambda d: mixed_pairs([(GENERAL, 0.5)]),
    A_WEIGHT + "True": lambda d: mixed_pairs([(GENERAL, True)]),
    A_WEIGHT + "0$": lambda d: mixed_pairs([(GENERAL, 0)]),
    "Pairs must be": lambda d: mixed_pairs([(3, 1)]),
}


@pytest.mark.parametrize("words", CALLS)
def test_what_cannot_be_read_is_told(tmp_path, words):
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=words):
        CALLS[words](tmp_path)
