"""Directories locked and versions numbered."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from keras_transformer.files import (
    take_lock,
    version_path,
    versions_in,
)


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
    with pytest.raises(FileExistsError, match=f"{tmp_path} holds an export itself"):
        version_path(tmp_path, "model")
