"""Bulk translation: order, windows, crashes at every moment, two at once."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.bulk import (
    BulkSummary,
    PartialOutput,
    model_fingerprint,
    read_texts,
    translate_file,
    translate_lines,
)
from keras_transformer.text.lines import MAX_LINE_BYTES
from tests import tiny_run

WINDOW, BATCH_SIZE = 7, 3
SIZES = {"window": WINDOW, "batch_size": BATCH_SIZE}


def reverse(texts):
    """A translator of words: cheap, and no two lines have one translation."""
    return [" ".join(reversed(text.split(" "))) for text in texts]


def make_lines(number, seed=3):
    rng = np.random.default_rng(seed)
    return [
        " ".join([f"line {i}", *(f"Wört{x}" for x in range(rng.integers(0, 9)))])
        for i in range(number)
    ]


def write(path, lines):
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


@pytest.fixture
def source(tmp_path):
    return write(tmp_path / "in.txt", make_lines(53))


@pytest.fixture
def whole():
    """What the output of `source` must be."""
    return "".join(line + "\n" for line in reverse(make_lines(53))).encode()


def left_over(folder):
    return sorted(path.name for path in folder.iterdir())


def interrupt(source, output, sentences, **options):
    """Translates until `sentences` are done, then breaks off."""
    done = []

    def translate(texts):
        if len(done) + len(texts) > sentences:
            raise KeyboardInterrupt
        done.extend(texts)
        return reverse(texts)

    with pytest.raises(KeyboardInterrupt):
        translate_file(translate, source, output, **SIZES | options)


def test_lines_come_out_in_order_and_batches_are_of_like_length(source, tmp_path):
    batches = []

    def translate(texts):
        batches.append(texts)
        return reverse(texts)

    summary = translate_file(translate, source, tmp_path / "out.txt", **SIZES)
    lines = make_lines(53)
    assert (tmp_path / "out.txt").read_text("utf-8").splitlines() == reverse(lines)
    assert (summary.sentences, summary.resumed) == (53, 0)
    assert left_over(tmp_path) == ["in.txt", "out.txt"]
    # 7 windows of 7 in batches of 3, 3 and 1, the longest first; then 4 lines.
    assert [len(batch) for batch in batches] == [3, 3, 1] * 7 + [3, 1]
    for start in range(0, len(batches), 3):
        lengths = [len(text) for batch in batches[start : start + 3] for text in batch]
        assert lengths == sorted(lengths, reverse=True)
    first = [text for batch in batches[:3] for text in batch]
    assert sorted(first) == sorted(lines[:7])


@pytest.mark.parametrize(("window", "batch_size"), [(1, 1), (5, 64), (4096, 32)])
def test_windows_and_batches_change_nothing(
    source, tmp_path, whole, window, batch_size
):
    output = tmp_path / "out.txt"
    translate_file(reverse, source, output, window=window, batch_size=batch_size)
    assert output.read_bytes() == whole


def test_lines_stream_window_by_window():
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield f"a {number}"

    translations = translate_lines(reverse, endless(), **SIZES)
    assert list(itertools.islice(translations, 7)) == [f"{i} a" for i in range(7)]
    assert len(taken) == 7


def test_a_window_is_on_the_disk_before_the_next_is_read(tmp_path):
    """So memory does not grow with the file, and a crash costs a window at most."""
    output = tmp_path / "out.txt"
    partial = tmp_path / "out.txt.partial" / "translations"

    class Stream(io.BytesIO):
        number = 0

        def readline(self, size):
            if self.number and self.number % WINDOW == 0:
                assert partial.read_bytes().count(b"\n") == self.number
            self.number += 1
            return super().readline(size)

    stream = Stream("".join(line + "\n" for line in make_lines(100)).encode())
    assert translate_file(reverse, stream, output, **SIZES).sentences == 100


def test_a_long_line_of_a_stream_is_never_held_whole():
    class Stream(io.BytesIO):
        longest = 0

        def readline(self, size=-1):
            line = super().readline(size)
            self.longest = max(self.longest, len(line))
            return line

        def __next__(self):
            raise AssertionError("a line as long as it is")

    stream = Stream(b"a" * (5 * MAX_LINE_BYTES + 7) + b"\nb\n")
    assert list(read_texts(stream)) == ["a" * MAX_LINE_BYTES, "b"]
    assert stream.longest == MAX_LINE_BYTES


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
@pytest.mark.parametrize("lines", [0, 1, 7, 8])
def test_gzip_in_and_out_hold_the_same_lines(tmp_path, name, lines):
    source, output = tmp_path / "in", tmp_path / name
    expected = "".join(text + "\n" for text in reverse(make_lines(lines))).encode()
    text = "".join(text + "\n" for text in make_lines(lines)).encode()
    source.write_bytes(gzip.compress(text))
    translate_file(reverse, source, output, **SIZES)
    content = output.read_bytes()
    if name.endswith(".gz"):
        assert content.startswith(b"\x1f\x8b")
        content = gzip.decompress(content)
    assert content == expected


def test_line_rules_are_those_of_the_corpus_reader(tmp_path):
    content = b"\xef\xbb\xbfa\rb\xe2\x80\xa8c\r\n\nlast"
    (tmp_path / "in").write_bytes(content)
    assert list(read_texts(tmp_path / "in")) == ["a\rb\u2028c", "", "last"]
    stream = io.BytesIO(content.removeprefix(b"\xef\xbb\xbf"))
    assert list(read_texts(stream)) == ["a\rb\u2028c", "", "last"]


@pytest.mark.parametrize("spare", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_line_too_long_is_cut_between_characters(tmp_path, spare, end):
    line = "x" * (MAX_LINE_BYTES - 3 + spare) + "€"
    (tmp_path / "in").write_bytes((line + end).encode())
    cut = line if spare <= 0 else line[:-1]
    for source in (tmp_path / "in", io.BytesIO((line + end).encode())):
        assert [len(text) for text in read_texts(source)] == [len(cut)]


def test_line_breaks_in_a_translation_become_spaces(tmp_path):
    source = write(tmp_path / "in", ["a", "b"])
    translate_file(
        lambda texts: [t + "\n\u2028x" for t in texts], source, tmp_path / "o"
    )
    assert (tmp_path / "o").read_text("utf-8") == "a  x\nb  x\n"


def test_a_bad_byte_stops_the_work_before_it_begins(tmp_path):
    (tmp_path / "in").write_bytes(b"good\n" * 20 + b"\xff\n")
    with pytest.raises(ValueError, match="in:21: not valid UTF-8"):
        translate_file(pytest.fail, tmp_path / "in", tmp_path / "out", window=5)
    assert left_over(tmp_path) == ["in"]


def test_a_stream_is_translated_and_resumed_like_a_file(tmp_path, source, whole):
    output = tmp_path / "out.txt"
    stream = source.read_bytes()
    interrupt(io.BytesIO(stream), output, 30)
    summary = translate_file(reverse, io.BytesIO(stream), output, **SIZES)
    assert output.read_bytes() == whole
    assert summary.resumed == 28


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
@pytest.mark.parametrize("sentences", [0, 6, 7, 20, 52])
def test_an_interrupted_run_goes_on_where_it_was(source, tmp_path, name, sentences):
    output, straight = tmp_path / name, tmp_path / f"straight-{name}"
    translate_file(reverse, source, straight, **SIZES)
    interrupt(source, output, sentences)
    assert not output.exists()
    asked = []
    summary = translate_file(
        lambda texts: asked.extend(texts) or reverse(texts), source, output, **SIZES
    )
    kept = sentences // WINDOW * WINDOW
    assert summary.resumed == kept
    assert sorted(asked) == sorted(make_lines(53)[kept:])
    assert output.read_bytes() == straight.read_bytes()


class Crash(BaseException):
    """Stands for the end of the process."""


SYSTEM_CALLS = {
    os: ("fsync", "replace", "truncate", "rmdir", "unlink"),
    shutil: ("rmtree", "copyfile"),
}


@pytest.fixture
def crash_at(monkeypatch):
    """Sets the system call, counted from 0, before which the process ends."""
    calls = [0, None]

    def wrap(call):
        def wrapped(*arguments, **options):
            calls[0] += 1
            if calls[1] is not None and calls[0] > calls[1]:
                raise Crash
            return call(*arguments, **options)

        return wrapped

    for module, names in SYSTEM_CALLS.items():
        for name in names:
            monkeypatch.setattr(module, name, wrap(getattr(module, name)))

    def set_crash(number):
        calls[:] = [0, number]
        return calls

    return set_crash


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
def test_a_crash_before_any_system_call_loses_and_repeats_nothing(
    source, tmp_path, crash_at, name
):
    output = tmp_path / name
    calls = crash_at(None)
    translate_file(reverse, source, output, **SIZES)
    expected, number = output.read_bytes(), calls[0]
    assert number > 2 * 53 // WINDOW
    for first, second in itertools.product(range(number), (2, None)):
        output.unlink()
        for crash in (first, second):
            crash_at(crash)
            try:
                translate_file(reverse, source, output, **SIZES)
            except Crash:
                pass
            # Under its name there is the whole file or none.
            assert not output.exists() or output.read_bytes() == expected
        crash_at(None)
        translate_file(reverse, source, output, **SIZES)
        assert output.read_bytes() == expected
        assert left_over(tmp_path) == ["in.txt", name]


def test_a_crash_after_the_renaming_translates_nothing_again(
    source, tmp_path, monkeypatch, whole
):
    output = tmp_path / "out.txt"
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(Crash))
        translate_file(reverse, source, output, **SIZES)
    assert output.read_bytes() == whole
    summary = translate_file(pytest.fail, source, output, **SIZES)
    assert (summary.sentences, summary.resumed) == (53, 53)
    assert output.read_bytes() == whole
    assert left_over(tmp_path) == ["in.txt", "out.txt"]


@pytest.mark.parametrize("part", ["translations", "journal.jsonl"])
def test_a_file_cut_anywhere_is_mended(source, tmp_path, whole, part):
    interrupt(source, tmp_path / "kept", 40)
    kept = tmp_path / "kept.partial"
    size = (kept / part).stat().st_size
    output = tmp_path / "out"
    for length in sorted({*range(0, size, size // 9), size - 2, size - 1}):
        shutil.copytree(kept, tmp_path / "out.partial")
        os.truncate(tmp_path / "out.partial" / part, length)
        # What is done after the mending is not lost at the next break.
        interrupt(source, output, 10)
        resumed = translate_file(reverse, source, output, **SIZES).resumed
        assert resumed in range(WINDOW, 35 + 1, WINDOW)
        assert output.read_bytes() == whole
        output.unlink()
    assert resumed == 35


@pytest.mark.parametrize("part", ["translations", "journal.jsonl"])
@pytest.mark.parametrize("junk", [b"half a li", b"\0" * 40, b'{"lines": 40, "by'])
def test_what_the_journal_does_not_count_is_cut_off(
    source, tmp_path, whole, part, junk
):
    output = tmp_path / "out"
    interrupt(source, output, 40)
    with open(tmp_path / "out.partial" / part, "ab") as stream:
        stream.write(junk)
    interrupt(source, output, 10)
    assert translate_file(reverse, source, output, **SIZES).resumed == 42
    assert output.read_bytes() == whole


@pytest.mark.parametrize("change", ["an early line", "fewer lines"])
def test_another_input_is_refused_with_the_remedy(source, tmp_path, change):
    output = tmp_path / "out"
    interrupt(source, output, 40)
    lines = make_lines(53)
    write(source, lines[:34] if change == "fewer lines" else ["new", *lines[1:]])
    message = "out.partial holds an .* another input: .* rm -r .*out.partial$"
    with pytest.raises(ValueError, match=message):
        translate_file(pytest.fail, source, output, **SIZES)
    # Nothing was lost: with the first input it goes on.
    write(source, lines)
    assert translate_file(reverse, source, output, **SIZES).resumed == 35


def test_lines_after_those_done_may_change(source, tmp_path):
    output = tmp_path / "out"
    interrupt(source, output, 40)
    lines = [*make_lines(53)[:35], "a mended line", "and a new one"]
    write(source, lines)
    assert translate_file(reverse, source, output, **SIZES).resumed == 35
    assert output.read_text("utf-8").splitlines() == reverse(lines)


def test_another_model_is_refused_with_the_remedy(source, tmp_path):
    output = tmp_path / "out"
    interrupt(source, output, 40, fingerprint="a")
    with pytest.raises(ValueError, match="another model or other options.*rm -r"):
        translate_file(pytest.fail, source, output, **SIZES, fingerprint="b")
    again = translate_file(reverse, source, output, **SIZES, fingerprint="a")
    assert again.resumed == 35


def test_two_processes_never_write_one_output(source, tmp_path):
    output = tmp_path / "out"

    def translate(texts):
        with pytest.raises(BlockingIOError, match="Another process is writing"):
            translate_file(pytest.fail, source, output)
        return reverse(texts)

    translate_file(translate, source, output, **SIZES)
    assert output.read_text("utf-8").splitlines() == reverse(make_lines(53))


def test_a_folder_that_its_writer_has_just_removed_is_not_locked(tmp_path, monkeypatch):
    partial = PartialOutput(tmp_path / "out", "")
    partial.folder.mkdir()
    with monkeypatch.context() as patch, pytest.raises(BlockingIOError):
        lock = os.stat
        patch.setattr(os, "stat", lambda p: partial.folder.rmdir() or lock(p))
        partial._locked()


def test_an_old_output_stays_until_the_new_one_is_whole(source, tmp_path, whole):
    output = tmp_path / "out"
    output.write_bytes(b"old\n")
    interrupt(source, output, 40)
    assert output.read_bytes() == b"old\n"
    new = (tmp_path / "out.partial" / "translations").stat().st_ino
    translate_file(reverse, source, output, **SIZES)
    assert output.read_bytes() == whole
    assert output.stat().st_ino == new  # moved in one step, not copied


def test_progress_shows_on_a_terminal_alone(source, tmp_path, monkeypatch, capsys):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    translate_file(reverse, source, tmp_path / "out", show_progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    translate_file(reverse, source, tmp_path / "out", **SIZES, show_progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "translating" in printed.err and "53/53" in printed.err


def test_the_summary_counts_what_was_done_now():
    assert (
        str(BulkSummary(1500, 0, 10.0))
        == "1,500 sentences in 10.0 s (150.0 sentences/s)"
    )
    resumed = BulkSummary(1500, 1400, 10.0)
    assert str(resumed).endswith("(10.0 sentences/s), 1,400 more were done before")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "`window` must be at least 1. Received: window=0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1. Received: batch_size=0"),
    ],
)
def test_bad_sizes_are_refused(source, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        translate_file(reverse, source, tmp_path / "out", **options)


def test_bad_outputs_are_refused(source, tmp_path):
    with pytest.raises(IsADirectoryError):
        translate_file(reverse, source, tmp_path)
    with pytest.raises(ValueError, match="must be another file than the input"):
        translate_file(reverse, source, source)
    with pytest.raises(ValueError, match="must be a regular file"):
        translate_file(reverse, source, os.devnull)
    with pytest.raises(FileNotFoundError):
        translate_file(reverse, tmp_path / "missing", tmp_path / "out")
    with pytest.raises(ValueError, match="Received: 2 for 3 texts"):
        translate_file(lambda texts: ["a", "b"], source, tmp_path / "o", batch_size=3)


@pytest.mark.slow
def test_a_litert_export_has_a_fingerprint(tmp_path_factory, tmp_path):
    model = tiny_run.litert(tmp_path_factory)
    first = model_fingerprint(model)
    copy = shutil.copytree(model, tmp_path / "copy")
    assert model_fingerprint(copy) == first
    # Its description has their digests, which are compared when they are loaded.
    with open(copy / "translator.json", "a", encoding="utf-8") as stream:
        stream.write("\n")
    assert model_fingerprint(copy) != first


@pytest.mark.slow
def test_the_fingerprint_is_that_of_contents_and_options(tmp_path_factory, tmp_path):
    model = tiny_run.saved_model(tmp_path_factory)
    first = model_fingerprint(model)
    copy = shutil.copytree(model, tmp_path / "copy")
    assert model_fingerprint(copy) == first
    assert model_fingerprint(copy, "beam 2") != first
    (copy / "assets.extra").mkdir(exist_ok=True)
    (copy / "assets.extra" / "requests").write_bytes(b"x")  # decides no translation
    assert model_fingerprint(copy) == first
    with open(copy / "variables" / "variables.index", "ab") as stream:
        stream.write(b"x")
    assert model_fingerprint(copy) != first
    with pytest.raises(FileNotFoundError, match="holds no model"):
        model_fingerprint(tmp_path)


def test_a_translator_gives_the_same_in_bulk_and_at_once(tmp_path):
    texts = [source for source, _ in tiny_run.PAIRS[:20]] + ["", "  ", "dog"]
    source, output = write(tmp_path / "in", texts), tmp_path / "out"
    translator = tiny_run.translator()
    translate_file(translator, source, output, **SIZES)
    assert output.read_text("utf-8").split("\n")[:-1] == translator(texts)


# Forks, so that the slow imports are done once; the parent kills each child after a
# time, and only then takes note of its end: its number cannot be another process's.
_FORKS = """
import os, signal, sys, time
from keras_transformer.bulk import translate_file
print("ready", flush=True)

def translate(texts):
    time.sleep(0.002)
    return [" ".join(reversed(text.split(" "))) for text in texts]

for line in sys.stdin:
    source, output, seconds = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        translate_file(translate, source, output, window=7, batch_size=3)
        os._exit(0)
    time.sleep(float(seconds))
    os.kill(child, signal.SIGKILL)
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def killer():
    """Starts a process that translates, and kills it after some seconds."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"

        def run(source, output, seconds):
            process.stdin.write(f"{source}\t{output}\t{seconds}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
def test_killed_again_and_again_the_output_is_that_of_one_run(
    killer, tmp_path, rng, name
):
    source = write(tmp_path / "in.txt", make_lines(300))
    output, straight = tmp_path / name, tmp_path / f"straight-{name}"
    translate_file(reverse, source, straight, **SIZES)
    kills = 0
    while not output.exists():
        # Longer and longer, lest a busy machine never comes to an end.
        status = killer(source, output, rng.uniform(0.005, 0.08) * (1 + kills / 20))
        assert status in (0, signal.SIGKILL)
        kills += status == signal.SIGKILL
    assert kills >= 3
    assert output.read_bytes() == straight.read_bytes()
