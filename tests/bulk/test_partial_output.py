"""OUTPUT.partial in a directory that others write to: links and other owners."""

from __future__ import annotations

import os
import re

import pytest

from keras_transformer.bulk import PartialOutput, translate_file


@pytest.fixture
def mine(tmp_path):
    """A file that somebody else wants to be overwritten."""
    path = tmp_path / "mine"
    path.write_text("precious")
    return path


@pytest.fixture
def folder(tmp_path):
    """Where the translations of `refused` are kept until they are whole."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared" / "out.partial"


def refused(folder, reason):
    """Asserts that nothing is written, with one line that says why."""
    source = folder.parent.parent / "in.txt"
    source.write_text("a\nb\n")
    before = sorted(folder.parent.rglob("*"))
    message = f"{folder} must be a directory of your own .* Received: {reason}$"
    with pytest.raises(ValueError, match=message):
        translate_file(pytest.fail, source, folder.with_suffix(""))
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["translations", "journal.jsonl", "notes"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_folder_is_not_written_through(folder, mine, name, link):
    folder.mkdir()
    link(mine, folder / name)
    refused(folder, f"{re.escape(name)} in it is a link or not a file")
    assert mine.read_text() == "precious"


def test_a_dangling_link_makes_no_file(folder, tmp_path):
    folder.mkdir()
    (folder / "translations").symlink_to(tmp_path / "new")
    refused(folder, "translations in it is a link or not a file")
    assert not (tmp_path / "new").exists()


def test_a_folder_or_a_pipe_in_the_folder_is_refused(folder):
    folder.mkdir()
    os.mkfifo(folder / "translations")
    refused(folder, "translations in it is a link or not a file")
    (folder / "translations").unlink()
    (folder / "translations").mkdir()
    refused(folder, "translations in it is a link or not a file")


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_what_is_no_folder_is_refused(folder, tmp_path, kind):
    (tmp_path / "other").mkdir()
    if kind == "file":
        folder.write_text("a file")
    else:
        folder.symlink_to(tmp_path / ("other" if kind == "link" else "missing"))
    refused(folder, "it is a link or a file")
    assert not list((tmp_path / "other").iterdir())


def test_a_folder_of_somebody_else_is_refused(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(PartialOutput, "_owner", os.geteuid() + 1)
    refused(folder, "it belongs to somebody else")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_refuses_what_belongs_to_somebody_else(folder):
    folder.mkdir()
    (folder / "translations").write_text("lies\n")
    os.chown(folder / "translations", 1234, -1)
    refused(folder, "translations in it belongs to somebody else")
    os.chown(folder, 1234, -1)
    refused(folder, "it belongs to somebody else")


def test_a_link_that_comes_after_the_check_is_not_followed(tmp_path, mine):
    with PartialOutput(tmp_path / "out", "") as partial:
        path = partial.folder / "translations"
        path.unlink()
        path.symlink_to(mine)
        with pytest.raises(OSError, match=f"'{path}'$"):
            partial._open("translations", "wb")
    assert mine.read_text() == "precious"
