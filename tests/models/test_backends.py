"""One weights file, three backends: the same logits; layers that hold everywhere."""

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

from tests.layers.reference_weights import model_weights_of
from tests.models.transformer_cases import (
    SIZES,
    SOURCE,
    TARGET_IN,
    VARIANTS,
    random_model,
)
from tests.reference import numpy_transformer as reference

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


@pytest.fixture(scope="module", params=range(6), ids="sixth {}".format)
def saved(request, tmp_path_factory):
    """A folder with files of a sixth of the variants and the inputs; the models."""
    folder = tmp_path_factory.mktemp("backends")
    np.savez(folder / "inputs.npz", source=SOURCE, target_in=TARGET_IN)
    models = {}
    for number, options in list(enumerate(VARIANTS.values()))[request.param :: 6]:
        name = f"model_{number}"
        models[name] = random_model(np.random.default_rng(number), **options)
        models[name].save(folder / f"{name}.keras")
    return folder, models


@pytest.mark.one_case
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_file_gives_the_same_logits_on_every_backend(saved, backend):
    folder, models = saved
    run_python(backend, "-m", "tests.models.run_saved_model", folder)
    for name, model in models.items():
        with np.load(folder / f"{name}.{backend}.npz") as outputs:
            logits, steps = outputs["logits"], outputs["steps"]
        here = ops.convert_to_numpy(model((SOURCE, TARGET_IN)))
        np.testing.assert_allclose(logits, here, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(steps, here, rtol=1e-5, atol=1e-5)
        expected = reference.transformer(
            SOURCE, TARGET_IN, model_weights_of(model), SIZES["num_heads"],
            model.config.norm_first,
        )  # fmt: skip
        real = TARGET_IN != 0
        np.testing.assert_allclose(logits[real], expected[real], rtol=1e-5, atol=1e-5)


WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
from keras_transformer import (
    DecoderLayer, EncoderLayer, FeedForward, MaskedAccuracy, MaskedCrossentropy,
    MultiHeadAttention, Perplexity, PositionalEmbedding, Transformer,
    TransformerConfig, TransformerSchedule, beam_search, causal_mask,
)
"""
FILE_OF_A_STRANGER = """
import sys
import keras
import keras_transformer
keras.saving.load_model(sys.argv[1])
"""


@pytest.mark.one_case
@pytest.mark.parametrize("backend", ("jax", "torch"))
def test_package_imports_without_tensorflow(backend):
    run_python(backend, "-W", "error", "-c", WITHOUT_TENSORFLOW)


@pytest.mark.one_case
def test_importing_the_package_is_enough_to_load_its_files(saved):
    folder, models = saved
    file = folder / f"{next(iter(models))}.keras"
    run_python(keras.backend.backend(), "-c", FILE_OF_A_STRANGER, file)


# The slow test below makes every call of the table.
CALLS = "tests/layers/test_multi_head_attention.py"
CALLS_OF_KERAS = ("every mask at once", "scores under a mask")


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS)
def test_a_project_for_keras_gives_its_numbers_on_every_backend(backend):
    run_python(
        backend, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "tests/layers/test_foreign_project.py",
        f"{CALLS}::test_training_takes_the_same_steps",
        *(f"{CALLS}::test_the_same_call_gives_the_same[{name}]"
          for name in CALLS_OF_KERAS),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS)
def test_tests_of_layers_and_model_pass_on_every_backend(backend):
    run_python(
        backend, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_masks.py",
        "tests/layers", "tests/models/test_transformer.py",
        "tests/models/test_transformer_laws.py",
    )  # fmt: skip
