"""A file of each model, three backends, one output; layers that hold everywhere."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from tests.layers.reference_weights import randomise
from tests.models.model_cases import CASES

ROOT = Path(__file__).parents[2]
BACKENDS = ("tensorflow", "jax", "torch")
OTHERS = [name for name in BACKENDS if name != keras.backend.backend()]


def run_python(backend, *arguments):
    """Runs Python at the repository's root on a backend, or skips."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, env=environment,
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert finished.returncode == 0, (finished.stdout + finished.stderr)[-6000:]


@pytest.fixture(scope="module", params=range(12), ids="part {}".format)
def saved(request, tmp_path_factory):
    """A folder with files of a twelfth of the models, and of their inputs."""
    folder = tmp_path_factory.mktemp("backends")
    models = {}
    for number, (name, case) in list(enumerate(CASES.items()))[request.param :: 12]:
        models[name] = randomise(case.make(), np.random.default_rng(number))
        models[name].save(folder / f"{number}.keras")
        np.savez(folder / f"{number}.npz", *keras.tree.flatten(case.inputs))
    return folder, models


@pytest.mark.one_case
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_file_gives_the_same_logits_on_every_backend(saved, backend):
    folder, models = saved
    run_python(backend, "-m", "tests.models.run_saved_model", folder)
    for number, (name, case) in enumerate(CASES.items()):
        if name not in models:
            continue
        with np.load(folder / f"{number}.{backend}.npz") as outputs:
            found = dict(outputs)
        here = ops.convert_to_numpy(models[name](case.inputs))
        expected = case.expected(models[name], case.inputs)
        for output in found.values():
            np.testing.assert_allclose(output, here, rtol=1e-5, atol=1e-5)
        logits = found["logits"][case.real], expected[case.real]
        np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5, err_msg=name)
        assert ("steps" in found) == ("decodes" in case.properties)


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS)
def test_tests_of_layers_and_model_pass_on_every_backend(backend):
    run_python(
        backend, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_masks.py",
        "tests/layers", "tests/models/test_every_model.py",
        "tests/models/test_transformer.py",
    )  # fmt: skip
