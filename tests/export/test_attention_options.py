"""Exports of models with other kinds of self-attention and of positions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import LiteTranslator, Translator
from tests import tiny_run

TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]
OPTIONS = {
    "rotary, local, one head of keys": {
        "positions": "rotary",
        "attention": "local",
        "attention_window": 2,
        "num_key_value_heads": 1,
    },
    "ALiBi, ReLU": {"positions": "alibi", "attention": "relu"},
    "linear": {"attention": "linear", "attention_dropout_rate": 0.0},
    "additive": {"attention": "additive"},
    "random features": {"attention": "performer", "attention_dropout_rate": 0.0},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name.startswith("rotary") else pytest.mark.slow)
        for name in OPTIONS
    ],
)
def live(request):
    model = tiny_run.model(**OPTIONS[request.param])
    config = tiny_run.CONFIG.decoding.replace(beam_size=3, min_output_length=3)
    return Translator(model, tiny_run.tokenizers(), config)


@pytest.fixture(scope="module")
def found(live):
    translations = [found[0] for found in live.translate(TEXTS)]
    assert len({translation.score for translation in translations}) == len(TEXTS)
    return translations


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
