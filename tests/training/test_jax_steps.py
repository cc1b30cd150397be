"""On JAX a run compiles a step once a shape, gives it its memory, and seldom waits."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from rich.console import Console

from keras_transformer import train
from tests import tiny_run

ROOT = Path(__file__).parents[2]
IS_JAX = keras.backend.backend() == "jax"
on_jax = pytest.mark.skipif(not IS_JAX, reason="of JAX's step")


@pytest.mark.slow
@pytest.mark.skipif(
    IS_JAX or not importlib.util.find_spec("jax"), reason="for JAX, from elsewhere"
)
def test_the_steps_of_jax_and_their_reads():
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-k", "sixteenth or jax", "tests/training/test_device_reads.py",
         "tests/training/test_jax_steps.py"],
        cwd=ROOT, env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True,
        text=True, timeout=1800,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-6000:]
    assert "4 passed, 1 skipped" in finished.stdout


class Compilations:
    """Notes what JAX compiles, by the name of the function."""

    def __init__(self, caplog):
        self._caplog = caplog

    def names(self):
        found = r"Finished XLA compilation of jit\((\w+)\)"
        messages = [record.getMessage() for record in self._caplog.records]
        return re.findall(found, "\n".join(messages))


class Epochs(keras.callbacks.Callback):
    """Notes how much was compiled before each epoch."""

    def __init__(self, compilations):
        super().__init__()
        self.compilations, self.begun = compilations, []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(len(self.compilations.names()))


@on_jax
def test_a_run_on_jax_compiles_nothing_after_its_first_epoch(tmp_path, caplog):
    import jax

    config = tiny_run.CONFIG.replace(
        data=tiny_run.CONFIG.data.replace(batch_shapes=1),
        # What is validated is the average, whose memory must stay its own.
        training=tiny_run.CONFIG.training.replace(epochs=3, ema_decay=0.9),
    )
    with caplog.at_level("WARNING", logger="jax"), jax.log_compiles():
        compilations = Compilations(caplog)
        epochs = Epochs(compilations)
        train(
            tiny_run.TRAIN, tmp_path / "run", config, tiny_run.VALID,
            Console(quiet=True), callbacks=[epochs],
        )  # fmt: skip
        names = compilations.names()
    assert names.count("train_step") == names.count("test_step") == 1
    # The end of the first epoch saves and validates for the first time.
    assert names[epochs.begun[1] : epochs.begun[2]] == []


@on_jax
def test_a_step_of_jax_takes_over_the_memory_of_the_state_before():
    from tests.training.test_device_reads import small_model

    model = small_model()
    ids = keras.ops.ones((4, 5), "int32")
    model.fit((ids, ids[:, :3]), ids[:, :3], verbose=0)
    held = [v.value for v in [*model.variables, *model.optimizer.variables]]
    model.train_on_batch((ids, ids[:, :3]), ids[:, :3])
    given_away = [array.is_deleted() for array in held]
    assert all(given_away)
