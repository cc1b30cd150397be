"""What all tests share: a quiet, small and repeatable Keras.

`tests` is a package, so pytest puts the repository's root on the import path and
`from tests.reference import numpy_transformer` works in every test.
"""

from __future__ import annotations

import os

# Keras and TensorFlow read these when they are imported, below.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for threads in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(threads, "2")
# A GPU's TensorFloat-32 products keep three digits; the tests compare five.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


def pytest_configure(config):
    # Keras 3.15 turns TensorFlow variables into arrays in a way NumPy 2 warns about.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning",
    )


@pytest.fixture(autouse=True)
def fixed_seed():
    """Starts every test from the same random state of Python, NumPy and Keras."""
    keras.utils.set_random_seed(20170612)


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed."""
    return np.random.default_rng(1706)
