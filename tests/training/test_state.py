"""State files: what they hold, and what damage does."""

from __future__ import annotations

import io
import pickle
import zipfile

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer.exact_training import ExactTraining
from keras_transformer.training.run_callback import RunCallback
from keras_transformer.training.state import (
    StateFiles,
    TrainingState,
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


class Remembers(RunCallback):
    """A callback with a state."""

    value = 0

    def state(self):
        return {"value": self.value}

    def restore(self, state):
        self.value = state["value"]


def values(model):
    return [np.array(variable) for variable in training_variables(model)]


def test_a_state_has_every_variable_once_and_the_callbacks(model, tmp_path):
    kept = training_variables(model)
    names = [v.path.split("/")[-1] for v in kept]
    for name in ("kernel", "seed_generator_state", "iteration", "learning_rate"):
        assert names.count(name) == 1
    variables = model.variables + model.optimizer.variables + model.metrics_variables
    assert {v.path for v in kept} == {v.path for v in variables}
    assert len(kept) == len(variables)
    callback = Remembers()
    callback.value = 7
    files = StateFiles(tmp_path / "states", keep=1)
    files.save(capture(model, epoch=3, batch=5, callbacks=[callback, object()]))
    saved = values(model)
    for variable in training_variables(model):
        variable.assign(np.zeros(variable.shape))
    callback.value = 0
    state = files.latest(Console(quiet=True))
    assert (state.updates, state.epoch, state.batch) == (2, 3, 5)
    restore(model, state, [callback, object()])
    assert callback.value == 7
    for value, expected in zip(values(model), saved, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_bfloat16_variables_come_back(tmp_path, model):
    variable = keras.Variable(np.array([1.5, -2.0]), dtype="bfloat16", name="weight")
    values = np.array(variable).astype("float32")
    state = TrainingState(1, variables=[["weight", [2], "bfloat16"]], values=[values])
    StateFiles(tmp_path, 1).save(state)
    read = StateFiles(tmp_path, 1).latest(Console(quiet=True)).values[0]
    np.testing.assert_array_equal(read, [1.5, -2.0])


def test_the_state_of_another_model_is_refused(model):
    other = Model([keras.Input((3,)), keras.layers.Dense(5)])
    other.compile(keras.optimizers.Adam(), "mse")
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="is that of another model"):
        restore(other, capture(model, 0, 0))


def state(updates, epoch=0, batch=0):
    value = np.arange(6, dtype="float32").reshape(2, 3) + updates
    variables = [["layer/kernel", [2, 3], "float32"]]
    return TrainingState(updates, epoch, batch, variables=variables, values=[value])


def test_the_newest_states_are_kept(tmp_path):
    files = StateFiles(tmp_path, keep=2)
    # An end of an epoch comes after its last batch, though it makes no update; and
    # skipped batches make none either.
    for updates, epoch, batch in ((8, 0, 8), (9, 0, 10), (9, 0, 12), (9, 1, 0)):
        files.save(state(updates, epoch, batch))
    assert [path.name for path in files.paths()] == [
        "update-000000009-epoch-0000-batch-000012.npz",
        "update-000000009-epoch-0001-batch-000000.npz",
    ]
    assert files.latest(Console()).epoch == 1


def test_a_process_that_only_reads_writes_nothing(tmp_path):
    StateFiles(tmp_path, keep=2, writes=False).save(state(1))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damage_anywhere_is_noticed_or_harmless(tmp_path, damage):
    files = StateFiles(tmp_path, keep=2)
    files.save(state(1))
    files.save(state(2, batch=1))
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
        expected = state(found.updates, batch=found.updates - 1)
        assert (found.batch, found.epoch) == (expected.batch, 0)
        np.testing.assert_array_equal(found.values[0], expected.values[0])
        warned = f"warning: {newest} is damaged" in screen.getvalue()
        assert warned == (found.updates == 1)
        fallen_back += warned
    # Some bytes of an archive, such as the time of a part, mean nothing here.
    assert fallen_back == len(places) if damage != "flipped" else fallen_back > 20


def test_a_state_of_a_stranger_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "evil"), "w")

    path = tmp_path / "update-000000001-epoch-0000-batch-000001.npz"
    header = np.array([Evil()], dtype=object)
    np.savez(path, header=header)
    assert b"evil" in path.read_bytes()
    assert StateFiles(tmp_path, 1).latest(Console(quiet=True)) is None
    path.with_name("update-000000002-epoch-0000-batch-000001.npz").write_bytes(
        pickle.dumps(Evil())
    )
    assert StateFiles(tmp_path, 1).latest(Console(quiet=True)) is None
    assert not (tmp_path / "evil").exists()


def array(shape, dtype="<f4", content=b"xx"):
    """A part of an archive that claims a shape."""
    stream = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + content


@pytest.mark.parametrize("name", ["000000.npy", "header.npy"])
@pytest.mark.parametrize("part, reason", [
    (array((10**13,)), "claims 40,000,000,000,000 bytes, and the file has "),
    (array((10**9, 10**9)), "claims 4,000,000,000,000,000,000 bytes"),
    (array((2,), "<U9000"), "claims 72,000 bytes"),
    (array((10**7,), "|u1", b" " * 10**7), "claims 10,000,000 bytes"),
    (b" " * 10**7, "magic string"),
])  # fmt: skip
def test_a_state_that_claims_more_than_it_has_is_passed_over(
    tmp_path, name, part, reason
):
    files = StateFiles(tmp_path, keep=2)
    files.save(state(1))
    files.save(state(2, batch=1))
    newest = files.paths()[-1]
    with zipfile.ZipFile(newest) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(newest, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, content in (parts | {name: part}).items():
            archive.writestr(key, content)
    screen = io.StringIO()
    assert files.latest(Console(file=screen, width=500)).updates == 1
    assert f"warning: {newest} is damaged (ValueError: " in screen.getvalue()
    assert reason in screen.getvalue()
    assert screen.getvalue().count("\n") == 1


def test_a_failing_save_leaves_the_older_state(tmp_path, monkeypatch):
    files = StateFiles(tmp_path, keep=1)
    files.save(state(1))

    def half(stream, **parts):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError, match="No space left"):
        files.save(state(2, batch=1))
    assert len(list(tmp_path.iterdir())) == 1
    assert files.latest(Console()).updates == 1
