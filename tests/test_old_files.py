"""Files that earlier versions wrote still load, and give the numbers they gave then.

old_files/version-0.1.0.tar.xz holds what commit bb30d38 wrote: a model of each family
and one with every layer, with random weights, an input and the output of each; a run
that was killed within its third epoch; and the same run after its sixth and last.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import keras
import numpy as np
import pytest
from rich.console import Console

import keras_transformer
from keras_transformer import RunConfig, Translator, open_pairs, train
from tests import tiny_run

ARCHIVE = Path(__file__).parent / "old_files" / "version-0.1.0.tar.xz"
MODELS = (
    "all_layers",
    "image_classifier",
    "language_model",
    "masked_language_model",
    "node_classifier",
    "recurrent",
    "tagger",
    "text_classifier",
    "transformer",
    "transformer_learned",
)
# Processors round differently.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def old_files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory


def test_every_model_is_tried(old_files):
    assert {path.stem for path in old_files.glob("models/*.keras")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_old_model_gives_the_output_of_then(old_files, name):
    model = keras.saving.load_model(old_files / "models" / f"{name}.keras")
    with np.load(old_files / "models" / "expected.npz") as arrays:
        prefix = f"{name}_input_"
        inputs = [arrays[key] for key in sorted(arrays) if key.startswith(prefix)]
        expected = arrays[f"{name}_output"]
    output = model(inputs[0] if len(inputs) == 1 else inputs)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(output), expected, **CLOSE)


def test_old_model_comes_with_its_training(old_files):
    model = keras.saving.load_model(old_files / "models" / "transformer.keras")
    assert isinstance(model.optimizer, keras_transformer.Adam)
    assert int(model.optimizer.iterations) == 1
    assert model.loss.label_smoothing == 0.1


def test_old_run_scores_as_then(old_files):
    translator = Translator.load(old_files / "finished")
    expected = json.loads((old_files / "finished" / "expected.json").read_text())
    sources, targets = zip(*tiny_run.VALID, strict=True)
    scores = [s.log_probability for s in translator.score(sources, targets)]
    np.testing.assert_allclose(scores, expected["log_probabilities"], rtol=1e-5)
    # Its strings may differ where processors round differently: it learned little.
    assert all(translator(sources))


def test_old_interrupted_run_goes_on_to_the_end_of_then(old_files):
    """Weights, moments, callbacks and place in the data are all those of the state."""
    run = old_files / "interrupted"
    remembered = _callbacks_of_state(run)
    config = RunConfig.load(old_files / "finished" / "config.json")
    translator = train(
        open_pairs(old_files / "train.tsv"),
        run,
        config,
        open_pairs(old_files / "valid.tsv"),
        Console(quiet=True),
    )
    finished = keras.saving.load_model(old_files / "finished" / "model.keras")
    for weight, expected in zip(
        translator.model.weights, finished.weights, strict=True
    ):
        np.testing.assert_allclose(weight, expected, **CLOSE, err_msg=weight.path)
    # The rate of tokens counts only what was done since.
    assert remembered - {"TokenRate"} <= _callbacks_of_state(run)
    assert len(remembered) > 5
    columns = {"epoch": 0, "val_loss": -2}
    assert _column(run, columns["epoch"]) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(
        _column(run, columns["val_loss"]),
        _column(old_files / "finished", columns["val_loss"]),
        rtol=1e-5,
    )


def _callbacks_of_state(run):
    """Names of the callbacks that the newest state of a run remembers."""
    newest = max(run.glob("states/update-*.npz"))
    with np.load(newest, allow_pickle=False) as archive:
        return set(json.loads(archive["header"].tobytes())["callbacks"])


def _column(run, place):
    lines = (run / "log.csv").read_text().splitlines()[1:]
    return [float(line.split(",")[place]) for line in lines]
