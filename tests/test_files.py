"""Directories locked, versions numbered, and what a full disk does to the writers."""

import contextlib
import errno
import io
import os
import re
import resource
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.bulk import translate_file
from keras_transformer.files import replacing, take_lock, version_path, versions_in
from keras_transformer.training.averages import save_checkpoint
from keras_transformer.training.state import State, StateFiles
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


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_sentence_with_the_name_of_the_file(tmp_path, name):
    sentence = f"{os.strerror(errno.EFBIG)}: '{tmp_path / name}'"
    with files_stay_small():
        with pytest.raises(OSError, match=re.escape(sentence) + "$"):
            WRITERS[name](tmp_path)
    assert not list(tmp_path.rglob(".partial-*"))


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
