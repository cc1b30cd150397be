"""The SavedModel against the live translator, and what it is made of."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import ExportedTranslator
from keras_transformer.export import latest_version
from keras_transformer.export.serving_files import NAMES
from keras_transformer.generation.pipeline import INPUTS, Pipeline
from tests import tiny_run

TEXTS = ["the good bear runs.", "", "a dog", "the old man </s> sings. 🐈", "  "]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_run.saved_model(tmp_path_factory)


@pytest.fixture(scope="module")
def live():
    return [best[0] for best in tiny_run.translator().translate(TEXTS)]


def test_no_path_of_the_machine_that_exported_is_inside(path):
    here = str(Path(__file__).resolve().parents[2]).encode()
    inside = [here, str(path.parent).encode(), sys.prefix.encode()]
    for file in path.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [place for place in inside if place in content], file
    assert not list((path / "assets").iterdir())


def test_the_exported_translator_is_called_like_the_live_one(path, live):
    exported = ExportedTranslator(path.parent)
    assert exported.path == path
    assert exported(TEXTS, batch_size=2) == [translation.text for translation in live]
    assert exported([]) == []
    several = tiny_run.translator().translate(TEXTS, n_best=2)
    for found, expected in zip(exported.translate(TEXTS, 2), several, strict=True):
        assert [t.text for t in found] == [t.text for t in expected]
        assert [t.score for t in found] == pytest.approx([t.score for t in expected])
    for method, columns in (
        ("complete", (TEXTS, TEXTS[::-1])), ("sample", (TEXTS, 1.0, 5)),
        ("score", (TEXTS, TEXTS[::-1])), ("align", (TEXTS,)),
    ):  # fmt: skip
        several = getattr(tiny_run.translator(), method)(*columns)
        rows = getattr(exported, method)(*columns)
        for found, expected in zip(rows, several, strict=True):
            for one, other in zip(found, expected, strict=True):
                if isinstance(other, str | list):
                    assert one == other
                else:
                    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="`n_best` must be from 1 to 3"):
        exported.translate(TEXTS, 4)
    with pytest.raises(ValueError, match="`per_head` must be False"):
        exported.align(TEXTS, per_head=True)


class Stopped(Exception):
    """What ends an export in the middle."""


def test_a_server_sees_no_half_written_version_and_a_failure_leaves_nothing(
    tmp_path, monkeypatch
):
    seen = []

    def save(module, directory, **_):
        Path(directory).mkdir(exist_ok=True)  # As TensorFlow does.
        (Path(directory) / "saved_model.pb").write_bytes(b"half")
        seen.extend(path.name for path in (tmp_path / "name").iterdir())
        raise Stopped

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(Stopped):
        tiny_run.translator().export(tmp_path / "name")
    assert len(seen) == 1 and not seen[0].isdecimal()
    assert not list((tmp_path / "name").iterdir())


def test_graphs_are_made_once_and_the_next_version_has_all_its_files(
    tmp_path, monkeypatch
):
    traced, run = [], Pipeline.run

    def traces(self, name, *inputs):
        traced.append(name)
        return run(self, name, *inputs)

    monkeypatch.setattr(Pipeline, "run", traces)
    monkeypatch.setattr(
        tf.saved_model, "save", lambda _, path, **__: Path(path).mkdir(exist_ok=True)
    )
    (tmp_path / "name" / "1").mkdir(parents=True)
    written = tiny_run.translator().export(tmp_path / "name")
    assert written == tmp_path / "name" / "2"
    assert sorted(traced) == sorted(INPUTS)
    assert (written / "assets.extra" / "tf_serving_warmup_requests").exists()
    assert {path.name for path in (tmp_path / "name").iterdir()} == {"1", "2", *NAMES}


def test_an_existing_version_is_never_overwritten(path):
    before = sorted((f, f.stat().st_mtime_ns) for f in path.rglob("*"))
    with pytest.raises(
        FileExistsError, match="tiny/1 exists, and is never overwritten"
    ):
        tiny_run.translator().export(path)
    assert sorted((f, f.stat().st_mtime_ns) for f in path.rglob("*")) == before


def test_the_latest_version_is_the_largest_whole_number(tmp_path):
    for name in ("2", "10", "9", "011", ".12.partial", "thirteen"):
        (tmp_path / name).mkdir()
        if name != "011":  # An empty directory is no version.
            (tmp_path / name / "saved_model.pb").touch()
    assert latest_version(tmp_path) == tmp_path / "10"
    assert latest_version(tmp_path / "9") == tmp_path / "9"
    (tmp_path / "011" / "saved_model.pb").touch()
    assert latest_version(tmp_path) == tmp_path / "011"


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_without_a_saved_model_the_error_names_the_path(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match=f"{name} holds no SavedModel"):
        ExportedTranslator(tmp_path / name)
