"""Bulk translation: order, windows, crashes at every moment, two at once, Ray."""

import functools
import gzip
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from keras_transformer import ExportedTranslator
from keras_transformer.apps.bulk import (
    BulkSummary,
    RayTranslator,
    model_fingerprint,
    ray_translator,
    read_texts,
    translate_file,
    translate_lines,
)
from keras_transformer.search.translation import Translation
from keras_transformer.text.lines import MAX_LINE_BYTES, one_line
from tests import tiny_run

WINDOW = 7
SENTENCES = [*(pair[0] for pair in tiny_run.PAIRS), "", "  ", "a\u2028dog", "Bär Bär"]


def reverse(texts):
    """A translator of words: cheap, and no two lines have one translation."""
    return [" ".join(reversed(text.split(" "))) for text in texts]


def make_lines(number):
    rng, words = np.random.default_rng(3), [f"Wört{x}" for x in range(9)]
    return [
        " ".join([f"line {i}", *words[: rng.integers(0, 9)]]) for i in range(number)
    ]


def content_of(lines):
    return "".join(line + "\n" for line in lines).encode()


LINES = make_lines(53)
WHOLE = content_of(reverse(LINES))
both_kinds = pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(content_of(LINES))
    return path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out"


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


def resume(source, output, translate=reverse, **options):
    """Goes on, and returns how many lines were done before."""
    return translate_file(translate, source, output, window=WINDOW, **options).resumed


def test_lines_go_in_and_come_out_in_order(source, tmp_path):
    windows, output = [], tmp_path / "out.txt"
    summary = translate_file(
        lambda texts: windows.append(texts) or reverse(texts),
        source,
        output,
        window=WINDOW,
    )
    assert output.read_bytes() == WHOLE
    assert (summary.sentences, summary.resumed) == (53, 0)
    assert left_over(tmp_path) == ["in.txt", "out.txt"]
    assert windows == [LINES[start : start + 7] for start in range(0, 53, 7)]
    for window in (1, 5, 4096):
        translate_file(reverse, source, output, window=window)
        assert output.read_bytes() == WHOLE
    # The first window, which also starts the model, is no measure of the speed.
    assert summary.rate > 0
    one = translate_file(reverse, source, output, window=4096)
    assert one.rate is None and str(one).endswith(" s (start included)")
    assert str(BulkSummary(1, 0, 10.0)) == "1 sentence in 10.0 s (start included)"
    resumed = str(BulkSummary(1500, 1400, 10.0, rate=12.5))
    assert "100 sentences in 10.0 s (12.5 sentences/s), 1,400 more" in resumed


def test_the_summary_counts_what_was_cut_also_before_an_interruption(source, output):
    """Windows of 7 lines; 11 of all 53 have all nine words, the first is line 3."""
    whole = [number for number, line in enumerate(LINES, 1) if len(line.split()) > 8]
    translator, windows = SimpleNamespace(), []

    def translate(texts):
        windows.append(texts)
        if len(windows) == 3:
            raise KeyboardInterrupt
        found = zip(texts, reverse(texts), strict=True)
        return [Translation(y, 0.0, len(x.split()) > 8) for x, y in found]

    translator.translate = translate
    with pytest.raises(KeyboardInterrupt):
        translate_file(translator, source, output, window=WINDOW)
    summary = translate_file(translator, source, output, window=WINDOW)
    assert output.read_bytes() == WHOLE
    assert (summary.resumed, summary.truncated) == (14, len(whole))
    assert summary.first_truncated == whole[0] < 14 < whole[-1]
    words = f"; {len(whole)} of all were too long and were cut, the first is number "
    assert words + str(whole[0]) in str(summary)


def test_lines_stream_window_by_window():
    numbers = itertools.count()
    translations = translate_lines(reverse, (f"a {i}" for i in numbers), window=7)
    assert list(itertools.islice(translations, 7)) == [f"{i} a" for i in range(7)]
    assert next(numbers) == 7


def test_a_window_is_on_the_disk_before_the_next_is_read(output):
    """So memory does not grow with the file, and a crash costs a window at most."""

    class Stream(io.BytesIO):
        number = 0

        def readline(self, size):
            if self.number and self.number % WINDOW == 0:
                done = json.loads(output.with_name("out.partial.json").read_text())
                content = output.with_name("out.partial").read_bytes()
                assert content.count(b"\n") == done["lines"] == self.number
            self.number += 1
            return super().readline(size)

    stream = Stream(content_of(make_lines(100)))
    assert translate_file(reverse, stream, output, window=WINDOW).sentences == 100


@both_kinds
@pytest.mark.parametrize("lines", [0, 1, 7, 8])
def test_gzip_in_and_out_hold_the_same_lines(tmp_path, name, lines):
    source, output = tmp_path / "in", tmp_path / name
    source.write_bytes(gzip.compress(content_of(make_lines(lines))))
    translate_file(reverse, source, output, window=WINDOW)
    content = output.read_bytes()
    assert content.startswith(b"\x1f\x8b") == name.endswith(".gz")
    content = gzip.decompress(content) if name.endswith(".gz") else content
    assert content == content_of(reverse(make_lines(lines)))


def test_line_rules_are_those_of_the_corpus_reader(tmp_path, output):
    content, source = b"\xef\xbb\xbfa\rb\xe2\x80\xa8c\r\n\nlast", tmp_path / "in"
    source.write_bytes(content)
    for each in (source, io.BytesIO(content)):
        assert list(read_texts(each)) == ["a\rb\u2028c", "", "last"]
    # Line breaks in a translation become spaces.
    source.write_bytes(b"a\nb\n")
    translate_file(lambda texts: [t + "\n\u2028x" for t in texts], source, output)
    assert output.read_text("utf-8") == "a  x\nb  x\n"
    # A bad byte stops the work before it begins.
    output.unlink()
    source.write_bytes(b"good\n" * 20 + b"\xff\n")
    with pytest.raises(ValueError, match="in:21:"):
        translate_file(pytest.fail, source, output, window=5)
    assert left_over(tmp_path) == ["in"]


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_line_too_long_is_refused_and_not_cut(tmp_path, end):
    line = "x" * (MAX_LINE_BYTES - 4) + "€"
    for text, is_too_long in ((line, False), (f"x{line}", True), (line * 9, True)):
        content = f"a\n{text}{end}".encode()
        (tmp_path / "in").write_bytes(content)
        for source in (tmp_path / "in", io.BytesIO(content)):
            texts = read_texts(source)
            assert next(texts) == "a"
            if is_too_long:
                words = "(in|input):2: a line must be shorter than 262,144 bytes"
                with pytest.raises(ValueError, match=words):
                    next(texts)
            else:
                assert list(texts) == [text]


def test_a_translator_gives_the_same_in_bulk_and_at_once(source, output):
    source.write_bytes(content_of(SENTENCES[::2]))
    translate_file(tiny_run.translator(), source, output, window=WINDOW)
    found = tiny_run.translator()(SENTENCES[::2])
    assert output.read_bytes() == content_of(map(one_line, found))


def test_names_need_not_be_utf_8(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    source, output = tmp_path / name, tmp_path / f"{name}.out"
    source.write_bytes(content_of(LINES))
    interrupt(source, output, 40, fingerprint=name)
    assert resume(source, output, fingerprint=name) == 35
    assert output.read_bytes() == WHOLE
    model = tmp_path / "model" / "assets"
    model.mkdir(parents=True)
    (model / name).write_bytes(b"x")
    first = model_fingerprint(tmp_path / "model")
    (model / name).rename(model / os.fsdecode(b"caf\xe8"))
    assert model_fingerprint(tmp_path / "model") != first


@both_kinds
@pytest.mark.parametrize("sentences", [0, 6, 7, 20, 52])
@pytest.mark.parametrize("is_stream", [False, True])
def test_an_interrupted_run_goes_on_where_it_was(
    source, tmp_path, name, sentences, is_stream
):
    output, straight, asked = tmp_path / name, tmp_path / f"straight-{name}", []
    translate_file(reverse, source, straight, window=WINDOW)

    def opened():
        return io.BytesIO(source.read_bytes()) if is_stream else source

    interrupt(opened(), output, sentences)
    assert not output.exists()
    kept = sentences // WINDOW * WINDOW
    counted = lambda texts: asked.extend(texts) or reverse(texts)  # noqa: E731
    assert resume(opened(), output, counted) == kept
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


@both_kinds
def test_a_crash_before_any_system_call_loses_and_repeats_nothing(
    source, tmp_path, crash_at, name
):
    source.write_bytes(content_of(LINES[:17]))
    output, calls = tmp_path / name, crash_at(None)
    translate_file(reverse, source, output, window=WINDOW)
    expected, number = output.read_bytes(), calls[0]
    assert number > 3 * 17 // WINDOW
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
        files = [x for x in left_over(tmp_path) if not x.startswith(".partial-")]
        assert files == ["in.txt", name]


@pytest.mark.parametrize("junk", [b"half a li", b"\0" * 40])
def test_what_the_sidecar_does_not_count_is_cut_off(source, output, junk):
    interrupt(source, output, 40)
    with open(output.with_name("out.partial"), "ab") as stream:
        stream.write(junk)
    interrupt(source, output, 10)
    assert resume(source, output) == 42
    assert output.read_bytes() == WHOLE


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("change", [change_a_byte, lambda path: os.truncate(path, 40)])
def test_what_has_changed_is_refused_with_the_remedy(source, output, tmp_path, change):
    interrupt(source, output, 40)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    change(source)
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


def test_without_the_sidecar_it_starts_again(source, output):
    interrupt(source, output, 40)
    output.with_name("out.partial.json").unlink()
    assert resume(source, output) == 0
    assert output.read_bytes() == WHOLE


def test_lines_after_those_done_may_change_and_the_model_may_not(source, output):
    interrupt(source, output, 40, fingerprint="a")
    with pytest.raises(ValueError, match=f"another model.*rm {output}.partial$"):
        translate_file(pytest.fail, source, output, fingerprint="b")
    lines = [*LINES[:35], "a mended line", "and a new one"]
    source.write_bytes(content_of(lines))
    assert resume(source, output, fingerprint="a") == 35
    assert output.read_bytes() == content_of(reverse(lines))


def test_an_output_has_one_writer_and_is_replaced_when_it_is_whole(source, output):
    def translate(texts):
        with pytest.raises(BlockingIOError, match="out"):
            translate_file(pytest.fail, source, output)
        return reverse(texts)

    output.write_bytes(b"old\n")
    interrupt(source, output, 40)
    assert output.read_bytes() == b"old\n"
    new = output.with_name("out.partial").stat().st_ino
    resume(source, output, translate)
    assert output.read_bytes() == WHOLE
    assert output.stat().st_ino == new  # Moved in one step, not copied.


def test_progress_shows_on_a_terminal_alone(source, output, monkeypatch, capsys):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    translate_file(reverse, source, output, show_progress=True)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    translate_file(reverse, source, output, show_progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "translating" in printed.err and "53/53" in printed.err


def test_bad_arguments_are_refused(source, output, tmp_path):
    two = lambda texts: ["a", "b"]  # noqa: E731
    for translate, target, window, words in (
        (reverse, tmp_path, 7, "must be a regular file"),
        (reverse, os.devnull, 7, "regular file"),
        (two, output, 7, "Received: 2 for 7 texts"),
        (reverse, output, 0, "window=0"),
    ):
        with pytest.raises(ValueError, match=words):
            translate_file(translate, source, target, window=window)
    with pytest.raises(FileNotFoundError, match="model"):
        model_fingerprint(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "other"),
    [
        ("saved_model", "variables/variables.index", "assets.extra/requests"),
        # Its description has digests of the others, compared when they are loaded.
        ("lite_export", "translator.json", "README.md"),
    ],
)
def test_the_fingerprint_is_that_of_contents_and_options(
    request, tmp_path, name, part, other
):
    model = request.getfixturevalue(name)
    first = model_fingerprint(model)
    copy = shutil.copytree(model, tmp_path / "copy")
    assert model_fingerprint(copy) == first
    assert model_fingerprint(copy, "beam 2") != first
    (copy / other).parent.mkdir(exist_ok=True)
    (copy / other).write_bytes(b"x")  # It decides no translation.
    assert model_fingerprint(copy) == first
    with open(copy / part, "ab") as stream:
        stream.write(b"\n")
    assert model_fingerprint(copy) != first


# Forks, so that the slow imports are done once; the parent kills each child after a
# time, and only then takes note of its end: its number cannot be another process's.
_FORKS = """
import os, signal, sys, time
from keras_transformer.apps.bulk import translate_file
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
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _FORKS], **pipes) as process:
        assert process.stdout.readline() == "ready\n"

        def run(source, output, seconds):
            process.stdin.write(f"{source}\t{output}\t{seconds}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield run


@pytest.mark.slow
@both_kinds
def test_killed_again_and_again_the_output_is_that_of_one_run(
    killer, tmp_path, rng, name
):
    source, output, straight = (
        tmp_path / n for n in ("in.txt", name, f"straight-{name}")
    )
    source.write_bytes(content_of(make_lines(300)))
    translate_file(reverse, source, straight, window=WINDOW)
    kills = 0
    while not output.exists():
        # Longer and longer, lest a busy machine never comes to an end.
        status = killer(source, output, rng.uniform(0.005, 0.08) * (1 + kills / 20))
        assert status in (0, signal.SIGKILL)
        kills += status == signal.SIGKILL
    assert kills >= 3
    assert output.read_bytes() == straight.read_bytes()


# Workers of Ray give what one process gives, and go on where it stopped.


@pytest.fixture
def ray():
    """Ray, not started, and shut down after the test."""
    module = pytest.importorskip("ray")
    yield module
    module.shutdown()


@pytest.fixture
def ray_here(monkeypatch):
    """What stands for Ray: its workers are objects of this process."""
    started = []

    class ActorPool:
        def __init__(self, actors):
            self.actors = itertools.cycle(actors)

        def map(self, call, parts):
            return (call(next(self.actors), part) for part in parts)

    def actor(*arguments):
        worker = ray_translator._Worker(*arguments)
        return SimpleNamespace(run=SimpleNamespace(remote=worker.run))

    ray = SimpleNamespace(
        is_initialized=lambda: bool(started),
        init=lambda num_cpus, **_: started.append(num_cpus),
        cluster_resources=lambda: {"CPU": started[0]},
        remote=lambda **_: lambda worker: SimpleNamespace(remote=actor),
        exceptions=SimpleNamespace(RayError=OSError),
    )
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, os.environ[name])  # A worker sets them.
    # Two workers of one process share what takes seconds.
    loaded = functools.cache(ExportedTranslator)
    monkeypatch.setattr("keras_transformer.formats.ExportedTranslator", loaded)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace(ActorPool=ActorPool))


def test_without_ray_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(ImportError, match=r"\[ray\]"):
        RayTranslator(tmp_path, 2)


@pytest.mark.parametrize(
    "name", ["ray_here", pytest.param("ray", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_workers_go_on_with_what_one_process_was_interrupted_in(
    name, saved_model, tmp_path, output, monkeypatch, request
):
    request.getfixturevalue(name)
    monkeypatch.setattr(ray_translator, "_PART", 5)
    source, expected = tmp_path / "in.txt", tmp_path / "a"
    one = ExportedTranslator(saved_model)
    source.write_bytes(content_of(SENTENCES))
    translate_file(one, source, expected, window=WINDOW)
    windows = []

    def interrupted(texts):
        if len(windows) == 3:
            raise KeyboardInterrupt
        windows.append(texts)
        return one(texts)

    with pytest.raises(KeyboardInterrupt):
        translate_file(interrupted, source, output, window=WINDOW)
    many = RayTranslator(saved_model, 2)
    assert many.path == one.path
    assert translate_file(many, source, output, window=23).resumed == 21
    assert output.read_bytes() == expected.read_bytes()
    with pytest.raises(ValueError, match="workers=9, cpus=1"):
        RayTranslator(saved_model, 9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_a_worker_that_fails_is_one_line(ray, saved_model, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "saved_model.pb").write_bytes(b"junk")
    with pytest.raises(RuntimeError, match="^A Ray worker failed: .*Cannot parse.*$"):
        RayTranslator(tmp_path / "bad", 1)(["a"])
    for options in ({"workers": 0}, {"workers": 1, "cpus": 0}):
        with pytest.raises(ValueError, match="=0$"):
            RayTranslator(saved_model, **options)
