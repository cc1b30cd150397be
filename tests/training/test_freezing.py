"""Frozen weights keep their bytes through everything that a run does."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import TrainingConfig, Transformer, TransformerConfig
from keras_transformer.training import dry_run, load_average
from keras_transformer.training.freezing import freeze
from keras_transformer.training.report import count_parameters
from keras_transformer.training.run_directory import RunDirectory
from tests import tiny_run

ROOT = Path(__file__).parents[2]
SIZES = dict(source_vocabulary_size=11, target_vocabulary_size=11, d_model=6)
TRANSFORMER = TransformerConfig(
    **SIZES, num_encoder_layers=2, num_decoder_layers=2, d_ff=7, num_heads=2,
    norm_first=True, positions="learned", max_positions=5, tied_embeddings="two-way",
)  # fmt: skip
UNTIED = TRANSFORMER.replace(tied_embeddings="none", output_bias=True)


def frozen(config, names):
    """The paths of the weights that are frozen, without the model's name."""
    model = Transformer(config)
    freeze(model, names)
    assert {id(v) for v in model.trainable_weights} == {
        id(v) for v in model.weights if v.trainable
    }
    return {v.path.partition("/")[2] for v in model.weights if not v.trainable}


def paths(config, *beginnings):
    """The paths of the weights that begin so."""
    every = (v.path.partition("/")[2] for v in Transformer(config).weights)
    return {path for path in every if path.startswith(beginnings)}


PARTS = {
    "encoder": (TRANSFORMER, ["encoder_layer_", "encoder_norm/"], 2 * 12 + 2),
    "decoder": (TRANSFORMER, ["decoder_layer_", "decoder_norm/"], 2 * 18 + 2),
    "embeddings": (TRANSFORMER, ["source_embedding/", "target_embedding/"], 4),
    "output": (TRANSFORMER, ["target_embedding/token_embedding/"], 1),
    "encoder_layer_1": (TRANSFORMER, ["encoder_layer_1/"], 12),
    "decoder_layer_0/cross_attention": (
        TRANSFORMER, ["decoder_layer_0/cross_attention/"], 4,
    ),
    " encoder , decoder_norm": (
        TRANSFORMER, ["encoder_layer_", "encoder_norm/", "decoder_norm/"], 28,
    ),
    "source_embedding,output": (UNTIED, ["source_embedding/", "output"], 4),
}  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize("names", PARTS)
def test_a_name_stands_for_its_weights(names):
    config, beginnings, count = PARTS[names]
    expected = paths(config, *beginnings)
    assert len(expected) == count
    assert frozen(config, names) == expected


def test_a_layer_is_found_by_the_end_of_its_path():
    expected = {path for path in paths(TRANSFORMER, "") if "/self_attention/" in path}
    assert len(expected) == 16
    assert frozen(TRANSFORMER, "self_attention") == expected


def test_a_shared_matrix_is_frozen_by_either_name_and_that_is_said():
    model = Transformer(tiny_run.CONFIG.model)
    for names in ("embeddings", "output"):
        expected = {"target_embedding/token_embedding/embeddings"}
        assert frozen(tiny_run.CONFIG.model, names) == expected
        freeze(model, names)
        words = count_parameters(model, names)
        assert "`tied_embeddings` is three-way, so that one frozen matrix is" in words
    assert words.startswith("5,376 of 597,376 parameters, without output; ")
    assert "tied" not in count_parameters(model, "embeddings,output")
    untied = Transformer(UNTIED)
    freeze(untied, "embeddings")
    assert "tied" not in count_parameters(untied, "embeddings")


@pytest.mark.parametrize("name", ("encodr", "encoder_layer_9", "layer", "kernel"))
def test_an_unknown_name_is_answered_with_those_that_exist(name):
    with pytest.raises(ValueError, match="must name parts") as raised:
        freeze(Transformer(TRANSFORMER), f"output,{name}")
    message = str(raised.value)
    assert message.endswith(f"Received: {name!r}")
    assert "(encoder, decoder, embeddings, output)" in message
    for layer in ("encoder_layer_1", "decoder_norm", "target_embedding", "feed_for"):
        assert layer in message


def test_something_must_be_left_to_train():
    with pytest.raises(ValueError, match="must leave weights to train.*two-way"):
        freeze(Transformer(TRANSFORMER), "encoder,decoder,embeddings")
    # Here the output matrix is the model's own.
    freeze(Transformer(UNTIED), "encoder,decoder,embeddings")


@pytest.mark.parametrize("names", ("", "encoder,", " , decoder"))
def test_an_empty_name_is_an_error(names):
    with pytest.raises(ValueError, match="`freeze` must be names with commas between"):
        TrainingConfig(freeze=names)


def test_a_dry_run_says_how_much_is_trained(tmp_path):
    training = tiny_run.CONFIG.training.replace(freeze="encoder,decoder/no")
    config, stream = tiny_run.CONFIG.replace(training=training), io.StringIO()
    with pytest.raises(ValueError, match="Received: 'decoder/no'"):
        dry_run(tiny_run.TRAIN, tmp_path, config)
    training = training.replace(freeze="encoder")
    config = config.replace(training=training)
    dry_run(tiny_run.TRAIN, tmp_path, config, console=Console(file=stream, width=200))
    assert "8,016 of 10,176 parameters, without encoder\n" in stream.getvalue()


@pytest.mark.parametrize(
    "backend",
    (
        "tensorflow",
        pytest.param("jax", marks=pytest.mark.slow),
        pytest.param("torch", marks=pytest.mark.slow),
    ),
)
def test_frozen_weights_are_the_same_bytes_after_a_run(backend):
    """With moving and other averages, weight decay, accumulation and resuming."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.training.frozen_run"], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-4000:]
    assert finished.stdout.splitlines()[-1] == "12 frozen, 19 trained, resumed"


def test_the_mean_of_equal_weights_is_their_bytes(tmp_path):
    model = Transformer(UNTIED)
    kernel = model.encoder_layers[0].feed_forward.hidden_dense.kernel
    values = np.full(kernel.shape, -0.0, "float32")
    values[0] = np.float32(1 / 3)
    kernel.assign(values)
    files = [tmp_path / f"{number}.weights.h5" for number in range(3)]
    for file in files:
        model.save_weights(file)
    kernel.assign(np.ones(kernel.shape))
    load_average(model, files)
    assert keras.ops.convert_to_numpy(kernel).tobytes() == values.tobytes()


def test_a_run_goes_on_with_the_same_weights_frozen(tmp_path):
    directory, data = RunDirectory(tmp_path / "run"), {"training": "", "validation": ""}
    config = tiny_run.CONFIG.replace(training=TrainingConfig(freeze="encoder"))
    config = config.replace(model=tiny_run.model().config)
    directory.set_up(config, data, tiny_run.tokenizers())
    assert directory.config_to_go_on(config, data) == config
    thawed = config.replace(training=TrainingConfig())
    with pytest.raises(ValueError, match="`freeze` is None and was 'encoder'"):
        directory.config_to_go_on(thawed, data)
