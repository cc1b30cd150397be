"""Runs saved models on the backend that KERAS_BACKEND names; a test's child.

    python -m tests.models.run_saved_model FOLDER

FOLDER holds any `NAME.keras` with the arrays of its inputs in `NAME.npz`; it gets
`NAME.BACKEND.npz` of each.

Outside the TensorFlow backend the import of TensorFlow is blocked, so that success
shows that the package does without it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

BACKEND = os.environ["KERAS_BACKEND"]
if BACKEND != "tensorflow":
    sys.modules["tensorflow"] = None

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import ops  # noqa: E402

import keras_transformer  # noqa: E402, F401 - it registers the classes


def main(folder):
    if keras.backend.backend() != BACKEND:
        raise RuntimeError(f"Keras runs on {keras.backend.backend()}, not {BACKEND}")
    for path in sorted(folder.glob("*.keras")):
        model = keras.saving.load_model(path)
        with np.load(path.with_suffix(".npz")) as arrays:
            inputs = tuple(arrays[name] for name in arrays)
        found = {"logits": model(inputs if len(inputs) > 1 else inputs[0])}
        if hasattr(model, "decode_step"):
            found["steps"] = step_by_step(model, *inputs)
        found = {name: ops.convert_to_numpy(value) for name, value in found.items()}
        np.savez(path.with_suffix(f".{BACKEND}.npz"), **found)


def step_by_step(model, *inputs):
    """The logits (B, T, V) of cached decoding."""
    *source, target_in = inputs
    rows, length = target_in.shape
    state = model.start_decoding(*(source or [rows]), length)
    parents = ops.zeros((rows, 1), "int32")
    steps = []
    for position in range(length):
        ids = ops.convert_to_tensor(target_in[:, position])
        logits, state = model.decode_step(ids, parents, state)
        steps.append(ops.convert_to_numpy(logits))
    return np.stack(steps, axis=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
