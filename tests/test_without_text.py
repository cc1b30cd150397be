"""What works without tensorflow-text, as on Windows, and without TensorFlow."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# Hides packages from every later import, as if they were not installed.
HIDE = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    names = {"tensorflow_text", "keras_hub", "keras_nlp"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
for name in Hidden.names:
    sys.modules.pop(name, None)
"""
# Public names that need texts, and some that do not.
OF_TEXTS = {
    "Corpus", "Tokenizer", "TokenizerPair", "Translator", "import_model",
    "learn_tokenizers", "open_pairs", "train",
}  # fmt: skip
OF_TENSORS = {"EncoderLayer", "Transformer", "Generator", "LiteTranslator", "RunConfig"}

FIT = """
Hidden.names |= {"fcntl", "resource"}  # Windows has neither.
import keras, numpy as np
import keras_transformer as kt

ids = keras.Input((None,), dtype="int32")
states = kt.PositionalEmbedding(vocabulary_size=11, d_model=8, pad_id=0)(ids)
states = kt.EncoderLayer(num_heads=2, d_ff=13)(states)
model = keras.Model(ids, keras.layers.Dense(2)(states[:, 0]))
rng = np.random.default_rng(1)
x, y = rng.integers(1, 11, (7, 5)), rng.integers(0, 2, 7)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss)
model.fit(x, y, verbose=0)
model.save("model.keras")
again = keras.models.load_model("model.keras")
np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))

sizes = dict(source_vocabulary_size=11, target_vocabulary_size=11)
sizes |= dict(num_encoder_layers=1, num_decoder_layers=1, d_model=8, d_ff=13)
config = kt.TransformerConfig.preset("tiny", **sizes, num_heads=2)
translator = kt.Transformer(config)
source, target = rng.integers(4, 11, (3, 5)), rng.integers(4, 11, (3, 7))
translator.compile(kt.Adam(1e-3), kt.MaskedCrossentropy())
translator.fit((source, target), target, verbose=0)
translator.save("translator.keras")
again = keras.models.load_model("translator.keras")
outputs = kt.Generator(again, kt.DecodingConfig(beam_size=2)).search(
    source, np.full(3, 5)
)
print(outputs.ids.shape[:2])
"""


WITHOUT_TENSORFLOW = """
sys.modules["tensorflow"] = None
import keras, numpy as np
import keras_transformer as kt

keras.utils.set_random_seed(1)
config = kt.TransformerConfig(
    source_vocabulary_size=23, target_vocabulary_size=23, d_model=16, d_ff=32,
    num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
)
model = kt.Transformer(config, dtype="mixed_bfloat16")
rate = kt.TransformerSchedule(config.d_model, warmup_steps=20)
model.compile(
    keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9),
    loss=kt.MaskedCrossentropy(label_smoothing=0.1),
    metrics=[kt.MaskedAccuracy(), kt.Perplexity()],
)
ids = np.random.default_rng(1).integers(4, 9, (64, 7)).astype("int32")
ids[::3, 5:] = 0
history = model.fit((ids, ids), ids, batch_size=16, epochs=4, verbose=0).history
assert {"loss", "accuracy", "perplexity"} == set(history)
print(float(history["loss"][0]), float(history["loss"][-1]))
"""


def run(program, directory, **environment):
    done = subprocess.run(
        [sys.executable, "-c", HIDE + program], cwd=directory, check=False,
        capture_output=True, text=True, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(
    "backend", ["tensorflow", pytest.param("jax", marks=pytest.mark.slow)]
)
def test_layers_and_models_are_fitted_and_saved_without_it(tmp_path, backend):
    pytest.importorskip(backend)
    (shape,), _ = run(FIT, tmp_path, KERAS_BACKEND=backend)
    assert shape == "(3, 1)"


def test_names_that_need_texts_say_what_is_missing(tmp_path):
    program = """
import keras_transformer as kt
import keras_transformer.cli

for name in kt.__all__:
    try:
        getattr(kt, name)
    except ImportError as error:
        print(name, error)
try:
    kt.ExportedTranslator("none")
except ImportError as error:
    print("ExportedTranslator", error)
assert kt.cli.main(["quickstart"]) == 1
"""
    lines, errors = run(program, tmp_path)
    names = {line.partition(" ")[0] for line in lines}
    assert OF_TEXTS | {"ExportedTranslator"} <= names and not OF_TENSORS & names
    for line in lines:
        assert "pip install 'tensorflow-text>=2.20,!=2.21.0,<2.22'" in line
    # So does the command line, in a line.
    assert "keras-transformer: error: Tokenizers need tensorflow-text" in errors
    assert "Traceback" not in errors


def test_the_error_names_what_an_installation_takes():
    """All but Windows gets it; there the rest installs."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = parser["options"]["install_requires"].splitlines()
    needs = [Requirement(line) for line in lines if line and not line.startswith("#")]
    (text,) = (need for need in needs if need.name == "tensorflow-text")
    assert text.marker.evaluate({"platform_system": "Linux"})
    assert text.marker.evaluate({"platform_system": "Darwin"})
    assert not text.marker.evaluate({"platform_system": "Windows"})
    source = (ROOT / "keras_transformer/text/tokenizer.py").read_text("utf-8")
    assert "'tensorflow-text>=2.20,!=2.21.0,<2.22'" in source
    assert str(text.specifier) == str(Requirement("x>=2.20,!=2.21.0,<2.22").specifier)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_package_trains_where_tensorflow_cannot_be_imported(backend, tmp_path):
    pytest.importorskip(backend)
    lines, _ = run(WITHOUT_TENSORFLOW, tmp_path, KERAS_BACKEND=backend)
    first, last = map(float, lines[-1].split())
    assert last < first
