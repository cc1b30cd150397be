"""What a full disk does to the package's writers, found out with a small limit."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import resource

import numpy as np
import pytest

from keras_transformer.bulk import translate_file
from keras_transformer.files import replacing
from keras_transformer.training.averages import save_checkpoint
from keras_transformer.training.state import State, StateFiles
from tests import tiny_run

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


def save_weights(folder):
    save_checkpoint(tiny_run.model(), folder, 1)


def save_model(folder):
    with replacing(folder / "model.keras") as temporary:
        tiny_run.model().save(temporary)


def save_state(folder):
    values = [np.zeros(LIMIT, "float32")]
    StateFiles(folder).save(State(7, values=values))


def save_text(folder):
    with replacing(folder / "config.json") as temporary:
        temporary.write_text("x" * 2 * LIMIT)


def save_translations(folder):
    source = io.BytesIO(b"a\n")
    translate_file(lambda texts: ["x" * 2 * LIMIT], source, folder / "out")


WRITERS = {
    "step-000000001.weights.h5": save_weights,
    "model.keras": save_model,
    "step-000000007.npz": save_state,
    "config.json": save_text,
    "out.partial": save_translations,
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
    model = tiny_run.model()
    names = []
    save = type(model).save_weights
    monkeypatch.setattr(
        type(model), "save_weights", lambda m, to: names.append(to) or save(m, to)
    )
    save_weights(tmp_path)
    assert [isinstance(name, (str, os.PathLike)) for name in names] == [False]
    weights = [np.array(weight) for weight in model.weights]
    model.load_weights(tmp_path / "step-000000001.weights.h5")
    for weight, expected in zip(model.weights, weights, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path):
    path = tmp_path / "out"
    (tmp_path / "mine").write_text("precious")
    link = tmp_path / f".partial-{os.getpid()}-out"
    link.symlink_to(tmp_path / "mine")
    with replacing(path) as temporary:
        assert temporary == link
        temporary.write_text("new")
    assert (path.read_text(), (tmp_path / "mine").read_text()) == ("new", "precious")


def test_an_error_of_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path / 'missing'}'$"):
        with replacing(tmp_path / "copy") as temporary:
            temporary.write_bytes((tmp_path / "missing").read_bytes())
