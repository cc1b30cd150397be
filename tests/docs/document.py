"""The code of a page, run as it is, with models smaller than the reader's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np

from keras_transformer.apps import cli
from tests import tiny_run
from tests.formats import foreign

ROOT = Path(__file__).parents[2]
# Commands that need an installation, Docker, a server or half an hour. Files named
# after the examples run those, tests/apps/serving runs the server.
NOT_RUN = (
    "python3 -m venv", "pip install", "docker compose ",
    "keras-transformer serve", "curl ", "cut ",
    "python examples/", "python benchmarks/", "node examples/", "kubectl ",
    "keras-transformer train --preset small --train train.en-fr.tsv.gz",
    "keras-transformer export runs/a runs/b runs/c",
    "keras-transformer distill runs/a runs/b",
)  # fmt: skip
TINY = (
    "--num-encoder-layers 1 --num-decoder-layers 1 --d-model 16 --d-ff 32 "
    "--num-heads 2 --vocabulary-size 300 --batch-tokens 4096 --epochs 3 "
    "--beam-size 3"
).split()
# What a model of the reader's is made smaller by.
SMALLER = {
    "norm_first=True": "norm_first=True, num_encoder_layers=1, num_decoder_layers=1, "
    "d_model=16, d_ff=32, num_heads=2",
    "vocabulary_size=4000": "vocabulary_size=300",
    'preset("tiny", epochs=20': 'preset("tiny", num_encoder_layers=1, '
    "num_decoder_layers=1, d_model=16, d_ff=32, num_heads=2, vocabulary_size=300, "
    "epochs=2",
    "epochs=20": "epochs=2",
}


def blocks(document):
    """The language and text of each block, in order."""
    text = document.read_text("utf-8")
    return re.findall(r"```(bash|python)\n(.*?)```", text, re.DOTALL)


def commands(document):
    """Each command of the page's blocks for a shell, on one line."""
    text = "".join(block for language, block in blocks(document) if language == "bash")
    return text.replace("\\\n", " ").splitlines()


def write_files():
    """What a reader has: the files that the commands name."""
    for split, pairs in (
        ("train", tiny_run.TRAIN),
        ("valid", tiny_run.VALID),
        ("test", tiny_run.VALID),
        ("domain", tiny_run.VALID),
    ):
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            text = "".join(line + "\n" for line in lines)
            Path(f"{split}.{language}").write_text(text, encoding="utf-8")
    tiny_run.write_pairs(Path("train.tsv.gz"))
    tiny_run.write_pairs(Path("corrections.tsv"), tiny_run.VALID)
    rows = "".join(f'"{source}","{target}"\n' for source, target in tiny_run.TRAIN)
    Path("train.csv").write_text("en,de\n" + rows, encoding="utf-8")
    Path("news.en.gz").write_bytes(Path("test.en").read_bytes())
    Path("news.en").write_bytes(Path("test.en").read_bytes())
    foreign.write_opus(Path("opus-2020-02-26"), np.random.default_rng(3))


def run(document, without=(), smaller=SMALLER):
    """Runs a page's blocks in order, in the present directory.

    Args:
        document: A page.
        without: Verbs whose commands are left out.
        smaller: What the code of the reader's is made smaller by.

    Returns:
        The names that its Python defines and the verbs of the commands that were run.
    """
    names, ran = {}, []
    for language, block in blocks(document):
        if language == "python":
            for large, small in smaller.items():
                block = block.replace(large, small)
            exec(block, names)
            for call, shape in re.findall(r"^(\S.*)\.shape  # (\(.*\))$", block, re.M):
                assert str(tuple(eval(call, names).shape)) == shape, call
            for call, text in re.findall(r"^(\S.*\))  # ('.*?')", block, re.M):
                assert repr(eval(call, names)) == text, call
            continue
        for command in block.replace("\\\n", " ").splitlines():
            if command.startswith(NOT_RUN) or "--ray-workers" in command:
                continue
            program, *words = shlex.split(command)
            assert program == "keras-transformer", command
            if words[0] in without:
                continue
            words += TINY if words[0] == "train" and "--init" not in words else []
            assert cli.main(words) == 0, command
            ran.append(words[0])
    return names, ran
