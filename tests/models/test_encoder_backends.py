"""One weights file of each model that is no translator, three backends, one output.

The subclasses of `EncoderModelBattery` say what the models and their inputs are.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from tests.models import (
    test_masked_language_model,
    test_tagger,
    test_text_classifier,
)
from tests.models.test_backends import BACKENDS, run_python

BATTERIES = {
    "tagger": test_tagger.TestBattery,
    "tagger_of_features": test_tagger.TestBatteryOfFeatures,
    "classifier_by_mean": test_text_classifier.TestBatteryOfTheMean,
    "classifier_by_token": test_text_classifier.TestBatteryOfTheClassToken,
    "masked_language_model": test_masked_language_model.TestBattery,
}
# TensorFlow's import is blocked for the others: the package must do without it.
RUN = """
import sys
from pathlib import Path
import os
if os.environ["KERAS_BACKEND"] != "tensorflow":
    sys.modules["tensorflow"] = None
import keras
import numpy as np
import keras_transformer

for path in Path(sys.argv[1]).glob("*.keras"):
    model = keras.saving.load_model(path)
    with np.load(path.with_suffix(".npz")) as arrays:
        inputs = tuple(arrays[name] for name in arrays)
    output = model(inputs if len(inputs) > 1 else inputs[0])
    name = f"{path.stem}.{os.environ['KERAS_BACKEND']}.npy"
    np.save(path.with_name(name), keras.ops.convert_to_numpy(output))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a file of each model and of its inputs; and the outputs here."""
    folder = tmp_path_factory.mktemp("encoders")
    outputs = {}
    for name, battery in BATTERIES.items():
        model = battery().random_model(np.random.default_rng(1))
        model.save(folder / f"{name}.keras")
        np.savez(folder / f"{name}.npz", *keras.tree.flatten(battery.inputs))
        outputs[name] = ops.convert_to_numpy(model(battery.inputs))
    return folder, outputs


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_file_gives_the_same_outputs_on_every_backend(saved, backend):
    folder, outputs = saved
    run_python(backend, "-c", RUN, folder)
    for name, expected in outputs.items():
        output = np.load(folder / f"{name}.{backend}.npy")
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5, err_msg=name)
