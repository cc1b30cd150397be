import gzip
import os
import sys
import types

import pytest

from keras_transformer.text import (
    AlignedFiles,
    BadLines,
    TfdsPairs,
    TsvFile,
    open_pairs,
    parallel_text,
)
from keras_transformer.text import lines as lines_module


def write(path, content):
    content = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture
def aligned(tmp_path):
    def make(source, target, suffix=""):
        return AlignedFiles(
            write(tmp_path / f"a.en{suffix}", source),
            write(tmp_path / f"a.de{suffix}", target),
        )

    return make


@pytest.fixture
def tsv(tmp_path):
    return lambda content, name="a.tsv": TsvFile(write(tmp_path / name, content))


def triples(text, budget=0):
    return [tuple(pair) for pair in text.pairs(BadLines(budget))]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_aligned_files_give_pairs_with_line_numbers(aligned, suffix):
    text = aligned("one\ntwo\n", "eins\nzwei\n", suffix)
    assert triples(text) == [(1, "one", "eins"), (2, "two", "zwei")]
    assert triples(text) == triples(text)  # again and again
    assert text.count() == 2


def test_a_packed_and_a_plain_file_go_together(tmp_path):
    source = write(tmp_path / "a.en.gz", "one\n")
    target = write(tmp_path / "a.de", "eins\n")
    assert triples(AlignedFiles(source, target)) == [(1, "one", "eins")]


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_a_tsv_file_gives_pairs(tsv, name):
    text = tsv("one\teins\ntwo\tzwei", name)  # no line feed at the end
    assert triples(text) == [(1, "one", "eins"), (2, "two", "zwei")]
    assert text.count() == 2


def test_gzip_is_recognised_by_content_not_by_name(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(gzip.compress(b"one\teins\n"))
    assert triples(TsvFile(path)) == [(1, "one", "eins")]


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
        "and `bad_line_budget` is 2: mend the file, or raise `bad_line_budget` to skip "
        "more lines."
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


def test_empty_files_are_errors(aligned, tsv):
    for text, error in (
        (aligned("", ""), r"a\.en and .*a\.de are empty"),
        (tsv(""), r"a\.tsv is empty"),
    ):
        with pytest.raises(ValueError, match=error):
            text.count()
        with pytest.raises(ValueError, match=error):
            triples(text)


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
        TsvFile(path).count()
    with pytest.raises(ValueError, match=r"a\.tsv\.gz is a damaged gzip file: "):
        triples(TsvFile(path), budget=1000)


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
    path = write(tmp_path / "a", b"12345678901234567890\n12345678\nx\n1234567\n")
    cut = [b"12345678", b"12345678", b"x", b"1234567"]
    assert list(lines_module.read_lines(path)) == cut
    assert lines_module.count_lines(path) == 4


def test_a_cut_line_is_always_a_bad_line():
    # Two good sentences, a tab and the line end fit, so a cut line holds a bad one.
    room = 2 * parallel_text.MAX_SENTENCE_BYTES + len("\t\r\n")
    assert lines_module.MAX_LINE_BYTES > room


def test_open_pairs_tells_the_kinds_apart(tmp_path):
    file = write(tmp_path / "a", "x\n")
    assert isinstance(open_pairs(file, file), AlignedFiles)
    assert isinstance(open_pairs(str(file)), TsvFile)
    with pytest.raises(ValueError, match="`split` only go with .* tfds:NAME"):
        open_pairs(file, split="train")
    message = "`target_key` only go with .*tfds:NAME, keys also with one .csv, .tsv or"
    with pytest.raises(ValueError, match=message):
        open_pairs(file, file, target_key="de")


@pytest.fixture
def fake_tfds(monkeypatch):
    """Stands for tensorflow_datasets: one dataset "toy" with three examples."""
    sources, targets = [b"one", b"", b"three"], [b"eins", b"zwei", b"drei"]
    examples = [{"en": s, "de": t} for s, t in zip(sources, targets, strict=True)]
    module = types.ModuleType("tensorflow_datasets")
    info = types.SimpleNamespace(
        splits={"train": types.SimpleNamespace(num_examples=3)},
        features={"en": None, "de": None},
        supervised_keys=("en", "de"),
    )
    module.builder = lambda name: {"toy": types.SimpleNamespace(info=info)}[name]
    module.load = lambda name, split, shuffle_files: examples
    module.as_numpy = iter
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)


def test_tfds_pairs_are_read_by_their_keys(fake_tfds):
    text = open_pairs("tfds:toy", source_key="de", target_key="en")
    assert text.count() == 3
    bad_lines = BadLines(1)
    good = [tuple(pair) for pair in text.pairs(bad_lines)]
    assert good == [(1, "eins", "one"), (3, "drei", "three")]
    assert bad_lines.examples == ["tfds:toy/train:2: target is empty"]


def test_tfds_pairs_without_keys_are_the_supervised_ones(fake_tfds):
    pairs = open_pairs("tfds:toy").pairs(BadLines(1))
    assert [tuple(pair) for pair in pairs] == [(1, "one", "eins"), (3, "three", "drei")]


def test_a_tfds_name_without_supervised_keys_asks_for_them(fake_tfds, monkeypatch):
    info = sys.modules["tensorflow_datasets"].builder("toy").info
    monkeypatch.setattr(info, "supervised_keys", None)
    with pytest.raises(ValueError, match="`source_key` must be one of .*=None"):
        open_pairs("tfds:toy")


@pytest.mark.parametrize(
    "options, error",
    [
        ({"source_key": "fr"}, "`source_key` must be one of 'en', 'de' for tfds:toy"),
        ({"target_key": "fr"}, "`target_key` must be one of .*target_key='fr'"),
        ({"split": "dev"}, "`split` must be one of 'train' for .*split='dev'"),
    ],
)
def test_unknown_tfds_names_are_errors(fake_tfds, options, error):
    with pytest.raises(ValueError, match=error):
        TfdsPairs("toy", **({"source_key": "en", "target_key": "de"} | options))


def test_a_missing_tfds_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"keras-transformer-seq2seq\[tfds\]"):
        open_pairs("tfds:toy", source_key="en", target_key="de")
