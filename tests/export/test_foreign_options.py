"""Exports of a model with the options that models from elsewhere need."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import LiteTranslator, Translator
from tests import tiny_run

TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]
OPTIONS = {
    "layer_norm_epsilon": 0.01,
    "positions": "sinusoidal-marian",
    "normalize_embeddings": True,
    "decoder_self_attention": "ssru",
    "output_bias": True,
}


@pytest.fixture(scope="module")
def live():
    config = tiny_run.CONFIG.decoding.replace(
        beam_size=3, length_penalty=0.8, length_penalty_form="power",
        min_output_length=3,
    )  # fmt: skip
    model = tiny_run.model.__wrapped__(**OPTIONS)
    bias = model.output_bias.numpy().copy()
    bias[:2] = bias[4:260] = -1000.0  # Bytes, too.
    model.output_bias.assign(bias)
    return Translator(model, tiny_run.tokenizers(), config)


@pytest.fixture(scope="module")
def found(live):
    translations = live.translate(TEXTS)
    assert len({t.text for found in translations for t in [found[0]]}) > 1
    return [found[0] for found in translations]


@pytest.mark.slow
def test_a_saved_model_translates_as_the_model(live, found, tmp_path):
    loaded = tf.saved_model.load(str(live.export(tmp_path / "model" / "1")))
    outputs = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    texts = [text.decode() for text in outputs["translation"].numpy()]
    assert texts == [translation.text for translation in found]
    scores = [translation.score for translation in found]
    np.testing.assert_allclose(outputs["score"], scores, rtol=1e-4)


@pytest.mark.slow
def test_a_litert_file_translates_as_the_model(live, found, tmp_path):
    lite = LiteTranslator(live.export_litert(tmp_path / "lite"))
    assert lite(TEXTS) == [translation.text for translation in found]
    for drawn, expected in zip(
        lite.sample(TEXTS, 1.2, 5), live.sample(TEXTS, 1.2, 5), strict=True
    ):
        assert drawn.text == expected.text
        assert drawn.score == pytest.approx(expected.score, abs=1e-4)
