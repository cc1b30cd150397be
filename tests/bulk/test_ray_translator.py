"""Workers of Ray give what one process gives, and go on where it stopped."""

from __future__ import annotations

import sys

import pytest

from keras_transformer import ExportedTranslator
from keras_transformer.bulk import RayTranslator, ray_translator, translate_file
from tests import tiny_run

LINES = [*(source for source, _ in tiny_run.PAIRS), "", "  ", "a\u2028dog", "Bär Bär"]


@pytest.fixture
def model(tmp_path_factory):
    return tiny_run.saved_model(tmp_path_factory)


@pytest.fixture
def ray():
    """Ray, not started, and shut down after the test."""
    module = pytest.importorskip("ray")
    yield module
    module.shutdown()


def test_without_ray_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"\[ray\]"):
        RayTranslator(tmp_path, 2)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_workers_go_on_with_what_one_process_was_interrupted_in(
    ray, model, tmp_path, monkeypatch, workers
):
    monkeypatch.setattr(ray_translator, "_PART", 5)
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(line + "\n" for line in LINES), "utf-8")
    one = ExportedTranslator(model)
    translate_file(one, source, tmp_path / "expected.txt", window=7)
    windows = []

    def interrupted(texts):
        if len(windows) == 3:
            raise KeyboardInterrupt
        windows.append(texts)
        return one(texts)

    with pytest.raises(KeyboardInterrupt):
        translate_file(interrupted, source, output, window=7)
    many = RayTranslator(model, workers)
    assert many.path == one.path
    assert translate_file(many, source, output, window=23).resumed == 21
    assert output.read_bytes() == (tmp_path / "expected.txt").read_bytes()
    with pytest.raises(ValueError, match="workers=9, cpus=1"):
        RayTranslator(model, 9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, of Ray and of Python.
def test_a_worker_that_fails_is_one_line(ray, model, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "saved_model.pb").write_bytes(b"junk")
    with pytest.raises(RuntimeError, match="^A Ray worker failed: .*Cannot parse.*$"):
        RayTranslator(tmp_path / "bad", 1)(["a"])
    for options in ({"workers": 0}, {"workers": 1, "cpus": 0}):
        with pytest.raises(ValueError, match="=0$"):
            RayTranslator(model, **options)
