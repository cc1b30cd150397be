"""The translator: text to text as the generator goes from ids to ids, and its laws."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import (
    DecodingConfig,
    Translator,
)
from keras_transformer.generation.generator import Generator
from keras_transformer.text import Corpus
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


def source_ids(translator, text):
    """Pieces, cut so that the end token has a place, and the end token."""
    pieces = translator.tokenizers.source.tokenize([text])[0].numpy()
    return [*pieces[: translator.config.max_source_length - 1], 2]


def found_by_the_generator(translator, text, begun=()):
    """The hypotheses (score, ids) of ids that `tests/generation` checks, best first."""
    source = np.array([source_ids(translator, text)], "int32")
    prefix = (
        (np.array([begun], "int32"), np.array([len(begun)], "int32")) if begun else ()
    )
    result = Generator(translator.model, translator.config).search(
        source, np.array([source.shape[1]], "int32"), *prefix,
        n_best=1 if begun else translator.config.beam_size,
    )  # fmt: skip
    rows = zip(result.scores[0], result.ids[0], result.lengths[0], strict=True)
    return [(float(score), ids[:count].numpy().tolist()) for score, ids, count in rows]


def to_text(translator, ids):
    return translator.tokenizers.target.detokenize([ids])[0].numpy().decode()


def pieces_of(translator, text):
    return translator.tokenizers.target.tokenize([text])[0].numpy().tolist()


@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[3]])  # One ends, one is cut.
def test_n_best_are_those_of_the_generator(translator, text):
    expected = found_by_the_generator(translator, text)[:3]
    found = translator.translate([text], n_best=3)[0]
    assert [t.text for t in found] == [to_text(translator, i) for _, i in expected]
    np.testing.assert_allclose(
        [t.score for t in found], [score for score, _ in expected], rtol=1e-4
    )


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
    expected = found_by_the_generator(translator, text)[0]
    (found,) = translator.translate([text])[0]
    assert found.text == to_text(translator, expected[1])
    assert found.score == pytest.approx(expected[0], rel=1e-4)


def test_saved_and_loaded_it_gives_the_same(translator, tmp_path):
    translator.save(tmp_path / "saved")
    loaded = Translator.load(tmp_path / "saved")
    assert loaded.config == translator.config
    assert loaded.translate(TEXTS, 2) == translator.translate(TEXTS, 2)
    other = DecodingConfig(beam_size=7)
    assert Translator.load(tmp_path / "saved", other).config is other
    assert sorted(p.name for p in (tmp_path / "saved").iterdir()) == [
        "decoding.json", "model.keras", "tokenizer", "tokenizer.sha256"
    ]  # fmt: skip


@pytest.mark.parametrize("missing", ["model.keras", "tokenizer", "decoding.json"])
def test_loading_names_what_is_missing(tmp_path, missing):
    for name in {"model.keras", "tokenizer", "decoding.json"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=f"translator: {missing} is missing"):
        Translator.load(tmp_path)


@pytest.mark.parametrize(("max_positions", "fits"), [(34, False), (35, True)])
def test_learned_positions_must_reach_the_longest_output(max_positions, fits):
    model = tiny_run.model(positions="learned", max_positions=max_positions)
    parts = (model, tiny_run.tokenizers(), tiny_run.CONFIG.decoding)
    if fits:
        assert Translator(*parts).config.max_source_length == 32
        return
    with pytest.raises(ValueError, match="35 tokens, max_positions=34"):
        Translator(*parts)


PREFIXES = ["der", "der Bär", "s", "", "Hund die", "ßß"]


@pytest.mark.one_case
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_completion_is_the_generators_with_the_prefix(beam_size):
    translator = tiny_run.translator(beam_size)
    texts = [*TEXTS, TEXTS[0]]
    for text, prefix, found in zip(
        texts, PREFIXES, translator.complete(texts, PREFIXES), strict=True
    ):
        begun = pieces_of(translator, prefix)
        score, ids = found_by_the_generator(translator, text, begun)[0]
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


def test_a_prefix_beyond_the_longest_output_is_cut_and_one_token_follows(translator):
    prefix = "die " + "der alte Bär schläft " * 20
    *pieces, cut_off = pieces_of(translator, prefix)[: translator.config.longest_output]
    found, other = translator.complete(["dog", TEXTS[0]], [prefix, "der"])
    score, ids = found_by_the_generator(translator, "dog", pieces)[0]
    assert len(ids) == translator.config.longest_output
    assert ids[-1] != cut_off
    assert found.text == to_text(translator, ids)
    assert found.score == pytest.approx(score, rel=1e-4)
    assert other.text == translator.complete([TEXTS[0]], ["der"])[0].text


@pytest.mark.one_case
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 5}, {"top_p": 0.8}, {"top_k": 7, "top_p": 0.9}], ids=str
)
def test_samples_are_those_of_the_generator(options):
    translator = Translator(
        tiny_run.model(),
        tiny_run.tokenizers(),
        tiny_run.CONFIG.decoding.replace(**options),
    )
    samples = translator.sample(TEXTS, temperature=1.5, seed=40)
    generator = Generator(translator.model, translator.config)
    for i, (text, found) in enumerate(zip(TEXTS, samples, strict=True)):
        source = np.array([source_ids(translator, text)], "int32")
        uniforms = tf.random.stateless_uniform(
            [1, translator.config.longest_output], tf.constant([40 + i, 0], tf.int64),
            alg="philox",
        )  # fmt: skip
        lengths = np.array([source.shape[1]], "int32")
        drawn = generator.sample(source, lengths, uniforms, np.array([1.5], "float32"))
        ids = drawn.ids[0, 0, : int(drawn.lengths[0, 0])].numpy().tolist()
        assert found.text == to_text(translator, ids)
        assert found.score == pytest.approx(float(drawn.scores[0, 0]), rel=1e-4)


def test_a_sample_without_temperature_is_the_greedy_translation(translator, greedy):
    expected = [best for (best,) in greedy.translate(TEXTS)]
    found = translator.sample(TEXTS, temperature=0.0, seed=3)
    assert [t.text for t in found] == [t.text for t in expected]
    np.testing.assert_allclose(
        [t.score for t in found], [t.score for t in expected], rtol=1e-4
    )


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


def test_a_translator_says_what_it_holds():
    translator = tiny_run.translator()
    size = translator.model.count_params()
    expected = f"<Translator: Transformer of {size:,} parameters, <TokenizerPair: 300 "
    assert repr(translator) == expected + "pieces>>"
    corpus = Corpus(tiny_run.TRAIN, translator.tokenizers)
    batches = corpus.num_batches
    words = f"<Corpus: 40 pairs, {batches} batches an epoch, no bad lines>"
    assert repr(corpus) == words
