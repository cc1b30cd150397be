"""Runs saved models on the backend that KERAS_BACKEND names; a test's child.

    python -m tests.models.run_saved_model FOLDER

FOLDER holds `inputs.npz` and any `NAME.keras`; it gets `NAME.BACKEND.npz` of each.

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

from keras_transformer.models.seq2seq import Seq2Seq  # noqa: E402


def main(folder):
    if keras.backend.backend() != BACKEND:
        raise RuntimeError(f"Keras runs on {keras.backend.backend()}, not {BACKEND}")
    with np.load(folder / "inputs.npz") as inputs:
        source, target_in = inputs["source"], inputs["target_in"]
    for path in sorted(folder.glob("*.keras")):
        model = keras.saving.load_model(path)
        if not isinstance(model, Seq2Seq):
            raise TypeError(f"{path} holds a {type(model).__name__}")
        np.savez(
            path.with_suffix(f".{BACKEND}.npz"),
            logits=ops.convert_to_numpy(model((source, target_in))),
            steps=step_by_step(model, source, target_in),
        )


def step_by_step(model, source, target_in):
    """The logits (B, T, V) of cached decoding."""
    length = target_in.shape[1]
    state = model.start_decoding(source, length)
    parents = ops.zeros((len(source), 1), "int32")
    steps = []
    for position in range(length):
        ids = ops.convert_to_tensor(target_in[:, position])
        logits, state = model.decode_step(ids, parents, state)
        steps.append(ops.convert_to_numpy(logits))
    return np.stack(steps, axis=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
