"""The code in the README runs as it stands there."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.parser import make_parser
from keras_transformer.pipeline import INPUTS
from tests import tiny_run

README = Path(__file__).parents[1] / "README.md"


def python_blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_each_of_the_three_examples_runs(tmp_path, monkeypatch, rng):
    layers, fit, serve = python_blocks()
    monkeypatch.chdir(tmp_path)

    made = {}
    exec(layers, made)
    assert made["model"](np.array([[3, 4, 0]])).shape == (1, 2)

    ids = rng.integers(4, 1000, (3, 5)).astype("int32")
    made = {"source": ids, "target_in": ids[:, :3], "target_out": ids[:, 1:4]}
    exec(fit.replace("epochs=10", "epochs=1, verbose=0"), made)
    assert made["model"].optimizer.iterations == 1

    tiny_run.translator().save("runs/en-de")
    made = {}
    exec(serve, made)
    assert Path("saved_models/en-de/1/saved_model.pb").is_file()


def section(title):
    return README.read_text("utf-8").split(f"## {title}\n")[1].split("\n## ")[0]


def commands():
    blocks = re.findall(r"```bash\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [
        line.split("keras-transformer ")[1]
        for line in lines
        if re.search(r"(^|/)keras-transformer ", line)
    ]


@pytest.mark.parametrize("command", commands())
def test_every_command_is_understood(command):
    options = make_parser().parse_args(shlex.split(command))
    assert options.verb == command.split()[0]


def test_every_verb_is_shown():
    shown = {command.split()[0] for command in commands()}
    running = {"quickstart", "train", "average", "evaluate"}
    assert shown == running | {"translate", "export", "serve", "plot"}


def test_the_signatures_and_their_inputs_are_those_of_an_export():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section("Serve it"), re.MULTILINE)
    inputs = {name: re.findall(r"`(\w+)`", cell) for name, cell in rows}
    assert inputs == {name: list(specs) for name, specs in INPUTS.items()}


def test_every_path_in_the_map_exists():
    rows = re.findall(r"^\| (`.*?`) \|", section("What is where"), re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`(\S+)`", row)]
    known = [
        path
        for path in paths
        if (README.parent / path).exists()
        or (README.parent / "keras_transformer" / path).exists()
    ]
    assert known == paths
    assert len(paths) > 12
