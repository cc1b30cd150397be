"""Runs and SavedModels as the playground asks them, beside the translator itself."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.generation.generator import Generator
from keras_transformer.playground import check_models
from keras_transformer.playground.exported_model import ExportedModel
from keras_transformer.playground.live_model import LiveModel
from keras_transformer.playground.models import load_models
from keras_transformer.playground.questions import (
    AttentionQuestion,
    TranslationQuestion,
)
from keras_transformer.serving.errors import RequestError
from tests import tiny_run
from tests.test_recurrent_translator import translator as recurrent_translator

TEXT = "the old man sleeps."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "tiny"
    tiny_run.translator().save(path)
    return path


@pytest.fixture(scope="module")
def live(run):
    return LiveModel(run)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return ExportedModel(tiny_run.saved_model(tmp_path_factory).parent)


def asked(model, text=TEXT, **options):
    return model.translate(TranslationQuestion(0, text, **options))


def found(answer):
    return [(each["text"], each["score"]) for each in answer["translations"]]


def nearly(translations):
    return [(text, pytest.approx(score, rel=1e-4)) for text, score in translations]


@pytest.mark.parametrize("name", ("live", "exported"))
def test_a_model_answers_as_its_translator(name, request):
    model, translator = request.getfixturevalue(name), tiny_run.translator()
    answer = asked(model, count=3)
    assert found(answer) == nearly(translator.translate([TEXT], n_best=3)[0])
    assert answer["truncated"] is False
    assert found(asked(model, count=2)) == found(answer)[:2]
    begun = asked(model, prefix="der Hund", count=3)
    assert found(begun) == nearly(translator.complete([TEXT], ["der Hund"]))
    assert found(begun)[0][0].startswith("der Hund")
    assert found(asked(model, prefix="  ", count=3)) == found(answer)
    drawn = asked(model, temperature=2.0, seed=5, count=4)
    assert found(drawn) == nearly(translator.sample([TEXT] * 4, 2.0, seed=5))
    assert len({text for text, _ in found(drawn)}) > 1
    assert asked(model, text=f"{TEXT} " * 9)["truncated"] is True


def test_a_run_searches_with_any_beam(live):
    wide = Translator(
        tiny_run.model(),
        tiny_run.tokenizers(),
        tiny_run.CONFIG.decoding.replace(beam_size=6),
    )
    answer = asked(live, beam_size=6, count=10)
    assert found(answer) == nearly(wide.translate([TEXT], n_best=6)[0])
    assert live.offer.beam_size == 3


def attended(model, translation, **options):
    question = AttentionQuestion(
        0, TEXT, translation["text"], translation.get("tokens"), **options
    )
    answer = model.attend(question)
    return answer, np.array(answer["weights"])


def test_a_run_tells_what_its_best_translation_looks_at(live):
    aligned = tiny_run.translator().align([TEXT], per_head=True)[0]
    best = asked(live)["translations"][0]
    answer, weights = attended(live, best)
    assert answer["source"]["pieces"] == aligned.source_tokens
    assert answer["target"]["pieces"] == aligned.target_tokens
    words = [text for text, _ in answer["source"]["words"]]
    assert words == ["the", "old", "man", "sleeps", ".", "</s>"]
    np.testing.assert_allclose(weights, aligned.attention.mean(0), atol=1e-4)
    for head, expected in enumerate(aligned.attention):
        _, weights = attended(live, best, head=head)
        np.testing.assert_allclose(weights, expected, atol=1e-4)
    assert live.offer.heads == len(aligned.attention) == 2


def test_a_run_tells_what_any_translation_looks_at(live):
    second = asked(live, count=3)["translations"][1]
    _, weights = attended(live, second)
    translator = tiny_run.translator()
    source = [*translator.tokenizers.source.tokenize([TEXT])[0].numpy(), 2]
    expected = Generator(translator.model, translator.config).attention(
        np.array([source], "int32"), np.array([second["tokens"]], "int32")
    )
    np.testing.assert_allclose(weights, np.mean(expected[0], axis=0), atol=1e-4)


def test_a_run_has_attention_of_each_layer(tmp_path):
    model = tiny_run.model(num_decoder_layers=2)
    config = tiny_run.CONFIG.decoding.replace(alignment_layer=-2)
    translator = Translator(model, tiny_run.tokenizers(), config)
    translator.save(tmp_path)
    live = LiveModel(tmp_path)
    assert (live.offer.layers, live.offer.layer) == (2, 0)
    best = asked(live)["translations"][0]
    of_first, of_second = (attended(live, best, layer=i)[1] for i in (0, 1))
    np.testing.assert_allclose(attended(live, best)[1], of_first)
    np.testing.assert_allclose(
        of_first, translator.align([TEXT])[0].attention, atol=1e-4
    )
    assert not np.allclose(of_first, of_second, atol=1e-2)


@pytest.mark.parametrize(
    "options, message",
    (
        ({"layer": 1}, "`layer` must be from 0 to 0. Received: layer=1"),
        ({"head": 2}, "`head` must be from 0 to 1. Received: head=2"),
        ({"tokens": [999]}, r"`tokens` must be from 0 to \d+. Received: tokens=999"),
        ({"tokens": [5] * 99}, "`tokens` are more than any translation has"),
        ({"tokens": None}, "`tokens` is missing"),
    ),
)
def test_a_run_refuses_what_it_has_not(live, options, message):
    question = AttentionQuestion(
        0, TEXT, **{"translation": "", "tokens": [2]} | options
    )
    with pytest.raises(RequestError, match=message):
        live.attend(question)


def test_a_saved_model_tells_what_its_best_translation_looks_at(exported):
    aligned = tiny_run.translator().align([TEXT])[0]
    answer, weights = attended(exported, asked(exported)["translations"][0])
    assert answer["target"]["pieces"] == aligned.target_tokens
    np.testing.assert_allclose(weights, aligned.attention, atol=1e-3)
    second = asked(exported, count=3)["translations"][1]
    for options in ({}, {"layer": 0}, {"head": 0}):
        with pytest.raises(RequestError, match="It tells what its best translation"):
            attended(exported, second, **options)
    with pytest.raises(RequestError, match="Its beam was fixed"):
        asked(exported, beam_size=2)


def test_a_saved_model_with_fewer_signatures_says_what_it_lacks(tmp_path):
    module = tf.Module()
    text = tf.TensorSpec([None], tf.string, "text")

    @tf.function(input_signature=[text])
    def upper(text):
        score = tf.zeros(tf.shape(text))
        return {"translation": tf.strings.upper(text), "score": score}

    path = tmp_path / "upper" / "1"
    tf.saved_model.save(module, str(path), signatures={"serving_default": upper})
    model = ExportedModel(path)
    assert found(asked(model, text="abc", count=3)) == [("ABC", 0.0)]
    offer = model.offer
    assert not (offer.several or offer.prefix or offer.sampling or offer.beam_size)
    assert offer.attention == "none"
    assert len(offer.missing) == 5
    assert "It takes no beginning: it has no signature `complete`." in offer.missing
    for options, message in (
        ({"prefix": "A"}, "takes no beginning"),
        ({"temperature": 1.0}, "draws no translations"),
    ):
        with pytest.raises(RequestError, match=message):
            asked(model, **options)
    with pytest.raises(RequestError, match="does not tell what it looks at"):
        model.attend(AttentionQuestion(0, "abc", "ABC"))


def test_another_saved_model_is_refused(tmp_path):
    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def double(x):
        return {"y": 2 * x}

    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"twice": double})
    with pytest.raises(ValueError, match="must be a translator .*: signatures twice$"):
        ExportedModel(tmp_path)


def test_a_recurrent_run_has_one_layer_and_one_head(tmp_path):
    recurrent_translator().save(tmp_path)
    (live,) = load_models([tmp_path])
    assert (live.offer.layers, live.offer.heads) == (1, 0)
    best = asked(live)["translations"][0]
    aligned = recurrent_translator().align([TEXT])[0]
    assert best["text"] == aligned.translation
    np.testing.assert_allclose(attended(live, best)[1], aligned.attention, atol=1e-4)


def test_directories_are_looked_at_before_anything_is_loaded(run, tmp_path):
    saved = tmp_path / "name" / "2"
    saved.mkdir(parents=True)
    (saved / "saved_model.pb").touch()
    check_models([run, saved])
    check_models([saved.parent])
    with pytest.raises(ValueError, match="one model or two, .* Received: 3"):
        check_models([run] * 3)
    with pytest.raises(FileNotFoundError, match="nothing is not a directory"):
        check_models([run, tmp_path / "nothing"])
    (tmp_path / "1").mkdir()
    with pytest.raises(ValueError, match="must be the directory .* Received: neither"):
        check_models([tmp_path])
    (tmp_path / "translator.json").touch()
    with pytest.raises(ValueError, match="an export for LiteRT or for browsers"):
        check_models([tmp_path])
