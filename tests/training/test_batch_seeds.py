"""PyTorch's random numbers in a run that is interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from keras_transformer.training.batch_seeds import BatchSeeds, batch_seeds

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


def drawn(seed, epoch, first_batch, batch):
    """Numbers drawn in a batch of a `fit` that begins with `first_batch`."""
    seeds = BatchSeeds(seed)
    seeds.first_batch = first_batch
    seeds.on_epoch_begin(epoch)
    seeds.on_train_batch_begin(batch)
    return torch.rand(3).tolist()


def test_a_batch_draws_the_same_wherever_the_run_began():
    state = torch.get_rng_state()
    try:
        expected = drawn(1, 2, first_batch=0, batch=7)
        assert drawn(1, 2, first_batch=4, batch=3) == expected
        others = drawn(1, 2, 0, 8), drawn(1, 3, 0, 7), drawn(2, 2, 0, 7)
        assert expected not in others
    finally:
        torch.set_rng_state(state)


def test_other_backends_need_none(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    assert batch_seeds(1) == []
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    assert [callback.seed for callback in batch_seeds(1)] == [1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_an_interrupted_run_is_exact_on_other_backends(backend):
    pytest.importorskip(backend)
    environment = os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    file = "tests/training/test_resume.py"
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", file, "-k", "middle_of_epochs"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout[-4000:]
