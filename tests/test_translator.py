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
    Transformer,
    Translator,
    learn_tokenizers,
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


def search_by_hand(translator, text, begun=()):
    """Every finished hypothesis of a beam search, best first: (score, ids).

    With `begun`, only those that start with these ids.
    """
    config, beam_size = translator.config, translator.config.beam_size
    source = source_ids(translator, text)
    limit = len(source) + config.max_extra_length
    if begun:
        limit = max(limit, len(begun) + 1 + config.max_extra_length)
    limit = min(limit, config.longest_output)
    alive, finished = [(0.0, ())], []
    for length in range(1, limit + 1):
        prefixes = [ids for _, ids in alive]
        scored = log_probabilities(translator.model, source, prefixes)
        scored[:, :2] = -np.inf  # Padding and start.
        if length <= len(begun):
            scored[:, np.arange(scored.shape[1]) != begun[length - 1]] = -np.inf
        candidates = sorted(
            (
                (total + float(row[id]), (*ids, int(id)))
                for (total, ids), row in zip(alive, scored, strict=True)
                for id in np.argsort(row)[-2 * beam_size :]
                if row[id] > -np.inf
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


def pieces_of(translator, text):
    return translator.tokenizers.target.tokenize([text])[0].numpy().tolist()


@pytest.mark.one_case
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


def test_a_wider_beam_never_scores_less_here():
    # No law: of these weights it holds.
    wide, narrow = (tiny_run.translator(n, seed=14).translate(TEXTS) for n in (3, 1))
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


@pytest.mark.one_case
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


@pytest.mark.one_case
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
        "decoding.json", "model.keras", "tokenizer", "tokenizer.sha256"
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
    others = learn_tokenizers(tiny_run.PAIRS, smaller)
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


PREFIXES = ["der", "der Bär", "s", "", "Hund die", "ßß"]


@pytest.mark.one_case
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_completion_is_that_of_a_search_by_hand_among_what_begins_so(beam_size):
    translator = tiny_run.translator(beam_size)
    texts = [*TEXTS, TEXTS[0]]
    for text, prefix, found in zip(
        texts, PREFIXES, translator.complete(texts, PREFIXES), strict=True
    ):
        begun = pieces_of(translator, prefix)
        score, ids = search_by_hand(translator, text, begun)[0]
        assert list(ids[: len(begun)]) == begun
        assert found.text == to_text(translator, ids)
        assert found.text.startswith(prefix)
        assert found.score == pytest.approx(score, rel=1e-4)


def test_an_empty_prefix_completes_to_the_translation(translator):
    expected = [best for (best,) in translator.translate(TEXTS)]
    found = translator.complete(TEXTS, [""] * len(TEXTS))
    assert [t.text for t in found] == [t.text for t in expected]
    np.testing.assert_allclose(
        [t.score for t in found], [t.score for t in expected], rtol=1e-5
    )


def test_nothing_and_no_prefix_complete_to_nothing(translator):
    found = translator.complete(["", "dog", " "], ["", "der", "die"])
    assert found[0] == ("", 0.0)
    assert found[2].text.startswith("die")
    assert found[1].text == translator.complete(["dog"], ["der"])[0].text


@pytest.mark.slow
def test_the_beginnings_of_a_greedy_translation_complete_to_it(greedy):
    for text, expected in zip(TEXTS, greedy.translate(TEXTS), strict=True):
        ids = search_by_hand(greedy, text)[0][1]
        # A prefix makes room for a longer output, as one that did not end may become.
        count = len(ids) if ids[-1] == 2 else len(source_ids(greedy, text))
        beginnings = [to_text(greedy, ids[:i]) for i in range(count)]
        # A beginning may be cut into other pieces than the translation grew from.
        beginnings = [
            prefix
            for i, prefix in enumerate(beginnings)
            if tuple(pieces_of(greedy, prefix)) == ids[:i]
        ]
        assert len(beginnings) >= 3
        found = greedy.complete([text] * len(beginnings), beginnings)
        assert {t.text for t in found} == {expected[0].text}
        scores = [t.score for t in found]
        np.testing.assert_allclose(scores, expected[0].score, rtol=1e-4)


def test_a_prefix_beyond_the_longest_output_is_cut_and_one_token_follows(translator):
    prefix = "die " + "der alte Bär schläft " * 20
    *pieces, cut_off = pieces_of(translator, prefix)[: translator.config.longest_output]
    found, other = translator.complete(["dog", TEXTS[0]], [prefix, "der"])
    score, ids = search_by_hand(translator, "dog", pieces)[0]
    assert len(ids) == translator.config.longest_output
    assert ids[-1] != cut_off
    assert found.text == to_text(translator, ids)
    assert found.score == pytest.approx(score, rel=1e-4)
    assert other.text == translator.complete([TEXTS[0]], ["der"])[0].text


def draw_by_hand(translator, text, temperature, seed):
    """A sample drawn over uncached logits, the ids in the order of the vocabulary."""
    config = translator.config
    source = source_ids(translator, text)
    seeds = tf.constant([seed, 0], tf.int64)
    uniforms = tf.random.stateless_uniform(
        [config.longest_output], seeds, alg="philox"
    ).numpy()
    ids, total = [], 0.0
    while len(ids) < len(source) + config.max_extra_length and 2 not in ids:
        scored = log_probabilities(translator.model, source, [ids])[0]
        order = np.arange(len(scored))
        if config.top_k or config.top_p:
            allowed = np.where(order < 2, -np.inf, scored)
            order = np.argsort(-allowed, kind="stable")[: config.top_k]
        weights = np.exp(scored[order] / temperature) * (order >= 2)
        if config.top_p:
            summed = weights.cumsum() / weights.sum()
            weights = weights[: np.argmax(summed >= config.top_p) + 1]
        place = np.argmax(weights.cumsum() > uniforms[len(ids)] * weights.sum())
        ids.append(int(order[place]))
        total += scored[ids[-1]]
    return to_text(translator, ids), total / ((5 + len(ids)) / 6) ** 0.6


@pytest.mark.one_case
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 5}, {"top_p": 0.8}, {"top_k": 7, "top_p": 0.9}], ids=str
)
def test_samples_are_those_drawn_by_hand_over_uncached_logits(options):
    translator = Translator(
        tiny_run.model(),
        tiny_run.tokenizers(),
        tiny_run.CONFIG.decoding.replace(**options),
    )
    samples = translator.sample(TEXTS, temperature=1.5, seed=40)
    for i, (text, found) in enumerate(zip(TEXTS, samples, strict=True)):
        expected, score = draw_by_hand(translator, text, 1.5, 40 + i)
        assert found.text == expected
        assert found.score == pytest.approx(score, rel=1e-4)


def test_a_sample_without_temperature_is_the_greedy_translation(translator, greedy):
    expected = [best for (best,) in greedy.translate(TEXTS)]
    found = translator.sample(TEXTS, temperature=0.0, seed=3)
    assert [t.text for t in found] == [t.text for t in expected]
    np.testing.assert_allclose(
        [t.score for t in found], [t.score for t in expected], rtol=1e-4
    )


def test_a_sample_among_one_token_is_the_greedy_translation(greedy):
    config = tiny_run.CONFIG.decoding.replace(top_k=1)
    translator = Translator(tiny_run.model(), tiny_run.tokenizers(), config)
    found = translator.sample(TEXTS, temperature=5.0)
    assert [t.text for t in found] == greedy(TEXTS)


def test_a_text_and_its_seed_alone_decide_a_sample(translator):
    together = translator.sample(TEXTS, temperature=1.5, seed=7)
    assert translator.sample(TEXTS, temperature=1.5, seed=7) == together
    in_pairs = translator.sample(TEXTS, temperature=1.5, seed=7, batch_size=2)
    assert [t.text for t in in_pairs] == [t.text for t in together]
    for i, text in enumerate(TEXTS):
        (alone,) = translator.sample([text], temperature=1.5, seed=7 + i)
        assert alone.text == together[i].text
        assert alone.score == pytest.approx(together[i].score, rel=1e-4)
    # Behind another text and among others, with the seed that it had.
    (_, moved, *_) = translator.sample(["", TEXTS[2], *TEXTS], 1.5, seed=8)
    assert moved.text == together[2].text


def test_other_seeds_and_higher_temperatures_draw_other_texts(translator, greedy):
    texts = [TEXTS[0]] * 20
    drawn = {t.text for t in translator.sample(texts, temperature=1.5, seed=1)}
    assert len(drawn) > 10
    (cold,) = {t.text for t in translator.sample(texts, temperature=1e-9, seed=1)}
    assert [cold] == greedy(texts[:1])
    hot = [t.text for t in translator.sample(texts, temperature=1e9, seed=1)]
    assert len(set(hot)) == 20
    assert cold not in hot


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf")])
def test_a_temperature_that_is_none_is_refused(translator, temperature):
    with pytest.raises(ValueError, match="`temperature` must be finite and at least 0"):
        translator.sample(["dog"], temperature=temperature)


@pytest.mark.parametrize("function", ["complete", "score"])
def test_columns_of_two_lengths_are_refused(translator, function):
    with pytest.raises(ValueError, match="the same number of texts. Received: 2, 1"):
        getattr(translator, function)(["dog", "a"], ["Hund"])
    with pytest.raises(TypeError, match="must be a sequence of strings"):
        getattr(translator, function)(["dog"], [b"Hund"])
