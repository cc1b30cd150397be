"""Runs and SavedModels as the playground asks them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Translator
from keras_transformer.generation.generator import Generator
from keras_transformer.playground import check_models, live_model
from keras_transformer.playground.exported_model import ExportedModel
from keras_transformer.playground.live_model import LiveModel
from keras_transformer.playground.models import load_models
from keras_transformer.playground.questions import (
    AttentionQuestion,
    TranslationQuestion,
)
from keras_transformer.serving.errors import RequestError
from tests import tiny_run

TEXT = "the old man sleeps."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory of a run with two decoder layers, of which the first is shown."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    translator().save(path)
    return path


def translator():
    model = tiny_run.model(num_decoder_layers=2)
    config = tiny_run.CONFIG.decoding.replace(beam_size=3, alignment_layer=-2)
    return Translator(model, tiny_run.tokenizers(), config)


@pytest.fixture(scope="module")
def live(run):
    return LiveModel(run)


@pytest.fixture
def eager(monkeypatch):
    """Lets new functions run without a graph: to make one takes seconds."""
    monkeypatch.setattr(live_model, "as_graph", lambda function, signature: function)


def asked(model, text=TEXT, **options):
    return model.translate(TranslationQuestion(0, text, **options))


def found(answer):
    return [(each["text"], each["score"]) for each in answer["translations"]]


def attended(model, translation, **options):
    question = AttentionQuestion(
        0, TEXT, translation["text"], translation.get("tokens"), **options
    )
    answer = model.attend(question)
    return answer, np.array(answer["weights"])


def ids(translation):
    """Source and target as the model reads them."""
    pair = tiny_run.tokenizers()
    source = [*pair.source.tokenize([TEXT])[0].numpy(), pair.source.end_id]
    return np.array([source], "int32"), np.array([translation["tokens"]], "int32")


def check_found(translation):
    """Checks the text and the score of a translation against its ids."""
    tokens = translation["tokens"]
    detokenized = tiny_run.tokenizers().target.detokenize([tokens]).numpy()[0]
    assert translation["text"] == detokenized.decode("utf-8")
    scores = Generator(translator().model, translator().config).score(*ids(translation))
    penalty = ((5 + len(tokens)) / 6) ** 0.6
    assert translation["score"] == pytest.approx(np.sum(scores) / penalty, rel=1e-4)


def test_a_run_gives_the_best_of_its_search(live):
    answer = asked(live, count=3)
    scores = [score for _, score in found(answer)]
    assert len(set(found(answer))) == 3 and scores == sorted(scores, reverse=True)
    for translation in answer["translations"]:
        check_found(translation)
    assert answer["truncated"] is False
    assert found(asked(live, count=2)) == found(answer)[:2]
    assert found(asked(live, prefix="  ", count=3)) == found(answer)
    assert asked(live, text=f"{TEXT} " * 9)["truncated"] is True


def test_a_run_searches_with_any_beam(live, eager):
    assert live.offer.beam_size == 3
    wide = asked(live, beam_size=6, count=10)["translations"]
    assert len(wide) == 6 and len(asked(live, count=10)["translations"]) == 3
    check_found(wide[5])


def test_a_run_goes_on_from_a_beginning(live):
    answer = asked(live, prefix="der Hund", count=3)
    (begun,) = answer["translations"]
    prefix = tiny_run.tokenizers().target.tokenize(["der Hund"])[0].numpy().tolist()
    assert begun["tokens"][: len(prefix)] == prefix
    assert begun["text"].startswith("der Hund")
    check_found(begun)
    assert answer["truncated"] is False
    assert asked(live, prefix="der Hund " * 30)["truncated"] is True


def test_a_run_draws_with_a_seed_for_each(live):
    drawn = asked(live, temperature=2.0, seed=5, count=4)
    assert len({text for text, _ in found(drawn)}) > 1
    later = found(asked(live, temperature=2.0, seed=6, count=3))
    for (text, score), (expected, its_score) in zip(
        later, found(drawn)[1:], strict=True
    ):
        assert (text, score) == (expected, pytest.approx(its_score, rel=1e-4))
    check_found(drawn["translations"][0])
    coldest = found(asked(live, temperature=0.0, seed=5, count=3))
    assert len({text for text, _ in coldest}) == 1


def test_a_run_tells_what_any_translation_looks_at(live, eager):
    assert (live.offer.layers, live.offer.layer, live.offer.heads) == (2, 0, 2)
    translation = asked(live, count=3)["translations"][1]
    answer, weights = attended(live, translation)
    sides = tiny_run.tokenizers().source, tiny_run.tokenizers().target
    for side, tokenizer, row in zip(answer, sides, ids(translation), strict=False):
        assert answer[side]["pieces"] == tokenizer.pieces(row[0])
        counts = [count for _, count in answer[side]["words"]]
        assert sum(counts) == len(answer[side]["pieces"])
    words = [text for text, _ in answer["source"]["words"]]
    assert words == ["the", "old", "man", "sleeps", ".", "</s>"]
    model = translator().model
    for layer in range(2):
        config = translator().config.replace(alignment_layer=layer)
        heads = np.array(Generator(model, config).attention(*ids(translation)))[0]
        _, of_layer = attended(live, translation, layer=layer)
        np.testing.assert_allclose(of_layer, heads.mean(0), atol=1e-4)
        assert np.allclose(of_layer, weights, atol=1e-4) == (layer == 0)
        for head in range(2):
            _, of_head = attended(live, translation, layer=layer, head=head)
            np.testing.assert_allclose(of_head, heads[head], atol=1e-4)


@pytest.mark.parametrize(
    "options, message",
    (
        ({"layer": 2}, "`layer` must be from 0 to 1. Received: layer=2"),
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


@pytest.mark.slow
def test_a_saved_model_answers_as_its_run(run, tmp_path):
    """The plumbing alone is tried below, with graphs that are quickly made."""
    translator().export(tmp_path / "tiny")
    live, exported = load_models([run, tmp_path / "tiny"])
    assert exported.offer.kind == "SavedModel"
    for options in (
        {"count": 3},
        {"prefix": "der Hund"},
        {"temperature": 2.0, "seed": 5, "count": 4},
    ):
        answers = [asked(model, **options) for model in (live, exported)]
        texts, scores = zip(
            *(zip(*found(each), strict=True) for each in answers), strict=True
        )
        assert texts[0] == texts[1]
        np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4)
    best = asked(live)["translations"][0]
    of_run, of_export = (attended(model, best) for model in (live, exported))
    assert of_run[0]["target"] == of_export[0]["target"]
    np.testing.assert_allclose(of_run[1], of_export[1], atol=1e-3)


class Shout(tf.Module):
    """Signatures like those of an export: capitals, each of which looks at itself."""

    def default(self, text):
        return {
            "translation": tf.strings.upper(text),
            "score": tf.zeros(tf.shape(text)),
        }

    def nbest(self, text):
        texts = tf.stack([tf.strings.upper(text), tf.strings.lower(text), text], 1)
        scores = tf.constant([[-1.0, -2.0, -np.inf]])
        truncated = tf.strings.length(text) > 9
        return {"translations": texts, "scores": scores, "truncated": truncated}

    def complete(self, text, prefix):
        return {"translation": prefix + text, "score": tf.zeros(tf.shape(text))}

    def sample(self, text, temperature, seed):
        texts = text + tf.strings.as_string(seed)
        return {"translation": texts, "score": -temperature}

    def align(self, text):
        tokens = (
            tf.constant([["▁", "", ""]])
            + tf.strings.unicode_split(
                tf.strings.substr(text, 0, 3), "UTF-8"
            ).to_tensor()
        )
        return {
            "translation": tf.strings.upper(text), "source_tokens": tokens,
            "target_tokens": tokens, "attention": tf.eye(3)[None],
        }  # fmt: skip


def save(path, names):
    """A SavedModel with some of the signatures of `Shout`."""
    module = Shout()
    texts = {
        name: tf.TensorSpec([None], tf.string, name) for name in ("text", "prefix")
    }
    texts["temperature"] = tf.TensorSpec([None], tf.float32, "temperature")
    texts["seed"] = tf.TensorSpec([None], tf.int64, "seed")
    inputs = {"complete": ["prefix"], "sample": ["temperature", "seed"]}
    signatures = {}
    for name in names:
        function = getattr(module, name.replace("serving_default", "default"))
        specs = [texts[each] for each in ("text", *inputs.get(name, ()))]
        signatures[name] = tf.function(function, input_signature=specs, autograph=False)
    tf.saved_model.save(module, str(path), signatures=signatures)


def test_a_saved_model_answers_by_its_signatures(tmp_path):
    save(
        tmp_path / "shout/1",
        ("serving_default", "nbest", "complete", "sample", "align"),
    )
    model = ExportedModel(tmp_path / "shout")
    offer = model.offer
    assert offer.several and offer.prefix and offer.sampling
    assert (offer.attention, offer.beam_size, len(offer.missing)) == ("best", None, 2)
    answer = asked(model, text="abC", count=5)
    assert found(answer) == [("ABC", -1.0), ("abc", -2.0)]
    assert answer["truncated"] is False
    assert asked(model, text="a" * 10)["truncated"] is True
    assert found(asked(model, text="abc")) == [("ABC", -1.0)]
    assert found(asked(model, text="b", prefix="ä")) == [("äb", 0.0)]
    drawn = asked(model, text="a", temperature=0.5, seed=3, count=2)
    assert found(drawn) == [("a3", -0.5), ("a4", -0.5)]
    seen = model.attend(AttentionQuestion(0, "abc", "ABC"))
    assert seen["weights"] == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert seen["source"] == {"pieces": ["▁a", "b", "c"], "words": [["abc", 3]]}
    for options in ({"translation": "abc"}, {"layer": 0}, {"head": 0}):
        question = AttentionQuestion(0, "abc", **{"translation": "ABC"} | options)
        with pytest.raises(RequestError, match="It tells what its best translation"):
            model.attend(question)
    with pytest.raises(RequestError, match="Its beam was fixed"):
        asked(model, beam_size=2)


def test_a_saved_model_with_fewer_signatures_says_what_it_lacks(tmp_path):
    save(tmp_path, ["serving_default"])
    model = ExportedModel(tmp_path)
    assert found(asked(model, text="abc", count=3)) == [("ABC", 0.0)]
    offer = model.offer
    assert not (offer.several or offer.prefix or offer.sampling)
    assert (offer.attention, len(offer.missing)) == ("none", 5)
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
    save(tmp_path / "1", ["align"])
    with pytest.raises(ValueError, match="must be a translator .*: signatures align$"):
        ExportedModel(tmp_path)


def test_directories_are_looked_at_before_anything_is_loaded(tmp_path):
    run, saved = tmp_path / "run", tmp_path / "name" / "2"
    for directory, file in ((run, "model.keras"), (saved, "saved_model.pb")):
        directory.mkdir(parents=True)
        (directory / file).touch()
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
