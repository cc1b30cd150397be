"""Searches that score only the target pieces that the sources suggest."""

from collections import defaultdict

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import DecodingConfig, LiteTranslator, Translator
from keras_transformer.formats import ExportedTranslator
from keras_transformer.search.generator import Generator
from keras_transformer.search.shortlist import Shortlist, learn_shortlist
from tests import tiny_run
from tests.models import cases
from tests.models.cases import SOURCE
from tests.nn.kernels.ways import eagerly

CONFIG = DecodingConfig(beam_size=3, max_output_length=7)
SIZE = 29
PREFIX = {"prefix": np.array([[14, 7], [19, 0]], "int32"), "prefix_lengths": [2, 1]}


def random_model(rng, **options):
    return cases.random_model(
        rng, num_encoder_layers=1, num_decoder_layers=1, **options
    )


def assert_equal_results(found, expected):
    for one, other in zip(found, expected, strict=True):
        one, other = map(ops.convert_to_numpy, (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"n_best": 3}, PREFIX])
@eagerly()
def test_with_every_piece_it_changes_nothing(rng, options):
    model = random_model(rng)
    whole = Shortlist(np.zeros((SIZE, 1)), np.arange(SIZE))
    expected = Generator(model, CONFIG).search(SOURCE, **options)
    found = Generator(model, CONFIG, shortlist=whole).search(SOURCE, **options)
    assert_equal_results(found, expected)


@pytest.mark.parametrize("options", [{}, PREFIX])
@pytest.mark.parametrize("tied", ["three-way", "none"])
@eagerly()
def test_the_other_pieces_have_no_share(rng, options, tied):
    """As if their logits were minus infinity, which a bias makes them."""
    model = random_model(rng, output_bias=True, tied_embeddings=tied)
    table = rng.integers(4, SIZE, (SIZE, 2)) * (rng.random((SIZE, 2)) < 0.5)
    shortlist = Shortlist(table, [5, 6, 8])
    found = Generator(model, CONFIG, shortlist=shortlist).search(SOURCE, **options)
    suggested = {0, 1, 2, 3, 5, 6, 8, *table[SOURCE].ravel(), *PREFIX["prefix"].ravel()}
    if not options:
        suggested -= {14, 7, 19} - {*table[SOURCE].ravel()}
    assert 7 < len(suggested) < SIZE
    assert set(ops.convert_to_numpy(found.ids).ravel()) <= suggested
    is_other = ~np.isin(np.arange(SIZE), [*suggested])
    bias = ops.convert_to_numpy(model.output_bias)
    model.output_bias.assign(np.where(is_other, -1e9, bias))
    assert_equal_results(found, Generator(model, CONFIG).search(SOURCE, **options))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a graph")
def test_xla_compiles_a_search_of_some_pieces(rng, caplog):
    import tensorflow as tf

    some = Shortlist(rng.integers(4, SIZE, (SIZE, 2)), np.arange(4, 9))
    generator = Generator(random_model(rng), CONFIG, shortlist=some)
    found = tf.function(generator.search, jit_compile=True)(SOURCE)
    assert not caplog.messages  # AutoGraph warns of what it cannot read.
    with eagerly():
        assert_equal_results(found, generator.search(SOURCE))


@pytest.mark.parametrize(
    ("rows", "most", "frequent", "change"),
    [
        (SIZE - 1, 9, 9, {}),  # a source piece without a row
        (SIZE, SIZE, 9, {}),  # a piece that the model lacks
        (SIZE, 9, 3, {}),  # too few for the beam
        (SIZE, 9, 9, {"pad_id": 5}),  # special pieces are the first four
    ],
)
def test_one_that_does_not_fit_the_model_is_refused(rng, rows, most, frequent, change):
    shortlist = Shortlist(np.full((rows, 1), most), np.arange(4, frequent))
    with pytest.raises(ValueError, match="shortlist"):
        Generator(random_model(rng, **change), CONFIG, shortlist=shortlist)


def test_the_table_is_that_of_ibm_model_1(rng):
    """Expectation and maximisation, pair by pair, in dictionaries."""
    pairs = [
        (rng.integers(4, 12, rng.integers(2, 6)), rng.integers(4, 10, 1 + i % 5))
        for i in range(30)
    ]
    chance = defaultdict(lambda: 1.0)
    for _ in range(3):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in pairs:
            for y in target:
                parts = {x: chance[x, y] for x in set(source)}
                for x, part in parts.items():
                    counts[x, y] += part / sum(parts.values())
                    totals[x] += part / sum(parts.values())
        chance = {(x, y): count / totals[x] for (x, y), count in counts.items()}
    shortlist = learn_shortlist(pairs, 12, 10, best=3, frequent=2, iterations=3)
    for x in range(12):
        found = [(-p, y) for (word, y), p in chance.items() if word == x]
        best = [y for _, y in sorted(found)][:3]
        assert shortlist.table[x].tolist() == best + [0] * (3 - len(best))
    counts = np.bincount(np.concatenate([target for _, target in pairs]))
    expected = {0, 1, 2, 3, *np.argsort(-counts, kind="stable")[:2]}
    assert set(shortlist.frequent) == expected


def test_of_many_pairs_only_those_with_rare_pieces_teach(monkeypatch):
    monkeypatch.setattr("keras_transformer.search.shortlist._PAIRS", 3)
    pairs = [([5, 6], [5])] * 12 + [([5, 6], [8]), ([5, 7], [9])]
    shortlist = learn_shortlist(pairs, 9, 10, best=3, frequent=1)
    assert [set(row) - {0} for row in shortlist.table[5:8]] == [{5, 9}, {5}, {9}]


def test_with_a_joint_vocabulary_a_piece_suggests_itself():
    pairs = [([5, 6], [7]), ([5], [8])]
    table = learn_shortlist(pairs, 9, 9, joint=True, best=2).table
    assert table[:, -1].tolist() == list(range(9))
    assert np.array_equal(table[:, :-1], learn_shortlist(pairs, 9, 9, best=2).table)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
@pytest.mark.parametrize(
    "kind",
    ["saved_model"]
    + [pytest.param(kind, marks=pytest.mark.slow) for kind in ("litert", "onnx")],
)
def test_an_export_with_one_translates_as_the_live_translator(kind, tmp_path):
    translator, texts = tiny_run.translator(), [pair[0] for pair in tiny_run.VALID]
    size = translator.model.config.target_vocabulary_size
    table = np.arange(size * 2).reshape(size, 2) % size
    shortlist = Shortlist(table, np.arange(4, 40))
    short = Translator(
        translator.model, translator.tokenizers, translator.config, shortlist
    )
    expected = short(texts)
    assert expected != translator(texts)
    short.export(tmp_path / "1", kind)
    exported = ExportedTranslator if kind == "saved_model" else LiteTranslator
    exported = exported(tmp_path / "1")
    assert exported(texts) == expected
    prefixes = [pair[1][:5] for pair in tiny_run.VALID]
    completed = [one.text for one in short.complete(texts, prefixes)]
    assert [one.text for one in exported.complete(texts, prefixes)] == completed
    with pytest.raises(ValueError, match="Fixed shapes allow no shortlist"):
        short.export(tmp_path / "site", "web")
