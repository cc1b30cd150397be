"""Exports answer as the live translator does, LiteRT and ONNX without TensorFlow."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import (
    ExportedTranslator,
    LiteTranslator,
    Translator,
    load,
)
from keras_transformer.apps import cli
from tests import tiny_run

TEXTS = [
    "the old man sleeps.",
    "a bear",
    "",
    "the big bird sings. the young dog runs. " * 3,  # Longer than the longest source.
    "  the  good dög 🐕 runs.",
    "   ",
]
PREFIXES = ["der", "ein Bär", "", "die", "der gute", ""]


@pytest.fixture(scope="module")
def live():
    return tiny_run.translator()


@pytest.fixture(scope="module", params=["lite_export", "onnx_export"])
def export(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def translator(export):
    return LiteTranslator(export, threads=2)


def assert_same(found, expected):
    """Compares results: strings and ids exactly, numbers to 1e-4."""
    assert type(found) is type(expected)
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    else:
        assert found == expected


@pytest.mark.parametrize("batch_size", [1, 4])
def test_translations_are_the_live_ones(translator, live, batch_size, monkeypatch):
    monkeypatch.setattr(translator, "batch_size", batch_size)
    found = translator(TEXTS)
    assert found == live(TEXTS)
    assert len(set(found)) >= 3  # The texts have different translations.


@pytest.fixture(scope="module")
def exported(saved_model):
    translator = ExportedTranslator(saved_model.parent)
    assert translator.path == saved_model
    return translator


# LiteRT draws other numbers, and a SavedModel has the mean of heads alone.
BOTH = "translator", "exported"
METHODS = [
    ("__call__", (TEXTS,), BOTH), ("translate", (TEXTS,), BOTH),
    ("nbest", (TEXTS, 3), BOTH), ("complete", (TEXTS, PREFIXES), BOTH),
    ("sample", (TEXTS, 0.0), BOTH), ("sample", (TEXTS, 1.0, 5), ["exported"]),
    ("score", (TEXTS, [text[::-1] for text in TEXTS]), BOTH),
    ("align", (TEXTS,), BOTH), ("align", (TEXTS, True), ["translator"]),
]  # fmt: skip


@pytest.mark.parametrize(("method", "arguments", "exports"), METHODS)
def test_every_method_gives_the_live_results(
    live, translator, exported, method, arguments, exports, monkeypatch
):
    expected = getattr(live, method)(*arguments)
    for name in exports:
        one = {"translator": translator, "exported": exported}[name]
        monkeypatch.setattr(one, "batch_size", 3)
        assert_same(getattr(one, method)(*arguments), expected)


def test_a_drawing_is_its_seeds_own_and_as_likely_as_the_model_says(
    translator, live, monkeypatch
):
    drawn = translator.sample(TEXTS[:1] * 40, 1.0, seed=3)
    monkeypatch.setattr(translator, "batch_size", 7)
    assert drawn[5:] == translator.sample(TEXTS[:1] * 35, 1.0, seed=8)
    assert len(set(drawn)) > 10
    unlikely = [found.score for found in translator.sample(TEXTS[:1] * 40, 3.0)]
    assert np.mean(unlikely) < np.mean([found.score for found in drawn])
    with pytest.raises(ValueError, match="non-negative"):
        translator.sample(["a bear"], seed=-1)


def test_it_runs_as_a_script_without_the_package(export, live):
    blocked = ("keras_transformer", "keras", "tensorflow")
    program = (
        "import sys, runpy\n"
        f"sys.modules.update(dict.fromkeys({blocked}))\n"
        "sys.argv = sys.argv[1:]\n"
        f"sys.path.insert(0, {str(export)!r})\n"  # As `python FILE` does.
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )

    def run(*words, **options):
        script = export / "translate.py"
        return tiny_run.in_a_process("-c", program, script, *words, **options)

    done = run(*TEXTS[:2], "--threads", "1")
    assert (done.returncode, done.stdout.splitlines()) == (0, live(TEXTS[:2]))
    done = run(input="\n".join(TEXTS[:3]) + "\n")
    assert (done.returncode, done.stdout.splitlines()) == (0, live(TEXTS[:3]))
    letter = "the dog runs.\n\nthe bear sings."
    done = run(letter)
    assert done.stdout == live([letter])[0] + "\n"
    done = run("--threads", "0")
    assert done.returncode == 1
    assert done.stderr == "error: `threads` must be at least 1. Received: threads=0\n"
    program = (
        "import sys, keras_transformer.formats\n"
        "print({'keras', 'tensorflow', 'sentencepiece'} & set(sys.modules))"
    )
    assert tiny_run.in_a_process("-c", program).stdout == "set()\n"


def test_the_command_line_takes_it_as_any_other(export, live, tmp_path, capsys):
    assert cli.main(["translate", str(export), *TEXTS[:2]]) == 0
    assert capsys.readouterr().out.splitlines() == live(TEXTS[:2])
    test = tiny_run.write_pairs(tmp_path / "test.tsv", tiny_run.VALID[:3])
    assert cli.main(["evaluate", str(export), "--test", str(test)]) == 0
    assert "BLEU 0" in capsys.readouterr().out


def test_it_takes_the_cores_that_the_process_may_use(lite_export, monkeypatch):
    from ai_edge_litert import interpreter

    make, threads = interpreter.Interpreter, []

    def made(path, num_threads):
        threads.append(num_threads)
        return make(path, num_threads=num_threads)

    monkeypatch.setattr(interpreter, "Interpreter", made)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5, 7}, raising=False)
    LiteTranslator(lite_export)
    LiteTranslator(lite_export, threads=2)
    assert threads == [3, 2]


def test_a_runtime_that_is_not_installed_is_named(export, monkeypatch):
    for name in ("ai_edge_litert.interpreter", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError, match=": pip install (ai-edge-lite|onnxrun).*piece"
    ):
        LiteTranslator(export)


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def another_format(path):
    description = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(description | {"format": "another"}))


def without(*keys):
    """Returns what takes some keys out of a JSON file."""

    def write(path):
        values = json.loads(path.read_text("utf-8"))
        kept = {key: value for key, value in values.items() if key not in keys}
        path.write_text(json.dumps(kept), "utf-8")

    return write


MODEL, FACTS = "model.tflite", "translator.json"
# The file, what happens to it, the error and its words.
DAMAGED = [
    (MODEL, change_a_byte, ValueError, r"model\.tflite is not the file"),
    (MODEL, lambda path: os.truncate(path, 1000), ValueError, r"model\.tflite is not"),
    (MODEL, Path.unlink, FileNotFoundError, r"lacks model\.tflite"),
    (
        FACTS,
        another_format,
        ValueError,
        r"litert\.1 or .*onnx\.1\. Export it.*another$",
    ),
    (FACTS, lambda path: path.write_text('{"format": '), ValueError, "is damaged"),
    (FACTS, lambda path: path.write_text('["format"]'), ValueError, "is damaged"),
    (FACTS, without("files"), ValueError, r"json lacks files\. Export it again"),
    (FACTS, without("n_best", "files"), ValueError, "json lacks files, n_best"),
    (FACTS, Path.unlink, FileNotFoundError, "holds no LiteRT or ONNX export"),
]


@pytest.mark.parametrize(("name", "damage", "error", "words"), DAMAGED)
def test_what_is_no_whole_export_is_refused(
    lite_export, tmp_path, name, damage, error, words
):
    copy = shutil.copytree(lite_export, tmp_path / "copy")
    damage(copy / name)
    with pytest.raises(error, match=words):
        LiteTranslator(copy)


def test_they_check_what_they_are_asked(translator, exported):
    for one in (translator, exported):
        assert one([]) == []
        with pytest.raises(ValueError, match="`n_best` must be from 1 to 3"):
            one.nbest(["a"], 4)
        with pytest.raises(TypeError, match="`texts` must be a sequence of strings"):
            one.nbest("a text")
    with pytest.raises(ValueError, match="`per_head` must be False"):
        exported.align(["a"], per_head=True)


def test_one_function_opens_all_that_translates(
    run_directory, saved_model, lite_export, tmp_path
):
    for path, kind in (
        (run_directory, Translator),
        (str(saved_model), ExportedTranslator),
        (saved_model.parent, ExportedTranslator),
        (lite_export, LiteTranslator),
    ):
        translator = load(path)
        assert type(translator) is kind
        if kind is not Translator:
            assert translator.path in (saved_model, lite_export)
    (tmp_path / "file").touch()
    for name, words in (
        ("missing", "nothing is there"),
        ("file", "a file"),
        ("", "a directory with file"),
    ):
        with pytest.raises(FileNotFoundError, match=f"must be a .* run.*: {words}$"):
            load(tmp_path / name)
