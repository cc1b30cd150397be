"""Checkpoints, their mean, and a new run made of it."""

from __future__ import annotations

import shutil

import keras
import numpy as np
import pytest

from keras_transformer import RunConfig, Transformer, Translator
from keras_transformer.cli import main
from keras_transformer.training import average_run, load_average
from keras_transformer.training.averages import checkpoints_in, save_checkpoint
from tests import tiny_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was killed: three checkpoints of random weights, no model.keras."""
    run = tmp_path_factory.mktemp("runs") / "killed"
    size = tiny_run.tokenizers().source.vocabulary_size
    config = tiny_run.CONFIG.replace(
        model=tiny_run.CONFIG.model.replace(
            source_vocabulary_size=size, target_vocabulary_size=size
        )
    )
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text(config.to_json(), encoding="utf-8")
    tiny_run.tokenizers().save(run / "tokenizer")
    rng, model = np.random.default_rng(5), Transformer(config.model)
    for step in (8, 9, 10):
        model.set_weights([rng.standard_normal(w.shape) for w in model.get_weights()])
        model.save_weights(run / "checkpoints" / f"step-{step:09d}.weights.h5")
    return run


def weights_of(path, run):
    model = Transformer(RunConfig.load(run / "config.json").model)
    model.load_weights(path)
    return model.get_weights()


def checkpoints(run, *steps):
    return [run / "checkpoints" / f"step-{step:09d}.weights.h5" for step in steps]


def assert_is_mean(output, run, *steps):
    """Checks the weights of `output` against NumPy's mean in float64."""
    each = [weights_of(path, run) for path in checkpoints(run, *steps)]
    found = keras.models.load_model(output / "model.keras").get_weights()
    for weight, *values in zip(found, *each, strict=True):
        mean = np.mean(np.stack(values).astype("float64"), axis=0)
        np.testing.assert_array_equal(weight, mean.astype("float32"))


def test_the_mean_of_all_checkpoints_is_a_run_that_translates(run, tmp_path):
    paths = average_run(run, tmp_path / "mean")
    assert paths == checkpoints(run, 8, 9, 10)
    assert_is_mean(tmp_path / "mean", run, 8, 9, 10)
    names = sorted(path.name for path in (tmp_path / "mean").iterdir())
    assert names == [
        "config.json", "decoding.json", "model.keras", "tokenizer", "tokenizer.sha256",
    ]  # fmt: skip
    translator = Translator.load(tmp_path / "mean")
    assert translator.config == tiny_run.CONFIG.decoding
    assert len(translator(["the old man sleeps."])) == 1


def test_the_mean_of_the_last_or_of_given_checkpoints(run, tmp_path):
    assert average_run(run, tmp_path / "a", last=2) == checkpoints(run, 9, 10)
    assert_is_mean(tmp_path / "a", run, 9, 10)
    average_run(run, tmp_path / "b", checkpoints=checkpoints(run, 8, 10))
    assert_is_mean(tmp_path / "b", run, 8, 10)


@pytest.mark.slow
def test_the_command_line_makes_what_evaluate_reads(run, tmp_path, capsys):
    output = tmp_path / "mean"
    command = ["average", str(run), "--output", str(output)]
    assert main([*command, "--last", "2"]) == 0
    names = "step-000000009.weights.h5, step-000000010.weights.h5"
    assert capsys.readouterr().out == f"{output}: the mean of {names}\n"
    assert_is_mean(output, run, 9, 10)
    test = str(tiny_run.write_pairs(tmp_path / "test.tsv", tiny_run.VALID))
    assert main(["evaluate", str(output), "--test", test]) == 0
    assert "BLEU" in capsys.readouterr().out


def damaged(run, tmp_path):
    path = tmp_path / "damaged.weights.h5"
    path.write_bytes(checkpoints(run, 9)[0].read_bytes()[:5000])
    return path


def of_another_model(run, tmp_path):
    path = tmp_path / "other.weights.h5"
    config = RunConfig.load(run / "config.json").model
    Transformer(config.replace(d_ff=48)).save_weights(path)
    return path


@pytest.mark.parametrize("bad", [damaged, of_another_model])
def test_a_checkpoint_that_cannot_be_read_is_one_line(run, tmp_path, capsys, bad):
    path, output = str(bad(run, tmp_path)), tmp_path / "mean"
    command = ["average", str(run), "--output", str(output)]
    assert main([*command, "--checkpoints", path]) == 1
    error = capsys.readouterr().err
    assert f"{path} does not fit the model, or is damaged" in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_what_cannot_be_averaged_is_an_error(run, tmp_path):
    output = tmp_path / "mean"
    for last in (0, 4):
        with pytest.raises(ValueError, match=f"`last` must be from 1 to 3,.*={last}"):
            average_run(run, output, last=last)
    with pytest.raises(FileNotFoundError, match=r"nothing\.weights\.h5: no such file"):
        average_run(run, output, checkpoints=[tmp_path / "nothing.weights.h5"])
    with pytest.raises(ValueError, match="either `last` or `checkpoints`"):
        average_run(run, output, last=1, checkpoints=checkpoints(run, 8))
    with pytest.raises(FileNotFoundError, match=r"checkpoints holds no checkpoint\."):
        average_run(tmp_path, output)
    with pytest.raises(FileExistsError, match="new or empty directory"):
        average_run(run, run)
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        average_run(tmp_path, output)
    assert not output.exists()


def small_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def test_the_mean_is_that_of_float64_and_of_equal_values_is_their_bytes(tmp_path):
    model, rng, weights = small_model(), np.random.default_rng(3), []
    for step in range(8, 12):
        weights.append([rng.standard_normal((3, 2)), np.array([-0.0, 1 / 3])])
        model.set_weights(weights[-1])
        save_checkpoint(model, tmp_path, step)
    paths = checkpoints_in(tmp_path)
    assert [path.name[5:14] for path in paths] == [f"{n:09d}" for n in range(8, 12)]
    load_average(model, paths)
    kernel, bias = model.get_weights()
    each = np.stack([values.astype("float32") for values, _ in weights])
    np.testing.assert_array_equal(kernel, each.mean(0, "float64").astype("float32"))
    assert bias.tobytes() == np.array([-0.0, 1 / 3], "float32").tobytes()
    with pytest.raises(ValueError, match="no checkpoint to average"):
        load_average(model, [])


def test_a_failing_save_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    model = small_model()
    save_checkpoint(model, tmp_path, 1)

    def half(stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model, "save_weights", half)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(model, tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.weights.h5"]
