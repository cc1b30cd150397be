"""Directories locked, versions numbered, and what a full disk does to the writers."""

import contextlib
import errno
import io
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.apps.bulk import translate_file
from keras_transformer.files import (
    append_lines,
    creating_directory,
    read_json,
    replacing,
    take_lock,
    write_json,
)
from keras_transformer.formats.versions import (
    check_no_pattern,
    version_path,
    versions_in,
)
from keras_transformer.training.state import State, StateFiles, save_checkpoint
from tests import tiny_run


@pytest.fixture
def opened(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_free_once_the_process_that_holds_it_is_killed(tmp_path, opened):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout.readline() == b"locked\n"
        assert not take_lock(opened, tmp_path)
        holder.kill()
    assert take_lock(opened, tmp_path)


def test_a_directory_that_was_removed_or_made_anew_is_not_locked(tmp_path, opened):
    tmp_path.rmdir()
    assert not take_lock(opened, tmp_path)
    tmp_path.mkdir()
    assert not take_lock(opened, tmp_path)


# Temporary files and directories.


def test_two_writers_with_one_process_id_do_not_share_a_file(tmp_path, monkeypatch):
    """As in two containers, where it is 1."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = tmp_path / "pairs.ids"
    with replacing(path) as first, replacing(path) as second:
        first.write_bytes(b"half")
        second.write_bytes(b"whole")
    assert path.read_bytes() == b"half"  # The first ends last.
    assert os.listdir(tmp_path) == ["pairs.ids"]


# A process that is killed within the write of a path.
DYING = """
import os, signal, sys
from pathlib import Path
from keras_transformer import files

with getattr(files, sys.argv[1])(Path(sys.argv[2])) as temporary:
    path = temporary / "model" if temporary.is_dir() else temporary
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("make", [replacing, creating_directory])
def test_what_a_killed_process_has_half_written_gets_no_name_and_stops_no_one(
    tmp_path, make
):
    path = tmp_path / "exports" / "1"
    path.parent.mkdir()
    command = [sys.executable, "-c", DYING, make.__name__, path]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    (left,) = path.parent.iterdir()
    assert re.fullmatch(r"\.partial-[0-9a-f]{8}-1", left.name)
    assert version_path(path.parent, "model") == path
    with make(path) as temporary:
        whole = temporary if make is replacing else temporary / "model"
        whole.write_bytes(b"whole")
    assert set(path.parent.iterdir()) == {left, path}
    assert (path if make is replacing else path / "model").read_bytes() == b"whole"


@pytest.mark.parametrize("make", [replacing, creating_directory])
def test_a_path_where_nothing_can_be_written_is_named(tmp_path, make):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "new"
    with pytest.raises(NotADirectoryError, match=f"'{path}'$"):
        with make(path) as temporary:
            temporary.write_bytes(b"x")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("kind", [replacing, creating_directory])
def test_what_gets_a_name_is_on_the_disk_before(tmp_path, monkeypatch, kind):
    """A power cut between the two would leave an empty file with a good name."""
    done, flush, rename = [], os.fsync, os.rename
    inside = tmp_path / "new"

    def note(call):
        def noted(*words):
            what = words[0]
            name = os.readlink(f"/proc/self/fd/{what}") if call is flush else "renamed"
            done.append(os.path.basename(name).partition("-")[0])
            return call(*words)

        return noted

    monkeypatch.setattr(os, "fsync", note(flush))
    monkeypatch.setattr(os, "replace", note(os.replace))
    monkeypatch.setattr(os, "rename", note(rename))
    with kind(inside) as temporary:
        if kind is replacing:
            temporary.write_bytes(b"x")
        else:
            (temporary / "weights").write_bytes(b"x")
    first = [] if kind is replacing else ["weights"]
    assert done == [*first, ".partial", "renamed", tmp_path.name]


# JSON that every program reads.


def test_json_has_null_for_what_is_no_number(tmp_path):
    figures = {"loss": [math.nan, -math.inf, 0.1 + 0.2], "name": "ä\ud800"}
    write_json(tmp_path / "x.json", figures)
    text = (tmp_path / "x.json").read_text("utf-8")
    found = json.loads(text, parse_constant=pytest.fail)
    assert found == figures | {"loss": [None, None, 0.1 + 0.2]}


@pytest.mark.parametrize("content", [b"", b"[1", b"[]", b'"a"', b"\xff"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"{tmp_path / 'x.json'} is damaged: "):
        read_json(tmp_path / "x.json")


# Versions and paths.


@pytest.mark.parametrize("name", ["[1]", "a]b", "a*b", "a?b", "a\\b"])
def test_what_tensorflow_takes_for_a_pattern_is_no_path_of_a_saved_model(
    tmp_path, name, monkeypatch
):
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    for path in (tmp_path / name / "en-de", "en-de"):
        with pytest.raises(ValueError, match="must have none of .* Received: /"):
            check_no_pattern(path)
    check_no_pattern(tmp_path / "a {b}, c#d")


def test_versions_are_the_whole_numbers_in_their_order(tmp_path):
    # A superscript and an Arabic digit are no version to TensorFlow Serving.
    for name in ("10", "9", "2", "011", "x", "-3", "1.5", "²", "٩٩", ".12"):
        (tmp_path / name).mkdir()
    found = {number: path.name for number, path in versions_in(tmp_path).items()}
    assert list(found.items()) == [(2, "2"), (9, "9"), (10, "10"), (11, "011")]
    assert version_path(tmp_path, "model") == tmp_path / "12"


def test_an_export_goes_to_its_version_or_to_the_next_one(tmp_path):
    for path in (tmp_path, tmp_path / "x"):  # One without versions, one not there.
        assert version_path(path, "model") == path / "1"
    assert version_path(tmp_path / "x" / "7", "model") == tmp_path / "x" / "7"
    (tmp_path / "x" / "7").mkdir(parents=True)
    assert version_path(tmp_path / "x", "model") == tmp_path / "x" / "8"
    with pytest.raises(FileExistsError, match="x/7 exists, and is never overwritten"):
        version_path(tmp_path / "x" / "7", "model")
    # What a server takes for no version is the name of a model.
    assert version_path(tmp_path / "v7", "model") == tmp_path / "v7" / "1"
    assert version_path(tmp_path / "²", "model") == tmp_path / "²" / "1"


def test_an_export_without_versions_gets_none(tmp_path):
    (tmp_path / "model").touch()
    with pytest.raises(FileExistsError, match=f"{tmp_path} is itself an export"):
        version_path(tmp_path, "model")


# A full disk, found out with a small limit.

LIMIT = 30_000


@contextlib.contextmanager
def files_stay_small():
    """Fails every write beyond `LIMIT` bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def written(name, write):
    """A function that writes a file of the folder as the package does."""

    def writes(folder):
        with replacing(folder / name) as temporary:
            write(temporary)

    return writes


WRITERS = {
    "step-000000001.weights.h5": lambda to: save_checkpoint(tiny_run.model(), to, 1),
    "model.keras": written("model.keras", lambda path: tiny_run.model().save(path)),
    "step-000000007.npz": lambda folder: StateFiles(folder).save(
        State(7, values=[np.zeros(LIMIT, "float32")])
    ),
    "config.json": written(
        "config.json", lambda path: path.write_text("x" * 2 * LIMIT)
    ),
    "out.partial": lambda folder: translate_file(
        lambda texts: ["x" * 2 * LIMIT], io.BytesIO(b"a\n"), folder / "out"
    ),
}


def test_lines_are_appended_whole_or_not_at_all(tmp_path):
    path = tmp_path / "folder" / "a.tsv"
    append_lines(path, ["a\tä", "b\tb"])
    with files_stay_small():
        with pytest.raises(OSError, match=f"{os.strerror(errno.EFBIG)}: '{path}'"):
            append_lines(path, ["c", "x" * 2 * LIMIT])
    assert path.read_text("utf-8") == "a\tä\nb\tb\n"
    path.write_bytes(b"cut")  # As a crash or an editor leaves it.
    append_lines(path, ["c"])
    append_lines(path, [])
    assert path.read_bytes() == b"cut\nc\n"
    assert os.listdir(path.parent) == ["a.tsv"]


APPENDING = """
import itertools, sys
from keras_transformer.files import append_lines
for number in itertools.count():
    append_lines(sys.argv[1], [f"{number}\t{'x' * 5000}"] * 3)
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_lines_and_stops_no_one(tmp_path):
    path = tmp_path / "a.tsv"
    command = [sys.executable, "-c", APPENDING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        for _ in range(20):
            last = int(writer.stdout.readline())
        writer.kill()
    append_lines(path, ["the end"])
    *lines, end = path.read_text("utf-8").splitlines()
    assert end == "the end" and len(lines) >= 3 * (last + 1)
    for row, line in enumerate(lines):
        assert line == f"{row // 3}\t{'x' * 5000}"


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_sentence_with_the_name_of_the_file(tmp_path, name):
    sentence = f"{os.strerror(errno.EFBIG)}: '{tmp_path / name}'"
    with files_stay_small():
        with pytest.raises(OSError, match=re.escape(sentence) + "$"):
            WRITERS[name](tmp_path)
    assert not list(tmp_path.rglob(".partial-*"))


EXPORTS = [
    "safetensors",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("ctranslate2", "litert", "onnx", "saved_model")
    ),
]


@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_to_a_full_disk_says_so_and_leaves_nothing(tmp_path, kind):
    """Also where a library says it in its own way."""
    path = tmp_path / "1"
    cure = f"{os.strerror(errno.EFBIG)}: make room there, or in .*: '{path}'$"
    with files_stay_small():
        with pytest.raises(OSError, match=cure):
            tiny_run.translator().export(path, kind)
    assert not list(tmp_path.iterdir())


def test_an_error_that_is_no_full_disk_stays_as_it_is(tmp_path):
    with pytest.raises(RuntimeError, match="^CUDA out of memory$"):
        with creating_directory(tmp_path / "1"):
            raise RuntimeError("CUDA out of memory")


def test_a_checkpoint_is_written_to_no_file_by_hdf5(tmp_path, monkeypatch):
    """It ends the process some time after a write of its own has failed."""
    model, names = tiny_run.model(), []
    save = type(model).save_weights
    monkeypatch.setattr(
        type(model), "save_weights", lambda m, to: names.append(to) or save(m, to)
    )
    save_checkpoint(model, tmp_path, 1)
    assert [isinstance(name, (str, os.PathLike)) for name in names] == [False]
    weights = [np.array(weight) for weight in model.weights]
    model.load_weights(tmp_path / "step-000000001.weights.h5")
    tiny_run.assert_equal(model.get_weights(), weights)


def test_an_error_of_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path / 'missing'}'$"):
        with replacing(tmp_path / "copy") as temporary:
            temporary.write_bytes((tmp_path / "missing").read_bytes())
