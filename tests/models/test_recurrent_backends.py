"""One file of the recurrent model, three backends: the same logits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.recurrent_cases import VARIANTS, random_model, weights_of
from tests.models.test_backends import BACKENDS, OTHERS, run_python
from tests.models.transformer_cases import SOURCE, TARGET_IN
from tests.reference import numpy_recurrent as reference


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a file of each variant and the inputs; the models by name."""
    folder = tmp_path_factory.mktemp("backends")
    np.savez(folder / "inputs.npz", source=SOURCE, target_in=TARGET_IN)
    models = {}
    for number, options in enumerate(VARIANTS.values()):
        name = f"model_{number}"
        models[name] = random_model(np.random.default_rng(number), **options)
        models[name].save(folder / f"{name}.keras")
    return folder, models


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_file_gives_the_same_logits_on_every_backend(saved, backend):
    folder, models = saved
    run_python(backend, "-m", "tests.models.run_saved_model", folder)
    real = TARGET_IN != 0
    for name, model in models.items():
        expected, _ = reference.recurrent(SOURCE, TARGET_IN, weights_of(model))
        with np.load(folder / f"{name}.{backend}.npz") as outputs:
            for kind in ("logits", "steps"):
                np.testing.assert_allclose(
                    outputs[kind][real], expected[real], rtol=1e-5, atol=1e-5
                )


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS)
def test_tests_of_the_recurrent_model_pass_on_every_backend(backend):
    run_python(
        backend, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "tests/models/test_recurrent_seq2seq.py",
        "tests/models/test_recurrent_search.py",
    )  # fmt: skip
