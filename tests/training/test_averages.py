"""What a run keeps: states, checkpoints, and a new run of the mean of checkpoints."""

import io
import pickle
import shutil

import h5py
import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import RunConfig, Transformer, Translator
from keras_transformer.apps.cli import main
from keras_transformer.models import ExactTraining
from keras_transformer.models.loading import load_model
from keras_transformer.training import average_run, load_average
from keras_transformer.training.intervals import capture, restore, training_variables
from keras_transformer.training.state import (
    State,
    StateFiles,
    can_be_opened,
    checkpoints_in,
    save_checkpoint,
)
from tests import tiny_run
from tests.tiny_run import assert_equal

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was killed: three checkpoints of random weights, no model.keras."""
    run = tmp_path_factory.mktemp("runs") / "killed"
    tokenizers = tiny_run.tokenizers()
    config = tiny_run.CONFIG.with_options(**tokenizers.vocabulary_sizes)
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text(config.to_json(), encoding="utf-8")
    tokenizers.save(run / "tokenizer")
    rng, model = np.random.default_rng(5), Transformer(config.model)
    for path in checkpoints(run, 8, 9, 10):
        model.set_weights([rng.standard_normal(w.shape) for w in model.get_weights()])
        model.save_weights(path)
    return run


def checkpoints(run, *steps):
    return [run / "checkpoints" / f"step-{step:09d}.weights.h5" for step in steps]


def assert_is_mean(output, run, *steps):
    """Checks the weights of `output` against NumPy's mean in float64."""
    model, each = load_model(output / "model.keras"), []
    found = model.get_weights()
    for path in checkpoints(run, *steps):
        model.load_weights(path)
        each.append(model.get_weights())
    means = [np.mean(np.stack(v).astype("float64"), 0) for v in zip(*each, strict=True)]
    assert_equal(found, [mean.astype("float32") for mean in means])


def test_the_mean_of_all_checkpoints_is_a_run_that_translates(run, tmp_path):
    paths = average_run(run, tmp_path / "mean")
    assert paths == checkpoints(run, 8, 9, 10)
    assert_is_mean(tmp_path / "mean", run, 8, 9, 10)
    names = sorted(path.name for path in (tmp_path / "mean").iterdir())
    assert names == ["config.json", "decoding.json", "model.keras", "tokenizer"]
    translator = Translator.load(tmp_path / "mean")
    assert translator.config == tiny_run.CONFIG.decoding
    assert len(translator(["the old man sleeps."])) == 1


def test_the_command_averages_the_last(run, tmp_path, capsys):
    output = tmp_path / "mean"
    assert main(["average", str(run), "--output", str(output), "--last", "2"]) == 0
    names = "step-000000009.weights.h5, step-000000010.weights.h5"
    assert capsys.readouterr().out == f"{output}: the mean of {names}\n"
    assert_is_mean(output, run, 9, 10)


def damaged(run, path):
    path.write_bytes(path.read_bytes()[:5000])


def of_another_model(run, path):
    config = RunConfig.load(run / "config.json").model
    Transformer(config.replace(d_ff=48)).save_weights(path)


@pytest.mark.parametrize("write", [damaged, of_another_model])
def test_a_checkpoint_that_cannot_be_read_is_one_line(run, tmp_path, capsys, write):
    run, output = shutil.copytree(run, tmp_path / "run"), tmp_path / "mean"
    (path,) = checkpoints(run, 9)
    write(run, path)
    assert main(["average", str(run), "--output", str(output)]) == 1
    error = capsys.readouterr().err
    assert f"{path} does not fit the model, or is damaged" in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_what_cannot_be_averaged_is_an_error(run, tmp_path):
    output = tmp_path / "mean"
    no_config = tmp_path / "no config"
    shutil.copytree(run / "checkpoints", no_config / "checkpoints")
    for start, to, options, error, words in (
        (run, output, {"last": 0}, ValueError, "`last` must be from 1 to 3,.*=0"),
        (run, output, {"last": 4}, ValueError, "`last` must be from 1 to 3,.*=4"),
        (tmp_path, output, {}, FileNotFoundError, r"checkpoints holds no checkpoint\."),
        (run, run, {}, FileExistsError, "new or empty directory"),
        (no_config, output, {}, FileNotFoundError, r"config\.json"),
    ):
        with pytest.raises(error, match=words):
            average_run(start, to, **options)
    assert not output.exists()


def small_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def test_the_mean_is_that_of_float64_and_of_equal_values_is_their_bytes(tmp_path):
    model, rng, weights = small_model(), np.random.default_rng(3), []
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((1, 3)), np.ones((1, 2)))
    adam, moments = model.optimizer, list(map(np.array, model.optimizer.variables))
    for step in range(8, 12):
        weights.append([rng.standard_normal((3, 2)), np.array([-0.0, 1 / 3])])
        model.set_weights(weights[-1])
        save_checkpoint(model, tmp_path, step)
    paths = checkpoints_in(tmp_path)
    assert [path.name[5:14] for path in paths] == [f"{n:09d}" for n in range(8, 12)]
    assert "optimizer" not in h5py.File(paths[0])
    load_average(model, paths)
    assert model.optimizer is adam
    assert_equal(list(map(np.array, adam.variables)), moments)
    kernel, bias = model.get_weights()
    each = np.stack([values.astype("float32") for values, _ in weights])
    np.testing.assert_array_equal(kernel, each.mean(0, "float64").astype("float32"))
    assert bias.tobytes() == np.array([-0.0, 1 / 3], "float32").tobytes()
    with pytest.raises(ValueError, match="no checkpoint to average"):
        load_average(model, [])


def test_a_disk_that_fails_is_no_damaged_checkpoint(tmp_path, monkeypatch):
    """It is tried again later: nothing is left out of a mean for it."""
    model = small_model()
    save_checkpoint(model, tmp_path, 1)
    (path,) = checkpoints_in(tmp_path)
    assert can_be_opened(path) and not can_be_opened(tmp_path / "missing")

    def fails(*words):
        raise OSError(5, "Input/output error")

    def has_no_memory(*words):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(model, "load_weights", has_no_memory)
    with pytest.raises(RuntimeError, match="^CUDA out of memory$"):
        load_average(model, [path])
    monkeypatch.setattr(model, "load_weights", fails)
    monkeypatch.setattr(h5py, "File", fails)
    for read in (can_be_opened, lambda path: load_average(model, [path])):
        with pytest.raises(OSError, match="Input/output error"):
            read(path)


def half(stream, **parts):
    stream.write(b"half")
    raise OSError(28, "No space left on device")


def test_a_failing_save_leaves_what_was_there(tmp_path, monkeypatch):
    model, files = small_model(), StateFiles(tmp_path)
    save_checkpoint(model, tmp_path, 1)
    files.save(state(1))
    monkeypatch.setattr(model, "save_weights", half)
    monkeypatch.setattr(np, "savez", half)
    for save in (
        lambda: save_checkpoint(model, tmp_path, 2),
        lambda: files.save(state(2)),
    ):
        with pytest.raises(OSError, match="No space left"):
            save()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-000000001.npz", "step-000000001.weights.h5"]
    assert files.latest(Console()).step == 1


# States.


class Model(ExactTraining, keras.Sequential):
    pass


@pytest.fixture(scope="module")
def model():
    """A model with every kind of variable, after two updates."""
    layers = [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = Model(layers)
    model.compile(keras.optimizers.Adam(use_ema=True), "mse", metrics=["mae"])
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    model.fit(x, y, batch_size=2, verbose=0)
    return model


def test_a_state_has_every_variable_once_and_comes_back(model, tmp_path):
    kept = training_variables(model)
    names = [v.path.split("/")[-1] for v in kept]
    for name in ("kernel", "seed_generator_state", "iteration", "learning_rate"):
        assert names.count(name) == 1
    variables = model.variables + model.optimizer.variables + model.metrics_variables
    assert {v.path for v in kept} == {v.path for v in variables}
    assert len(kept) == len(variables)
    history = [{"step": 3, "val_loss": 0.1 + 0.2}, {"step": 5, "val_loss": np.inf}]
    fields = {"step": 7, "seconds": 1.5, "history": history}
    fields |= {"callbacks": [[1, "a"]], "finished": {"epochs": 3}}
    files = StateFiles(tmp_path / "states")
    files.save(capture(model, **fields))
    saved = [np.array(variable) for variable in kept]
    for variable in kept:
        variable.assign(np.zeros(variable.shape))
    state = files.latest(QUIET)
    assert {name: getattr(state, name) for name in fields} == fields
    assert (state.updates, state.accumulated) == (2, 0)
    assert not state.has_row
    restore(model, state)
    assert_equal([np.array(variable) for variable in training_variables(model)], saved)
    other = Model([keras.Input((3,)), keras.layers.Dense(5)])
    other.compile(keras.optimizers.Adam(), "mse")
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="belongs to another model"):
        restore(other, state)


def state(step):
    value = np.arange(6, dtype="float32").reshape(2, 3) + step
    return State(step, values=[value])


def test_the_newest_states_are_kept(tmp_path):
    files = StateFiles(tmp_path)
    for step in (8, 99, 1000):
        files.save(state(step))
    names = [path.name for path in files.paths()]
    assert names == ["step-000000099.npz", "step-000001000.npz"]
    assert files.latest(Console()).step == 1000


@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "Input/output error")])
def test_a_state_that_cannot_be_read_now_is_kept(tmp_path, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    files = StateFiles(tmp_path)
    files.save(state(1))
    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(type(error)):
        files.latest(QUIET)
    assert len(files.paths()) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damage_anywhere_is_noticed_or_harmless(tmp_path, damage):
    files = StateFiles(tmp_path)
    files.save(state(1))
    files.save(state(2))
    _, newest = files.paths()
    content = newest.read_bytes()
    fallen_back = 0
    places = range(0, len(content), 7) if damage != "empty" else [0]
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 0x10
        newest.write_bytes(changed if damage == "flipped" else content[:place])
        screen = io.StringIO()
        found = files.latest(Console(file=screen, width=200))
        assert_equal(found.values, state(found.step).values)
        warned = f"warning: {newest} is damaged" in screen.getvalue()
        assert warned == (found.step == 1)
        fallen_back += warned
    # Some bytes of an archive, such as the time of a part, mean nothing here.
    assert fallen_back == len(places) if damage != "flipped" else fallen_back > 20


def test_a_state_of_a_stranger_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "evil"), "w")

    path = tmp_path / "step-000000001.npz"
    np.savez(path, header=np.array([Evil()], dtype=object))
    assert b"evil" in path.read_bytes()
    path.with_name("step-000000002.npz").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="Every state in .* is damaged"):
        StateFiles(tmp_path).latest(QUIET)
    assert not (tmp_path / "evil").exists()
