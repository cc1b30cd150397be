"""Exports of models that were fine-tuned with adapters or quantised."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import LiteTranslator, Translator, enable_lora
from tests import tiny_run

TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]


def with_adapters(model):
    rng = np.random.default_rng(5)
    enable_lora(model, 2)
    for weight in model.trainable_weights:
        weight.assign(rng.standard_normal(weight.shape) / 5)


def of_8_bits_with_adapters(model):
    model.quantize("int8")
    with_adapters(model)


def of_4_bits(model):
    model.quantize("int4")


WAYS = (
    of_8_bits_with_adapters,
    pytest.param(with_adapters, marks=pytest.mark.slow),
    pytest.param(of_4_bits, marks=pytest.mark.slow),
)


@pytest.fixture(params=WAYS)
def adapted(request):
    """A translator of random weights, fine-tuned or quantised."""
    model = tiny_run.model.__wrapped__()  # One that no other test has.
    request.param(model)
    config = tiny_run.CONFIG.decoding.replace(beam_size=2)
    return Translator(model, tiny_run.tokenizers(), config)


pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")


@pytest.mark.slow
def test_a_saved_model_translates_as_the_model(adapted, tmp_path):
    path = adapted.export(tmp_path / "model" / "1")
    loaded = tf.saved_model.load(str(path))
    found = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    texts = [text.decode() for text in found["translation"].numpy()]
    assert texts == adapted(TEXTS)


@pytest.mark.slow
def test_a_litert_file_translates_as_the_model(adapted, tmp_path):
    lite = LiteTranslator(adapted.export_litert(tmp_path / "lite"))
    assert lite(TEXTS) == adapted(TEXTS)
