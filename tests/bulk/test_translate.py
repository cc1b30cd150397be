"""Bulk translation: order, windows, crashes at every moment, two at once."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.bulk import (
    BulkSummary,
    model_fingerprint,
    read_texts,
    translate_file,
    translate_lines,
)
from keras_transformer.text.lines import MAX_LINE_BYTES
from tests import tiny_run

WINDOW = 7


def reverse(texts):
    """A translator of words: cheap, and no two lines have one translation."""
    return [" ".join(reversed(text.split(" "))) for text in texts]


def make_lines(number, seed=3):
    rng = np.random.default_rng(seed)
    return [
        " ".join([f"line {i}", *(f"Wört{x}" for x in range(rng.integers(0, 9)))])
        for i in range(number)
    ]


def content_of(lines):
    return "".join(line + "\n" for line in lines).encode()


LINES = make_lines(53)
WHOLE = content_of(reverse(LINES))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(content_of(LINES))
    return path


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
        translate_file(translate, source, output, window=WINDOW, **options)


def resume(source, output, **options):
    """Goes on, and returns how many lines were done before."""
    return translate_file(reverse, source, output, window=WINDOW, **options).resumed


def test_lines_come_out_in_order_and_windows_go_in_the_longest_first(source, tmp_path):
    windows = []

    def translate(texts):
        windows.append(texts)
        return reverse(texts)

    summary = translate_file(translate, source, tmp_path / "out.txt", window=WINDOW)
    assert (tmp_path / "out.txt").read_bytes() == WHOLE
    assert (summary.sentences, summary.resumed) == (53, 0)
    assert left_over(tmp_path) == ["in.txt", "out.txt"]
    for i, window in enumerate(windows):
        assert sorted(window) == sorted(LINES[7 * i : 7 * i + 7])
        lengths = [len(text) for text in window]
        assert lengths == sorted(lengths, reverse=True)
    assert len(windows) == 8


@pytest.mark.parametrize("window", [1, 5, 4096])
def test_windows_change_nothing(source, tmp_path, window):
    translate_file(reverse, source, tmp_path / "out.txt", window=window)
    assert (tmp_path / "out.txt").read_bytes() == WHOLE


def test_lines_stream_window_by_window():
    numbers = itertools.count()
    translations = translate_lines(reverse, (f"a {i}" for i in numbers), window=7)
    assert list(itertools.islice(translations, 7)) == [f"{i} a" for i in range(7)]
    assert next(numbers) == 7


def test_a_window_is_on_the_disk_before_the_next_is_read(tmp_path):
    """So memory does not grow with the file, and a crash costs a window at most."""

    class Stream(io.BytesIO):
        number = 0

        def readline(self, size):
            if self.number and self.number % WINDOW == 0:
                done = json.loads((tmp_path / "out.partial.json").read_text())
                content = (tmp_path / "out.partial").read_bytes()
                assert content.count(b"\n") == done["lines"] == self.number
            self.number += 1
            return super().readline(size)

    stream = Stream(content_of(make_lines(100)))
    summary = translate_file(reverse, stream, tmp_path / "out", window=WINDOW)
    assert summary.sentences == 100


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
@pytest.mark.parametrize("lines", [0, 1, 7, 8])
def test_gzip_in_and_out_hold_the_same_lines(tmp_path, name, lines):
    source, output = tmp_path / "in", tmp_path / name
    source.write_bytes(gzip.compress(content_of(make_lines(lines))))
    translate_file(reverse, source, output, window=WINDOW)
    content = output.read_bytes()
    assert content.startswith(b"\x1f\x8b") == name.endswith(".gz")
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    assert content == content_of(reverse(make_lines(lines)))


def test_line_rules_are_those_of_the_corpus_reader(tmp_path):
    content = b"\xef\xbb\xbfa\rb\xe2\x80\xa8c\r\n\nlast"
    (tmp_path / "in").write_bytes(content)
    assert list(read_texts(tmp_path / "in")) == ["a\rb\u2028c", "", "last"]
    stream = io.BytesIO(content.removeprefix(b"\xef\xbb\xbf"))
    assert list(read_texts(stream)) == ["a\rb\u2028c", "", "last"]
    # Line breaks in a translation become spaces.
    (tmp_path / "in").write_bytes(b"a\nb\n")
    translate_file(
        lambda texts: [t + "\n\u2028x" for t in texts], tmp_path / "in", tmp_path / "o"
    )
    assert (tmp_path / "o").read_text("utf-8") == "a  x\nb  x\n"


@pytest.mark.parametrize("spare", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_line_too_long_is_cut_between_characters(tmp_path, spare, end):
    line = "x" * (MAX_LINE_BYTES - 3 + spare) + "€"
    (tmp_path / "in").write_bytes((line + end).encode())
    cut = line if spare <= 0 else line[:-1]
    for source in (tmp_path / "in", io.BytesIO((line + end).encode())):
        assert [len(text) for text in read_texts(source)] == [len(cut)]


def test_a_bad_byte_stops_the_work_before_it_begins(tmp_path):
    (tmp_path / "in").write_bytes(b"good\n" * 20 + b"\xff\n")
    with pytest.raises(ValueError, match="in:21:"):
        translate_file(pytest.fail, tmp_path / "in", tmp_path / "out", window=5)
    assert left_over(tmp_path) == ["in"]


def test_names_need_not_be_utf_8(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).write_bytes(content_of(LINES))
    interrupt(tmp_path / name, tmp_path / f"{name}.out", 40, fingerprint=name)
    assert resume(tmp_path / name, tmp_path / f"{name}.out", fingerprint=name) == 35
    assert (tmp_path / f"{name}.out").read_bytes() == WHOLE
    model = tmp_path / "model" / "assets"
    model.mkdir(parents=True)
    (model / name).write_bytes(b"x")
    first = model_fingerprint(tmp_path / "model")
    (model / name).rename(model / os.fsdecode(b"caf\xe8"))
    assert model_fingerprint(tmp_path / "model") != first


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
@pytest.mark.parametrize("sentences", [0, 6, 7, 20, 52])
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_interrupted_run_goes_on_where_it_was(
    source, tmp_path, name, sentences, is_stream
):
    output, straight = tmp_path / name, tmp_path / f"straight-{name}"
    translate_file(reverse, source, straight, window=WINDOW)

    def opened():
        return io.BytesIO(source.read_bytes()) if is_stream else source

    interrupt(opened(), output, sentences)
    assert not output.exists()
    asked = []
    summary = translate_file(
        lambda texts: asked.extend(texts) or reverse(texts), opened(), output,
        window=WINDOW,
    )  # fmt: skip
    kept = sentences // WINDOW * WINDOW
    assert summary.resumed == kept
    assert sorted(asked) == sorted(LINES[kept:])
    assert output.read_bytes() == straight.read_bytes()


class Crash(BaseException):
    """Stands for the end of the process."""


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

    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))

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
    translate_file(reverse, source, output, window=WINDOW)
    expected, number = output.read_bytes(), calls[0]
    assert number > 3 * 53 // WINDOW
    for first, second in itertools.product(range(number), (2, None)):
        output.unlink()
        for crash in (first, second):
            crash_at(crash)
            try:
                translate_file(reverse, source, output, window=WINDOW)
            except Crash:
                pass
            # Under its name there is the whole file or none.
            assert not output.exists() or output.read_bytes() == expected
        crash_at(None)
        translate_file(reverse, source, output, window=WINDOW)
        assert output.read_bytes() == expected
        assert left_over(tmp_path) == ["in.txt", name]


@pytest.mark.parametrize("junk", [b"half a li", b"\0" * 40])
def test_what_the_sidecar_does_not_count_is_cut_off(source, tmp_path, junk):
    output = tmp_path / "out"
    interrupt(source, output, 40)
    with open(tmp_path / "out.partial", "ab") as stream:
        stream.write(junk)
    interrupt(source, output, 10)
    assert resume(source, output) == 42
    assert output.read_bytes() == WHOLE


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


CHANGES = {
    "a byte of the output": lambda folder: change_a_byte(folder / "out.partial"),
    "the output's end": lambda folder: os.truncate(folder / "out.partial", 99),
    "a byte of the sidecar": lambda folder: change_a_byte(folder / "out.partial.json"),
    "the sidecar's end": lambda folder: os.truncate(folder / "out.partial.json", 30),
    "an early line of the input": lambda folder: change_a_byte(folder / "in.txt"),
    "lines of the input": lambda folder: os.truncate(folder / "in.txt", 40),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_refused_with_the_remedy(source, tmp_path, change):
    output = tmp_path / "out"
    interrupt(source, output, 40)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    CHANGES[change](tmp_path)
    with pytest.raises(ValueError, match=f"rm {output}.partial$"):
        translate_file(pytest.fail, source, output, window=WINDOW)
    # Nothing was lost: with what was there it goes on,
    for path, content in before.items():
        path.write_bytes(content)
    interrupt(source, output, 5)
    # and without the partial output it starts again, whatever the sidecar says.
    change_a_byte(tmp_path / "out.partial.json")
    (tmp_path / "out.partial").unlink()
    assert resume(source, output) == 0
    assert output.read_bytes() == WHOLE


def test_lines_after_those_done_may_change(source, tmp_path):
    output = tmp_path / "out"
    interrupt(source, output, 40)
    lines = [*LINES[:35], "a mended line", "and a new one"]
    source.write_bytes(content_of(lines))
    assert resume(source, output) == 35
    assert output.read_bytes() == content_of(reverse(lines))


def test_another_model_is_refused_with_the_remedy(source, tmp_path):
    output = tmp_path / "out"
    interrupt(source, output, 40, fingerprint="a")
    with pytest.raises(ValueError, match=f"another model.*rm {output}.partial$"):
        translate_file(pytest.fail, source, output, fingerprint="b")
    assert resume(source, output, fingerprint="a") == 35


def test_two_processes_never_write_one_output(source, tmp_path):
    output = tmp_path / "out"

    def translate(texts):
        with pytest.raises(BlockingIOError, match="out"):
            translate_file(pytest.fail, source, output)
        return reverse(texts)

    translate_file(translate, source, output, window=WINDOW)
    assert output.read_bytes() == WHOLE


def test_an_old_output_stays_until_the_new_one_is_whole(source, tmp_path):
    output = tmp_path / "out"
    output.write_bytes(b"old\n")
    interrupt(source, output, 40)
    assert output.read_bytes() == b"old\n"
    new = (tmp_path / "out.partial").stat().st_ino
    resume(source, output)
    assert output.read_bytes() == WHOLE
    assert output.stat().st_ino == new  # moved in one step, not copied


def test_progress_shows_on_a_terminal_alone(source, tmp_path, monkeypatch, capsys):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    translate_file(reverse, source, tmp_path / "out", show_progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    translate_file(reverse, source, tmp_path / "out", show_progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "translating" in printed.err and "53/53" in printed.err


def test_the_summary_counts_what_was_done_now():
    assert "1,500 sentences in 10.0 s (150.0 " in str(BulkSummary(1500, 0, 10.0))
    resumed = str(BulkSummary(1500, 1400, 10.0))
    assert "(10.0 sentences/s), 1,400 more" in resumed


def test_bad_arguments_are_refused(source, tmp_path):
    with pytest.raises(ValueError, match="window=0"):
        translate_file(reverse, source, tmp_path / "out", window=0)
    with pytest.raises(ValueError, match="must be a regular file"):
        translate_file(reverse, source, tmp_path)
    with pytest.raises(ValueError, match="another file than the input"):
        translate_file(reverse, source, source)
    with pytest.raises(ValueError, match="regular file"):
        translate_file(reverse, source, os.devnull)
    with pytest.raises(FileNotFoundError):
        translate_file(reverse, tmp_path / "missing", tmp_path / "out")
    with pytest.raises(ValueError, match="Received: 2 for 7 texts"):
        translate_file(lambda texts: ["a", "b"], source, tmp_path / "o", window=7)
    with pytest.raises(FileNotFoundError, match="model"):
        model_fingerprint(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "part", "other"),
    [
        (tiny_run.saved_model, "variables/variables.index", "assets.extra/requests"),
        # Its description has digests of the others, compared when they are loaded.
        (tiny_run.litert, "translator.json", "README.md"),
    ],
)
def test_the_fingerprint_is_that_of_contents_and_options(
    tmp_path_factory, tmp_path, make, part, other
):
    model = make(tmp_path_factory)
    first = model_fingerprint(model)
    copy = shutil.copytree(model, tmp_path / "copy")
    assert model_fingerprint(copy) == first
    assert model_fingerprint(copy, "beam 2") != first
    (copy / other).parent.mkdir(exist_ok=True)
    (copy / other).write_bytes(b"x")  # decides no translation
    assert model_fingerprint(copy) == first
    with open(copy / part, "ab") as stream:
        stream.write(b"\n")
    assert model_fingerprint(copy) != first


def test_a_translator_gives_the_same_in_bulk_and_at_once(tmp_path):
    texts = [source for source, _ in tiny_run.PAIRS[:20]] + ["", "  ", "dog"]
    (tmp_path / "in").write_bytes(content_of(texts))
    translator = tiny_run.translator()
    translate_file(translator, tmp_path / "in", tmp_path / "out", window=WINDOW)
    assert (tmp_path / "out").read_bytes() == content_of(translator(texts))


# Forks, so that the slow imports are done once; the parent kills each child after a
# time, and only then takes note of its end: its number cannot be another process's.
_FORKS = """
import os, signal, sys, time
from keras_transformer.bulk import translate_file
print("ready", flush=True)

def translate(texts):
    time.sleep(0.005)
    return [" ".join(reversed(text.split(" "))) for text in texts]

for line in sys.stdin:
    source, output, seconds = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        translate_file(translate, source, output, window=7)
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
    source = tmp_path / "in.txt"
    source.write_bytes(content_of(make_lines(300)))
    output, straight = tmp_path / name, tmp_path / f"straight-{name}"
    translate_file(reverse, source, straight, window=WINDOW)
    kills = 0
    while not output.exists():
        # Longer and longer, lest a busy machine never comes to an end.
        status = killer(source, output, rng.uniform(0.005, 0.08) * (1 + kills / 20))
        assert status in (0, signal.SIGKILL)
        kills += status == signal.SIGKILL
    assert kills >= 3
    assert output.read_bytes() == straight.read_bytes()
