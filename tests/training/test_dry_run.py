"""What a run says that it would do, against what it does."""

from __future__ import annotations

import collections
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from keras_transformer import train
from keras_transformer.training import dry_run
from tests.text import foreign_tokenizers as foreign
from tests.tiny_run import CONFIG, TRAIN, VALID

ROOT = Path(__file__).parents[2]


def said(directory, config=CONFIG, text=TRAIN, validation=VALID):
    """The lines of a dry run."""
    stream = io.StringIO()
    dry_run(text, directory, config, validation, Console(file=stream, width=200))
    return stream.getvalue().splitlines()


def test_a_dry_run_names_everything_and_writes_nothing(tmp_path):
    lines = said(tmp_path / "run")
    assert lines[1:3] == [
        "training data: 40 pairs, 4 batches, no bad lines",
        "validation data: 8 pairs, 1 batches, no bad lines",
    ]
    tokens = re.fullmatch(r"a batch has (\d+) tokens of both sides on .*", lines[3])
    assert 256 < int(tokens[1]) < 2 * 256
    assert lines[5] == (
        "batches (sentences x tokens): 1 of 16 x 16, 2 of 12 x 20, 1 of 10 x 24"
    )
    assert lines[6] == "XLA compiles nothing: one program serves every shape"
    assert lines[7] == (
        "Transformer: num_encoder_layers 1, num_decoder_layers 1, d_model 16, d_ff 32, "
        "num_heads 2; 300 pieces; 10,176 parameters"
    )
    assert lines[-1] == "nothing was trained or written: this was a dry run"
    assert not list(tmp_path.iterdir())


def test_without_validation_and_with_one_shape(tmp_path):
    config = CONFIG.replace(
        data=CONFIG.data.replace(batch_shapes=1),
        training=CONFIG.training.replace(jit_compile=True),
    )
    lines = said(tmp_path, config, validation=None)
    assert "XLA compiles the training step once" in lines


def test_bad_data_is_an_error_here_too(tmp_path):
    config = CONFIG.replace(data=CONFIG.data.replace(max_length=2))
    with pytest.raises(ValueError, match="no good pair"):
        said(tmp_path / "run", config)


REFUSED = {
    "`patience` needs validation pairs": ({"patience": 3}, {}),
    "The source tokenizer cannot be exported: a tokenizer of another": (
        {"export_best": True}, {"validation": VALID, "tokenizers": foreign.whole_words},
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_train_refuses_is_refused(tmp_path, message):
    training, given = REFUSED[message]
    config = CONFIG.replace(training=CONFIG.training.replace(**training))
    if "tokenizers" in given:
        given = given | {"tokenizers": given["tokenizers"]()}
    for function in (dry_run, train):
        with pytest.raises(ValueError, match=message):
            function(TRAIN, tmp_path / "run", config, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ("jax", "tensorflow"))
def test_xla_compiles_each_step_as_often_as_was_said(tmp_path, backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.training.compiled_run", str(tmp_path)]
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    lines = (tmp_path / "dry_run.txt").read_text("utf-8")
    expected = "XLA compiles the training step 2 times and the validation step 2 times"
    assert expected in lines
    # TensorFlow gives both steps' functions one name and a number.
    steps = re.compile(r"(jit_\w+_step|one_step_on_data_\d+).*before_optim")
    found = (steps.search(path.name) for path in tmp_path.iterdir())
    counts = collections.Counter(match.group(1) for match in found if match)
    assert list(counts.values()) == [2, 2], json.dumps(counts)


@pytest.mark.slow
def test_the_estimate_of_memory_is_near_what_xla_plans(tmp_path):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    environment = os.environ | {"KERAS_BACKEND": "jax", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.training.planned_memory"]
    finished = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    for size in json.loads(finished.stdout.splitlines()[-1]):
        assert size["estimate"] == pytest.approx(size["planned"], rel=0.05), size
