"""How large the package is, and how far a reader walks to follow a job.

Size is counted in tokens of Python without comments and docstrings, which no layout
changes. A walk is counted in switches of file: two functions that a job visits for the
first time one after the other, in different files. `.ci/run` calls this file;
`python -m tests.test_house fit` lists the walk of `fit`.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import tokenize
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"

# Tokens.
MOST_OF_A_DOOR = 23_000
WHOLE = 136_714
# Switches of file. The threads of `train` do not always meet alike: 3 more or less.
WALKS = {
    "encoder_layer": 12,
    "fit": 58,
    "translate": 81,
    "train_verb": 318,
}

NO_TOKENS = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
HAVE_DOCSTRINGS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NAMELESS = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


def tokens(path):
    """The number of tokens of a file, without comments and docstrings."""
    docstrings = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, HAVE_DOCSTRINGS) and ast.get_docstring(node) is not None
    }
    with path.open("rb") as file:
        return sum(
            token.type not in NO_TOKENS
            and not (token.type == tokenize.STRING and token.start[0] in docstrings)
            for token in tokenize.tokenize(file.readline)
        )


def sizes():
    """The tokens of each door."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        door = parts[0] if len(parts) > 1 else "."
        found[door] = found.get(door, 0) + tokens(path)
    return found


def test_no_door_and_no_package_is_too_large():
    found = sizes()
    assert max(found.values()) <= MOST_OF_A_DOOR
    assert sum(found.values()) <= WHOLE


@pytest.fixture(scope="module")
def walked():
    """The walk of each job. The verb sets TensorFlow's threads: its own process."""
    environment = os.environ | {"KERAS_BACKEND": "tensorflow"}
    details = dict(env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    command = [sys.executable, "-m", "tests.test_house"]
    jobs = [name for name in WALKS if name != "train_verb"], ["train_verb"]
    running = [subprocess.Popen([*command, *names], **details) for names in jobs]
    rows = [process.communicate()[0].splitlines()[-1] for process in running]
    return {name: seen for row in rows for name, seen in json.loads(row).items()}


@pytest.mark.parametrize("name", WALKS)
def test_a_walk_is_no_longer_than_it_was(walked, name):
    assert switches(walked[name]) <= WALKS[name]


def switches(walk):
    """How often two functions one after the other stand in different files."""
    files = [file for file, _ in walk]
    return sum(a != b for a, b in zip(files, files[1:], strict=False))


def walk_of(job):
    """Files and names of the functions of the package, in the order of first visits."""
    home = str(PACKAGE) + os.sep
    walk = {}

    def profile(frame, event, _):
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # No class body.
        is_ours = code.co_filename.startswith(home) and code.co_name not in NAMELESS
        if event == "call" and is_ours and is_function:
            walk[code.co_filename.removeprefix(home), code.co_qualname] = None

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        job()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(walk)


def walks(is_verb, folder):
    """The walk of the verb `train`, or those of the other jobs."""
    import keras_transformer as kt
    from keras_transformer.apps.cli import main

    texts = [[f"{a}{i} of {b} {i % 7}" for i in range(300)] for a, b in ("xy", "zw")]
    if is_verb:
        pairs = folder / "pairs.tsv"
        pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(*texts, strict=True)))
        words = f"--traceback train --train {pairs} --valid {pairs} --run {folder}/run"
        words += " --preset tiny --vocabulary-size=300 --epochs=1"
        words += " --num-encoder-layers=1 --num-decoder-layers=1"
        return {"train_verb": walk_of(lambda: main(words.split()))}
    layer = kt.EncoderLayer(num_heads=2, d_ff=8)
    inputs = np.ones((2, 5, 6), "float32")
    layer(inputs)
    config = kt.TransformerConfig.preset(
        "tiny",
        source_vocabulary_size=300,
        target_vocabulary_size=300,
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    model = kt.Transformer(config)
    adam = kt.Adam(kt.TransformerSchedule(128))
    model.compile(adam, kt.MaskedCrossentropy(), metrics=[kt.MaskedAccuracy()])
    ids = np.arange(4, 32, dtype="int32").reshape(4, 7)
    tokenizers = kt.learn_tokenizers(
        zip(*texts, strict=True), kt.TokenizerConfig(vocabulary_size=300)
    )
    translator = kt.Translator(model, tokenizers)
    jobs = {
        "encoder_layer": lambda: layer(inputs),
        "fit": lambda: model.fit((ids, ids), ids, batch_size=4, verbose=0),
        "translate": lambda: translator(["word1 of 1"]),
    }
    return {name: walk_of(job) for name, job in jobs.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = walks("train_verb" in sys.argv, Path(temporary))
    print(json.dumps({name: found[name] for name in sys.argv[1:]}))
