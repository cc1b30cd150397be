"""Exports with tokenizers of other libraries inside."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer import Transformer, Translator
from keras_transformer.text import TokenizerPair
from tests import tiny_run
from tests.layers.reference_weights import randomise
from tests.text import foreign_tokenizers as foreign

TEXTS = ["the good bear runs.", "", "a big dog", "der alte Mann! 🐈 漢字"]

# TensorFlow and the compiled operations of tensorflow-text alone, as in TensorFlow
# Serving; the Python side of tensorflow-text would import Keras.
STRANGER = """
import importlib.util, json, pathlib, sys
text = importlib.util.find_spec("tensorflow_text").submodule_search_locations[0]
blocked = ("keras", "keras_hub", "keras_transformer", "sentencepiece", "tokenizers")
sys.modules.update(dict.fromkeys((*blocked, "tensorflow_text")))
import tensorflow as tf
for path in pathlib.Path(text, "python", "ops").glob("*.so"):
    tf.load_op_library(str(path))
signatures = tf.saved_model.load(sys.argv[1]).signatures
texts = tf.constant(json.loads(sys.argv[2]))
found = signatures["serving_default"](text=texts)["translation"].numpy()
scored = signatures["score"](source=texts, target=texts)["tokens"].numpy()
json.dump(
    {
        "translation": [text.decode() for text in found],
        "tokens": [[piece.decode() for piece in row if piece] for row in scored],
    },
    sys.stdout,
)
"""


def translator_of(given):
    """A translator of random weights, whose outputs are words that differ."""
    tokenizers = TokenizerPair.of(given)
    config = tiny_run.CONFIG.model.replace(
        tied_embeddings="none", **tokenizers.vocabulary_sizes
    )
    model = Transformer(config)
    randomise(model, np.random.default_rng(tiny_run.SEED))
    kernel = model.output_dense.kernel
    kernel.assign(kernel.numpy() * 3.0)
    return Translator(model, tokenizers, tiny_run.CONFIG.decoding)


GIVEN = {
    "WordPiece": lambda: foreign.word_pieces(lowercase=True),
    "byte-level BPE": foreign.byte_pairs,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GIVEN)
def test_a_saved_model_cuts_and_joins_alone(tmp_path, name):
    translator = translator_of(GIVEN[name]())
    path = translator.export(tmp_path / "tiny" / "1")
    assert (tmp_path / "tiny" / "models.config").is_file()
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, path, json.dumps(TEXTS)],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    live = translator(TEXTS)
    assert found["translation"] == live
    assert len(set(live)) == 4 and live[1] == ""
    tokenizer = translator.tokenizers.target
    rows = tokenizer.tokenize(TEXTS).to_list()
    ended = [tokenizer.pieces([*row, tokenizer.end_id]) for row in rows]
    assert found["tokens"] == ended


def test_what_stays_in_python_translates_and_is_refused_at_export(tmp_path):
    translator = translator_of(foreign.whole_words())
    assert len(set(translator(TEXTS))) > 2
    message = "source tokenizer cannot be exported: a tokenizer of another .* kind"
    with pytest.raises(ValueError, match=message):
        translator.export(tmp_path / "tiny" / "1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("export", ["export_litert", "export_web"])
def test_litert_takes_sentencepiece_alone(tmp_path, export):
    translator = translator_of(foreign.keras_hub_word_pieces())
    message = "LiteRT cuts text with SentencePiece alone, .* WordPieceTokenizer for"
    with pytest.raises(ValueError, match=message):
        getattr(translator, export)(tmp_path / "lite")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_saved_translator_is_loaded(tmp_path):
    translator = translator_of(foreign.keras_hub_word_pieces())
    translator.save(tmp_path)
    assert Translator.load(tmp_path)(TEXTS) == translator(TEXTS)
