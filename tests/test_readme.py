"""The code in the README runs as it stands there."""

import re
from pathlib import Path

import numpy as np

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


def test_every_path_in_the_map_exists():
    rows = re.findall(r"^\| (`.*?`) \|", README.read_text("utf-8"), re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`(\S+)`", row)]
    known = [
        path
        for path in paths
        if (README.parent / path).exists()
        or (README.parent / "keras_transformer" / path).exists()
    ]
    assert known == paths
    assert len(paths) > 12
