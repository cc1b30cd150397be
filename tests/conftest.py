"""What all tests share: a quiet, small and repeatable Keras.

`tests` is a package, so pytest puts the repository's root on the import path and
`from tests.reference import numpy_transformer` works in every test.
"""

from __future__ import annotations

import collections
import fcntl
import gc
import importlib
import os
import sys

# Keras and TensorFlow read these when they are imported, below.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
for threads in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(threads, "2")
# A GPU's TensorFloat-32 products keep three digits; the tests compare five.
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from tests import tiny_run  # noqa: E402


def pytest_configure(config):
    # Keras 3.15 turns TensorFlow variables into arrays in a way NumPy 2 warns about.
    config.addinivalue_line(
        "filterwarnings",
        "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning",
    )


def pytest_generate_tests(metafunc):
    mark = metafunc.definition.get_closest_marker("one_case")
    if mark is not None and not mark.args:
        pytest.fail("`one_case` must name the case that is not slow", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks the cases of a test with `one_case("NAME")` as slow, but that of the name.

    All stay as they are where that one is not among them. `-m "slow or not slow"` runs
    all.
    """
    tests = collections.defaultdict(dict)
    for item in items:
        mark = item.get_closest_marker("one_case")
        if mark is not None:
            test, _, case = item.nodeid.partition("[")
            tests[test][item] = case.removesuffix("]") in mark.args
    for cases in tests.values():
        for item, is_named in cases.items():
            if any(cases.values()) and not is_named:
                item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """Hides from the collector of garbage what the files before this one left.

    Keras and LiteRT's converter collect all of it many times. Of the millions of
    objects that TensorFlow and results shared by tests keep, each time took seconds.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed():
    """Starts every test from the same random state of Python, NumPy and Keras."""
    keras.utils.set_random_seed(20170612)


@pytest.fixture
def rng():
    """A NumPy generator with a fixed seed."""
    return np.random.default_rng(1706)


def made_once(tmp_path_factory, name, make):
    """The folder that `make` fills, once for all processes of a run of the tests."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            make(folder)
    return folder


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory):
    """The directory of a training run of three epochs, which no test changes."""

    def make(folder):
        text = tiny_run.write_pairs(folder / "train.tsv")
        validation = tiny_run.write_pairs(folder / "valid.tsv", tiny_run.VALID)
        tiny_run.run(folder / "run", text=text, validation=validation)

    return made_once(tmp_path_factory, "tiny", make) / "run"


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory):
    """The SavedModel of `tiny_run.translator()`: .../tiny/1."""

    def make(folder):
        tiny_run.translator().export(folder / "tiny" / "1")

    return made_once(tmp_path_factory, "saved_models", make) / "tiny" / "1"


@pytest.fixture(scope="session")
def lite_export(tmp_path_factory):
    """The LiteRT export of `tiny_run.translator()`."""

    def make(folder):
        tiny_run.translator().export(folder / "tiny", "litert", languages=("en", "de"))

    return made_once(tmp_path_factory, "litert", make) / "tiny"


@pytest.fixture(scope="session")
def onnx_export(tmp_path_factory):
    """The ONNX export of `tiny_run.translator()`."""

    def make(folder):
        tiny_run.translator().export(folder / "tiny", "onnx", languages=("en", "de"))

    return made_once(tmp_path_factory, "onnx", make) / "tiny"


@pytest.fixture
def scripts(monkeypatch):
    """Returns a function of a folder of scripts, no package, that imports from it."""
    before, folders = set(sys.modules), []

    def importer(folder):
        monkeypatch.syspath_prepend(folder)
        folders.append(str(folder))
        return importlib.import_module

    yield importer
    for name in set(sys.modules) - before:
        path = str(getattr(sys.modules[name], "__file__", ""))
        if any(folder in path for folder in folders):
            del sys.modules[name]
