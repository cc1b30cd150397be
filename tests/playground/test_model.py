"""A run as the playground asks it."""

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.apps.playground.played_run import PlayedRun
from keras_transformer.apps.serving.tensors import RequestError
from keras_transformer.search.generator import Generator
from keras_transformer.text.words import labels_of
from tests import tiny_run

TEXT = "the old man sleeps."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with two decoder layers, of which the first is shown."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    translator().save(path)
    return PlayedRun(path)


def translator():
    model = tiny_run.model(num_decoder_layers=2)
    config = tiny_run.CONFIG.decoding.replace(beam_size=3, alignment_layer=-2)
    return Translator(model, tiny_run.tokenizers(), config)


@pytest.fixture
def eager(monkeypatch):
    """Lets new functions run without a graph: to make one takes seconds."""
    as_graph = "keras_transformer.search.translator.as_graph"
    monkeypatch.setattr(as_graph, lambda function, signature: function)


def found(answer):
    return [(each["text"], each["score"]) for each in answer["translations"]]


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


def test_it_gives_the_best_of_its_search(run):
    answer = run.translate(TEXT, count=3)
    texts, scores = zip(*found(answer), strict=True)
    assert texts == tuple(t.text for t in translator().translate([TEXT], 3)[0])
    assert len(set(texts)) == 3 and list(scores) == sorted(scores, reverse=True)
    for translation in answer["translations"]:
        check_found(translation)
    assert answer["truncated"] is False
    assert found(run.translate(TEXT, count=2)) == found(answer)[:2]
    assert found(run.translate(TEXT, prefix="  ", count=3)) == found(answer)
    assert run.translate(f"{TEXT} " * 9)["truncated"] is True


def test_it_searches_with_any_beam(run, eager):
    assert run.facts["beam_size"] == 3
    wide = run.translate(TEXT, beam_size=6, count=10)["translations"]
    assert len(wide) == 6 and len(run.translate(TEXT, count=10)["translations"]) == 3
    check_found(wide[5])


def test_it_goes_on_from_a_beginning(run, eager):
    answer = run.translate(TEXT, prefix="der Hund", count=3)
    (begun,) = answer["translations"]
    prefix = tiny_run.tokenizers().target.tokenize(["der Hund"])[0].numpy().tolist()
    assert begun["tokens"][: len(prefix)] == prefix
    check_found(begun)
    assert answer["truncated"] is False
    assert run.translate(TEXT, prefix="der Hund " * 30)["truncated"] is True


def test_it_draws_with_a_seed_for_each(run, eager):
    drawn = run.translate(TEXT, temperature=2.0, seed=5, count=4)
    assert len({text for text, _ in found(drawn)}) > 1
    later = found(run.translate(TEXT, temperature=2.0, seed=6, count=3))
    for (text, score), (expected, its_score) in zip(
        later, found(drawn)[1:], strict=True
    ):
        assert (text, score) == (expected, pytest.approx(its_score, rel=1e-4))
    check_found(drawn["translations"][0])
    coldest = found(run.translate(TEXT, temperature=0, seed=5, count=3))
    assert len({text for text, _ in coldest}) == 1


def test_it_tells_what_any_translation_looks_at(run, eager):
    facts = run.facts
    assert (facts["layers"], facts["layer"], facts["heads"]) == (2, 0, 2)
    translation = run.translate(TEXT, count=3)["translations"][1]
    tokens = translation["tokens"]
    answer = run.attend(TEXT, tokens, 0)
    for side, row in zip(("source", "target"), ids(translation), strict=True):
        tokenizer = getattr(tiny_run.tokenizers(), side)
        assert answer[side]["pieces"] == labels_of(tokenizer.pieces(row[0]))
        counts = [count for _, count in answer[side]["words"]]
        assert sum(counts) == len(answer[side]["pieces"])
    words = [text for text, _ in answer["source"]["words"]]
    assert words == ["the", "old", "man", "sleeps", ".", "(end)"]
    for layer in range(2):
        config = translator().config.replace(alignment_layer=layer)
        generator = Generator(translator().model, config)
        heads = np.array(generator.attention(*ids(translation)))[0]
        of_layer = run.attend(TEXT, tokens, layer)["weights"]
        np.testing.assert_allclose(of_layer, heads.mean(0), atol=1e-4)
        assert (of_layer == answer["weights"]) == (layer == 0)
        for head in range(2):
            of_head = run.attend(TEXT, tokens, layer, head)["weights"]
            np.testing.assert_allclose(of_head, heads[head], atol=1e-4)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("translate", {"text": "a" * 2001}, "`text` must be a text of at most 2,000"),
        ("translate", {"text": 5}, "`text` must be a text"),
        ("translate", {"prefix": "a" * 2001}, "`prefix` must be a text"),
        ("translate", {"count": 11}, "`count` must be a number from 1 to 10"),
        ("translate", {"count": True}, "`count` must be a number"),
        ("translate", {"beam_size": 17}, "`beam_size` must be a number from 1 to 16"),
        ("translate", {"temperature": -0.1}, "`temperature` must be a number from 0"),
        ("translate", {"temperature": float("nan")}, "`temperature` must be a number"),
        ("translate", {"temperature": "hot"}, "`temperature` must be a number"),
        ("translate", {"seed": 2**40}, "`seed` must be a number"),
        ("attend", {"layer": 2}, "`layer` must be a number from 0 to 1. Received: 2"),
        ("attend", {"head": 2}, "`head` must be a number from 0 to 1. Received: 2"),
        ("attend", {"tokens": [999]}, "`tokens` must be a number from 0 to "),
        ("attend", {"tokens": [1.5]}, "`tokens` must be a number"),
        ("attend", {"tokens": []}, "`tokens` must be a list of 1 to "),
        ("attend", {"tokens": [5] * 99}, "`tokens` must be a list"),
    ],
)
def test_it_refuses_what_it_has_not(run, eager, method, options, words):
    first = {"translate": {}, "attend": {"tokens": [2], "layer": 0}}[method]
    with pytest.raises(RequestError) as error:
        getattr(run, method)(**{"text": TEXT} | first | options)
    assert words in str(error.value)
