"""Exports of models with every kind of option, and what no format takes."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import LiteTranslator, Transformer, Translator, enable_lora
from keras_transformer.formats import litert
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


def without_bytes(model):
    bias = model.output_bias.numpy().copy()
    bias[:2] = bias[4:268] = -1000.0
    model.output_bias.assign(bias)


# Options of the model, of the search, and what is done to the model before.
PLAIN = {"beam_size": 3, "min_output_length": 3}
CASES = {
    "rotary, one head of keys": (
        {"positions": "rotary", "num_key_value_heads": 1}, PLAIN, None,
    ),
    "ALiBi": ({"positions": "alibi"}, PLAIN, None),
    "learned": (
        {"norm_first": True, "positions": "learned", "max_positions": 40}, PLAIN, None,
    ),
    "deep": (
        {"num_encoder_layers": 2, "num_decoder_layers": 2, "activation": "gelu"},
        {"beam_size": 1}, None,
    ),
    "Marian's": (
        {
            "layer_norm_epsilon": 0.01, "positions": "sinusoidal-marian",
            "normalize_embeddings": True, "decoder_self_attention": "ssru",
            "output_bias": True,
        },
        PLAIN | {"length_penalty": 0.8, "length_penalty_form": "power"},
        without_bytes,
    ),
    "every option of the search": (
        {},
        {
            "beam_size": 2, "no_repeat_ngram_size": 2,
            "length_penalty": 1.0, "min_output_length": 4, "max_output_length": 9,
            "top_k": 7, "top_p": 0.9,
        },
        None,
    ),
    "int8 and adapters": ({}, {"beam_size": 2}, of_8_bits_with_adapters),
    "adapters": ({}, {"beam_size": 2}, with_adapters),
    "int4": ({}, {"beam_size": 2}, lambda model: model.quantize("int4")),
}  # fmt: skip
FAST = "rotary, one head of keys"

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == FAST else pytest.mark.slow)
        for name in CASES
    ],
)
def live(request):
    options, search, change = CASES[request.param]
    model = tiny_run.model.__wrapped__(**options)  # One that no other test has.
    if change is not None:
        change(model)
    config = tiny_run.CONFIG.decoding.replace(**search)
    return Translator(model, tiny_run.tokenizers(), config)


def test_a_saved_model_translates_as_the_model(live, tmp_path):
    expected = live.translate(TEXTS)
    assert len({translation.score for translation in expected}) == len(TEXTS)
    loaded = tf.saved_model.load(str(live.export(tmp_path / "model" / "1")))
    outputs = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    texts = [text.decode() for text in outputs["translation"].numpy()]
    assert texts == [translation.text for translation in expected]
    scores = [translation.score for translation in expected]
    np.testing.assert_allclose(outputs["score"], scores, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["litert", "onnx"])
def test_a_file_of_ids_translates_as_the_model(live, format, tmp_path):
    lite = LiteTranslator(live.export(tmp_path / "lite", format))
    assert lite(TEXTS) == live(TEXTS)
    greedy = lite.sample(TEXTS, temperature=0.0), live.sample(TEXTS, temperature=0.0)
    for found, expected in zip(*greedy, strict=True):
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score, abs=1e-4)
    wild = lite.sample(TEXTS, temperature=np.inf)
    assert wild == lite.sample(TEXTS, temperature=1e9)
    assert [t.text for t in wild] != lite(TEXTS)


# What no format takes.


class Other(Transformer):
    """A model that may compute anything."""


def with_model(**options):
    """A function that makes a translator of a model with options."""

    def make():
        model = tiny_run.model(**options)
        return Translator(model, tiny_run.tokenizers(), tiny_run.CONFIG.decoding)

    return make


def changed(change):
    """A function that makes a translator of a model of its own, and changes that."""

    def make():
        model = tiny_run.model.__wrapped__()  # One that no other test has.
        parts = tiny_run.tokenizers(), tiny_run.CONFIG.decoding
        other = change(model)  # Keras may return a report.
        return Translator(other if isinstance(other, Other) else model, *parts)

    return make


def of_two_models():
    return Translator.ensemble([tiny_run.translator()] * 2)


def with_languages():
    live = tiny_run.translator()
    tokenizers = tiny_run.tokenizers.__wrapped__()  # One that no other test has.
    tokenizers.source.languages = {"<de>": 9}
    return Translator(live.model, tokenizers, live.config)


live_one, quantised = tiny_run.translator, changed(lambda model: model.quantize("int8"))
adapted = changed(lambda model: enable_lora(model, 2))
other_kind = changed(lambda model: Other(model.config))
LANGUAGES = "does not support target languages"
# The format, what makes the translator, options, the error and its words.
REFUSED = [
    ("tflite", live_one, {}, ValueError, "`format` must be one of saved_model, litert"),
    ("saved_model", live_one, {"quantize": None}, TypeError, "'quantize'"),
    ("saved_model", live_one, {"languages": ["en"]}, ValueError, "must be two codes"),
    ("saved_model", live_one, {"run": "x"}, FileNotFoundError, "no training run"),
    ("litert", live_one, {"litert_js": None}, TypeError, "'litert_js'"),
    ("litert", live_one, {"languages": ["en"]}, ValueError, "must be two codes"),
    ("litert", live_one, {"quantize": "int4"}, ValueError, "one of none, float16, in"),
    ("litert", with_languages, {}, ValueError, LANGUAGES),
    ("web", live_one, {"dtype": None}, TypeError, "'dtype'"),
    ("web", with_languages, {}, ValueError, LANGUAGES),
    ("safetensors", live_one, {"run": None}, TypeError, "'run'"),
    ("safetensors", adapted, {}, ValueError, "merges them.*with an adapter"),
    ("safetensors", of_two_models, {}, ValueError, "Received: Ensemble"),
    ("ctranslate2", live_one, {"languages": None}, TypeError, "'languages'"),
    ("ctranslate2", live_one, {"quantize": "int4"}, ValueError, "of none, float16"),
    ("ctranslate2", with_languages, {}, ValueError, LANGUAGES),
    ("ctranslate2", adapted, {}, ValueError, "with an adapter"),
    ("ctranslate2", quantised, {}, ValueError, "quantization_mode='int8'"),
    ("ctranslate2", other_kind, {}, ValueError, "Received: Other"),
    *(
        ("ctranslate2", with_model(**{n: value}), {}, ValueError, f"{n}={value!r}")
        for n, value in {
            "activation": "softplus", "key_dim": 3, "value_dim": 3,
            "decoder_self_attention": "ssru", "positions": "rotary",
            "num_key_value_heads": 1,
        }.items()
    ),
]  # fmt: skip


@pytest.mark.parametrize(("format", "make", "options", "error", "words"), REFUSED)
def test_what_a_format_lacks_is_named(tmp_path, format, make, options, error, words):
    with pytest.raises(error, match=words):
        make().export(tmp_path / "model", format, **options)
    assert not list(tmp_path.iterdir())


def test_a_path_that_exists_and_a_failure_are_left_as_they_were(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    with pytest.raises(FileExistsError, match="never overwritten"):
        tiny_run.translator().export(tmp_path / "old", "litert")
    monkeypatch.setattr(litert, "convert", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tiny_run.translator().export(tmp_path / "new", "litert")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
