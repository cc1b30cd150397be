"""State files: what they hold, and what damage does."""

from __future__ import annotations

import io
import pickle

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer.exact_training import ExactTraining
from keras_transformer.training.state import (
    State,
    StateFiles,
    capture,
    restore,
    training_variables,
)


class Model(ExactTraining, keras.Sequential):
    pass


def small_model():
    """A model with every kind of variable, after two updates."""
    layers = [keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = Model(layers)
    model.compile(keras.optimizers.Adam(use_ema=True), "mse", metrics=["mae"])
    x, y = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")
    model.fit(x, y, batch_size=2, verbose=0)
    return model


@pytest.fixture(scope="module")
def model():
    return small_model()


def values(model):
    return [np.array(variable) for variable in training_variables(model)]


def test_a_state_has_every_variable_once_and_comes_back(model, tmp_path):
    kept = training_variables(model)
    names = [v.path.split("/")[-1] for v in kept]
    for name in ("kernel", "seed_generator_state", "iteration", "learning_rate"):
        assert names.count(name) == 1
    variables = model.variables + model.optimizer.variables + model.metrics_variables
    assert {v.path for v in kept} == {v.path for v in variables}
    assert len(kept) == len(variables)
    history = [
        {"step": 3, "val_loss": 0.1 + 0.2},
        {"step": 5, "val_loss": float("inf")},
    ]
    fields = {"step": 7, "seconds": 1.5, "history": history}
    fields |= {"callbacks": [[1, "a"]], "finished": {"epochs": 3}}
    files = StateFiles(tmp_path / "states")
    files.save(capture(model, **fields))
    saved = values(model)
    for variable in training_variables(model):
        variable.assign(np.zeros(variable.shape))
    state = files.latest(Console(quiet=True))
    assert {name: getattr(state, name) for name in fields} == fields
    assert (state.updates, state.accumulated) == (2, 0)
    assert not state.has_row
    restore(model, state)
    for value, expected in zip(values(model), saved, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_the_state_of_another_model_is_refused(model):
    other = Model([keras.Input((3,)), keras.layers.Dense(5)])
    other.compile(keras.optimizers.Adam(), "mse")
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="belongs to another model"):
        restore(other, capture(model))


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


def test_a_process_that_only_reads_writes_nothing(tmp_path):
    StateFiles(tmp_path, writes=False).save(state(1))
    assert not list(tmp_path.iterdir())


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
        np.testing.assert_array_equal(found.values[0], state(found.step).values[0])
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
    header = np.array([Evil()], dtype=object)
    np.savez(path, header=header)
    assert b"evil" in path.read_bytes()
    path.with_name("step-000000002.npz").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(ValueError, match="Every state in .* is damaged"):
        StateFiles(tmp_path).latest(Console(quiet=True))
    assert not (tmp_path / "evil").exists()


def test_a_failing_save_leaves_the_older_state(tmp_path, monkeypatch):
    files = StateFiles(tmp_path)
    files.save(state(1))

    def half(stream, **parts):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="No space left"):
        files.save(state(2))
    assert len(list(tmp_path.iterdir())) == 1
    assert files.latest(Console()).step == 1
