"""TensorFlow's own lines reach neither a user of the examples nor one of `quiet`."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer import quiet

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
QUIET = "keras_transformer.quiet"


def in_a_process(*words, cwd=None):
    """Runs Python as a shell does, where TensorFlow prints what it likes to."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True, env=environment, encoding="utf-8", cwd=cwd,
    )  # fmt: skip


def modules_of(program):
    """The modules that a program imports at its top, in order."""
    for node in ast.parse(program.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_tensorflow_quietly(program):
    modules = list(modules_of(program))
    is_program = "__main__" in program.read_text("utf-8")
    of_keras = [name for name in modules if name.split(".")[0].startswith("keras")]
    if is_program and of_keras:
        assert of_keras[0] == QUIET
        others = ("tensorflow", "numpy", "sklearn", "matplotlib")
        later = [name for name in modules if name.split(".")[0] in others]
        assert all(modules.index(QUIET) < modules.index(name) for name in later)


@pytest.mark.slow
def test_an_example_prints_its_own_lines_alone():
    example = ROOT / "examples" / "compose_layers.py"
    done = in_a_process(example, "--epochs", "1", "--rows", "64")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1/1 - ")


@pytest.mark.slow
def test_training_on_text_prints_its_own_lines_alone(tmp_path):
    example = ROOT / "examples" / "recurrent_translation.py"
    done = in_a_process(example, "--pairs", "200", "--epochs", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("before", "after"), [(None, "3"), ("0", "0")])
def test_later_lines_are_those_of_the_environment(before, after, monkeypatch, capfd):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if before is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", before)
    importlib.reload(quiet)
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == after
    os.write(2, b"later")
    assert capfd.readouterr().err == "later"
