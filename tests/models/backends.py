"""Runs Python on another backend, and there the saved models of a folder.

    python -m tests.models.backends FOLDER

FOLDER holds any `NAME.keras` with the arrays of its inputs in `NAME.npz`; it gets
`NAME.BACKEND.npz` of each. Outside the TensorFlow backend the import of TensorFlow is
blocked, so that success shows that the package does without it.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BACKENDS = ("tensorflow", "jax", "torch")


def run_python(backend, *arguments):
    """Runs Python on a backend, at the repository's root, and returns what it says."""
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environment = os.environ | {"KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert finished.returncode == 0, (finished.stdout + finished.stderr)[-6000:]
    return finished.stdout


def run_tests(backend, *arguments):
    """Runs pytest on a backend, as `run_python`."""
    words = "-m", "pytest", "-q", "-p", "no:cacheprovider"
    return run_python(backend, *words, *arguments)


def main(folder, backend):
    if backend != "tensorflow":
        sys.modules["tensorflow"] = None
    import keras

    import keras_transformer  # noqa: F401 - it registers the classes

    if keras.backend.backend() != backend:
        raise RuntimeError(f"Keras runs on {keras.backend.backend()}, not {backend}")
    for path in sorted(folder.glob("*.keras")):
        model = keras.saving.load_model(path)
        model.summary(print_fn=str)
        with np.load(path.with_suffix(".npz")) as arrays:
            inputs = tuple(arrays[name] for name in arrays)
        found = {"logits": model(inputs if len(inputs) > 1 else inputs[0])}
        if hasattr(model, "decode_step"):
            found["steps"] = step_by_step(model, *inputs)
        found = {k: keras.ops.convert_to_numpy(value) for k, value in found.items()}
        np.savez(path.with_suffix(f".{backend}.npz"), **found)


def step_by_step(model, *inputs):
    """The logits (B, T, V) of cached decoding."""
    from keras import ops

    *source, target_in = inputs
    rows, length = target_in.shape
    state = model.start_decoding(*(source or [rows]), length)
    parents, steps = ops.zeros((rows, 1), "int32"), []
    weights = model.decoding_weights()
    for position in range(length):
        ids = ops.convert_to_tensor(target_in[:, position])
        logits, state = model.decode_step(ids, parents, state, weights)
        steps.append(ops.convert_to_numpy(ops.cast(logits, "float32")))
    return np.stack(steps, axis=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.environ["KERAS_BACKEND"])
