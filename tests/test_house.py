"""How large the package is, and how far a reader has to walk to follow a job.

Ceilings only ever fall. `python -m tests.test_house fit` lists what a job runs.
"""

from __future__ import annotations

import cProfile
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"

# Files and lines, docstrings and blank lines counted; "." is the top level.
FOLDERS = {
    ".": (11, 1584), "bulk": (4, 704), "cli": (5, 969), "config": (6, 1058),
    "decoding": (4, 914), "exact_training": (6, 716), "export": (7, 1336),
    "generation": (6, 1116), "importers": (6, 993), "kernels": (9, 1218),
    "layers": (15, 3119), "lite": (2, 449), "models": (10, 1650),
    "playground": (3, 293), "plots": (3, 463), "quickstart": (2, 463),
    "serving": (5, 634), "testing": (6, 577), "text": (8, 1767),
    "training": (11, 2639), "tests": (123, 28188),
}  # fmt: skip
# Functions of the package that run, and the files that they stand in.
JOBS = {
    "encoder_layer": (24, 9), "fit": (120, 20), "translate": (142, 24),
    "export": (215, 31), "train_verb": (453, 53),
}  # fmt: skip
_ONE_LAYER = "--num-encoder-layers=1", "--num-decoder-layers=1"
IN_PACKAGE = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("name", [".", "tests", *IN_PACKAGE])
def test_folder_is_no_larger(name):
    folder = ROOT / "tests" if name == "tests" else PACKAGE / name
    paths = list(folder.glob("*.py") if name == "." else folder.rglob("*.py"))
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in paths)
    most = FOLDERS[name]
    assert len(paths) <= most[0] and lines <= most[1], f"{len(paths)} files, {lines}"


@pytest.fixture(scope="module")
def walked():
    """What each job ran. The verb sets TensorFlow's threads: a process of its own."""
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    details = dict(env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    command = [sys.executable, "-m", "tests.test_house"]
    jobs = [name for name in JOBS if name != "train_verb"], ["train_verb"]
    running = [subprocess.Popen([*command, *names], **details) for names in jobs]
    rows = [process.communicate()[0].splitlines()[-1] for process in running]
    return {name: seen for row in rows for name, seen in json.loads(row).items()}


@pytest.mark.parametrize("name", JOBS)
def test_job_runs_through_no_more(walked, name):
    functions, files = len(walked[name]), len({file for file, _ in walked[name]})
    most = JOBS[name]
    assert functions <= most[0] and files <= most[1], f"{functions} in {files} files"


def functions_of(job):
    """Sorted pairs of file and qualified name of the functions that `job()` ran."""
    profile, home = cProfile.Profile(builtins=False), str(PACKAGE) + os.sep
    profile.runcall(job)
    codes = [entry.code for entry in profile.getstats()]
    is_function = inspect.CO_OPTIMIZED  # No class body.
    found = {
        (code.co_filename.removeprefix(home), code.co_qualname)
        for code in codes
        if code.co_filename.startswith(home) and code.co_flags & is_function
    }
    return sorted(pair for pair in found if not pair[1].endswith("<lambda>"))


def walk(is_verb, folder):
    """Runs the verb `train`, or the other jobs; returns the functions of each."""
    import keras_transformer as kt
    from keras_transformer.cli import main
    from keras_transformer.training import train  # noqa: F401 - not counted: importing

    texts = [[f"{a}{i} of {b} {i % 7}" for i in range(300)] for a, b in ("xy", "zw")]
    if is_verb:
        pairs = folder / "pairs.tsv"
        pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(*texts, strict=True)))
        verb = f"--traceback train --train {pairs} --run {folder}/run --preset tiny"
        words = [*verb.split(), "--vocabulary-size=300", "--epochs=1", *_ONE_LAYER]
        return {"train_verb": functions_of(lambda: main(words))}
    layer, inputs = kt.EncoderLayer(num_heads=2, d_ff=8), np.ones((2, 5, 6), "float32")
    layer(inputs)
    sizes = dict.fromkeys(("source_vocabulary_size", "target_vocabulary_size"), 300)
    sizes |= dict(num_encoder_layers=1, num_decoder_layers=1)
    model = kt.Transformer(kt.TransformerConfig.preset("tiny", **sizes))
    loss, adam = kt.MaskedCrossentropy(), kt.Adam(kt.TransformerSchedule(128))
    model.compile(adam, loss, metrics=[kt.MaskedAccuracy()])
    ids = np.arange(4, 32, dtype="int32").reshape(4, 7)
    sizes = kt.TokenizerConfig(vocabulary_size=300)
    tokenizers = kt.learn_tokenizers(zip(*texts, strict=True), sizes)
    translator = kt.Translator(model, tokenizers)
    jobs = {
        "encoder_layer": lambda: layer(inputs),
        "fit": lambda: model.fit((ids, ids), ids, batch_size=4, verbose=0),
        "translate": lambda: translator(["word1 of 1"]),
        "export": lambda: translator.export(folder / "model" / "1"),
    }
    return {name: functions_of(job) for name, job in jobs.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = walk("train_verb" in sys.argv, Path(temporary))
    print(json.dumps({name: found[name] for name in sys.argv[1:]}))
