"""The translator against a search by hand over the model's uncached logits."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import (
    DecodingConfig,
    TokenizerConfig,
    TokenizerPair,
    Transformer,
    Translator,
)
from tests import tiny_run

TEXTS = [
    "the good bear runs.",
    "a",
    "the old man sings and the young bird sleeps.",
    "dog",
    "the big dog",
]


@pytest.fixture(scope="module")
def translator():
    return tiny_run.translator()


@pytest.fixture(scope="module")
def greedy():
    return tiny_run.translator(beam_size=1)


@functools.cache
def graph_of(model):
    """The model's call as a graph for all shapes, since eager calls are slow."""
    ids = tf.TensorSpec([None, None], tf.int32)
    return tf.function(lambda s, t: model((s, t)), input_signature=[ids, ids])


def log_probabilities(model, source, prefixes):
    """Log-probabilities (R, V) of the token after each prefix, without a cache."""
    target_in = np.array([[1, *prefix] for prefix in prefixes], "int32")
    sources = np.repeat([source], len(prefixes), axis=0).astype("int32")
    logits = graph_of(model)(sources, target_in)[:, -1].numpy().astype("float64")
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def source_ids(translator, text):
    """Pieces, cut so that the end token has a place, and the end token."""
    pieces = translator.tokenizers.source.tokenize([text])[0].numpy()
    return [*pieces[: translator.config.max_source_length - 1], 2]


def search_by_hand(translator, text):
    """Every finished hypothesis of a beam search, best first: (score, ids)."""
    config, beam_size = translator.config, translator.config.beam_size
    source = source_ids(translator, text)
    limit = len(source) + config.max_extra_length
    alive, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        prefixes = [ids for _, ids in alive]
        scored = log_probabilities(translator.model, source, prefixes)
        scored[:, :2] = -np.inf  # Padding and start.
        candidates = sorted(
            (
                (total + float(row[id]), (*ids, int(id)))
                for (total, ids), row in zip(alive, scored, strict=True)
                for id in np.argsort(row)[-2 * beam_size :]
            ),
            reverse=True,
        )[: 2 * beam_size if beam_size > 1 else 1]
        ended = [c for c in candidates if c[1][-1] == 2 or length == limit]
        penalty = ((5 + length) / 6) ** config.length_penalty
        finished += [(total / penalty, ids) for total, ids in ended]
        alive = [c for c in candidates if c not in ended][:beam_size]
        if not alive:
            break
    return sorted(finished, reverse=True)


def to_text(translator, ids):
    return translator.tokenizers.target.detokenize([ids])[0].numpy().decode()


@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[1], TEXTS[3]])
def test_n_best_are_those_of_a_search_by_hand_over_uncached_logits(translator, text):
    expected = search_by_hand(translator, text)[:3]
    found = translator.translate([text], n_best=3)[0]
    assert [t.text for t in found] == [to_text(translator, i) for _, i in expected]
    np.testing.assert_allclose(
        [t.score for t in found], [score for score, _ in expected], rtol=1e-4
    )


def test_some_sentences_end_by_themselves_and_some_at_their_longest_output(translator):
    ended = {search_by_hand(translator, text)[0][1][-1] == 2 for text in TEXTS}
    assert ended == {True, False}


def test_n_best_are_sorted_and_differ(translator):
    for translations in translator.translate(TEXTS, n_best=3):
        scores = [translation.score for translation in translations]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert len(set(scores)) == 3


def test_a_beam_of_one_takes_the_most_probable_token_at_every_step(greedy):
    for text, translation in zip(TEXTS, greedy(TEXTS), strict=True):
        source = source_ids(greedy, text)
        ids = []
        while len(ids) < len(source) + 3 and 2 not in ids:
            scored = log_probabilities(greedy.model, source, [ids])[0]
            ids.append(2 + int(np.argmax(scored[2:])))
        assert translation == to_text(greedy, ids)


def test_a_wider_beam_never_scores_less_here(translator, greedy):
    wide, narrow = translator.translate(TEXTS), greedy.translate(TEXTS)
    pairs = [(w[0].score, n[0].score) for w, n in zip(wide, narrow, strict=True)]
    assert all(w >= n - 1e-5 for w, n in pairs)
    assert any(w > n + 1e-3 for w, n in pairs)


@pytest.mark.parametrize("batch_size", [2, 32])
def test_a_batch_gives_what_single_sentences_give(translator, batch_size):
    alone = [translator.translate([text], n_best=2)[0] for text in TEXTS]
    together = translator.translate(TEXTS, n_best=2, batch_size=batch_size)
    for one, many in zip(alone, together, strict=True):
        assert [t.text for t in many] == [t.text for t in one]
        np.testing.assert_allclose(
            [t.score for t in many], [t.score for t in one], rtol=1e-4
        )


def test_translations_keep_the_order_of_the_texts(greedy):
    forward = greedy(TEXTS, batch_size=2)
    assert len(set(forward)) == len(TEXTS)
    assert greedy(TEXTS[::-1], batch_size=2) == forward[::-1]


@pytest.mark.parametrize("blank", ["", "   ", "\t", "\n", "\u3000"])
def test_nothing_in_nothing_out(translator, blank):
    assert translator.translate([blank], n_best=1) == [[("", 0.0)]]
    assert translator([TEXTS[0], blank]) == [*translator([TEXTS[0]]), ""]


def test_no_texts_give_no_translations(translator):
    assert translator([]) == []


def test_an_over_long_text_is_cut_at_max_source_length(greedy):
    pieces = greedy.tokenizers.source.tokenize([TEXTS[2]])[0]
    kept = greedy.tokenizers.source.detokenize([pieces[:31]])[0].numpy().decode()
    assert len(pieces) > 32
    assert TEXTS[2].startswith(kept)
    assert greedy.translate([TEXTS[2]]) == greedy.translate([kept])
    assert greedy.translate([kept]) != greedy.translate([kept[:-2]])


@pytest.mark.parametrize("text", ["</s>", "<s> dog </s>", "<pad>", "🐈 sleeps 👍🏽"])
def test_odd_text_is_plain_text(translator, text):
    ids = translator.tokenizers.source.tokenize([text])[0].numpy()
    assert min(ids) > 3
    expected = search_by_hand(translator, text)[0]
    (found,) = translator.translate([text])[0]
    assert found.text == to_text(translator, expected[1])
    assert found.score == pytest.approx(expected[0], rel=1e-4)


def test_saved_and_loaded_it_gives_the_same(translator, tmp_path):
    translator.save(tmp_path / "saved")
    loaded = Translator.load(tmp_path / "saved")
    assert loaded.config == translator.config
    assert loaded.translate(TEXTS, 2) == translator.translate(TEXTS, 2)
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == [
        "decoding.json", "model.keras", "tokenizer"
    ]  # fmt: skip


def test_loading_takes_another_search(translator, tmp_path):
    translator.save(tmp_path)
    config = DecodingConfig(beam_size=7)
    assert Translator.load(tmp_path, config).config is config


@pytest.mark.parametrize("missing", ["model.keras", "tokenizer", "decoding.json"])
def test_loading_names_what_is_missing(tmp_path, missing):
    for name in {"model.keras", "tokenizer", "decoding.json"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=f"translator: {missing} is missing"):
        Translator.load(tmp_path)


def test_another_vocabulary_is_refused(translator):
    smaller = dataclasses.replace(TokenizerConfig(), vocabulary_size=290)
    others = TokenizerPair.learn(*zip(*tiny_run.PAIRS, strict=True), smaller)
    with pytest.raises(ValueError, match="290 pieces, source_vocabulary_size=300"):
        Translator(translator.model, others)


@pytest.mark.parametrize(("max_positions", "fits"), [(34, False), (35, True)])
def test_learned_positions_must_reach_the_longest_output(max_positions, fits):
    model = tiny_run.model(positions="learned", max_positions=max_positions)
    parts = (model, tiny_run.tokenizers(), tiny_run.CONFIG.decoding)
    if fits:
        assert Translator(*parts).config.max_source_length == 32
        return
    with pytest.raises(ValueError, match="35 tokens, max_positions=34"):
        Translator(*parts)


@pytest.mark.parametrize("texts", ["a dog", b"a dog", [b"a dog"], [None], ["a", 1]])
def test_texts_must_be_a_sequence_of_strings(translator, texts):
    with pytest.raises(TypeError, match="`texts` must be a sequence of strings"):
        translator(texts)


def test_a_model_with_other_special_ids_is_refused():
    sizes = tiny_run.model().config.replace(pad_id=3, unknown_id=0)
    with pytest.raises(ValueError, match="must have the same `pad_id`"):
        Translator(Transformer(sizes), tiny_run.tokenizers())
