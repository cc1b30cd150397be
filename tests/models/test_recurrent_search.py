"""Searches with the recurrent model against every output of a tiny vocabulary."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import DecodingConfig
from keras_transformer.config import RecurrentConfig
from keras_transformer.generation.generator import Generator
from keras_transformer.models.recurrent_seq2seq import RecurrentSeq2Seq
from tests.decoding.table_steps import all_outputs, obeys
from tests.layers.reference_weights import randomise
from tests.models.recurrent_cases import weights_of
from tests.reference import numpy_recurrent as reference
from tests.reference.numpy_transformer import log_softmax

SIZES = dict(
    source_vocabulary_size=7, target_vocabulary_size=7, d_model=11, units=13,
    attention_units=5, tied_embeddings="none",
)  # fmt: skip
SOURCE = np.array([[4, 5, 3, 6, 2], [6, 3, 2, 0, 0], [5, 5, 4, 2, 0]], "int32")
LENGTHS = np.array([5, 3, 4], "int32")
LONGEST = 4
# No hypothesis is ever dropped: 64 of them with 5 continuations each.
BEAM = 160

numpy = ops.convert_to_numpy


@functools.cache
def model():
    """Random weights over 7 ids: 4 pieces beside padding, start and end."""
    recurrent = randomise(
        RecurrentSeq2Seq(RecurrentConfig(**SIZES)), np.random.default_rng(61)
    )
    recurrent.output_kernel.assign(numpy(recurrent.output_kernel) * 3.0)
    return recurrent


@functools.cache
def witnessed(sentence):
    """Of each output: its ids, log-probability and attention [S], summed over it.

    All come from the float64 reference.
    """
    found = []
    source = SOURCE[sentence, : LENGTHS[sentence]]
    for ids in all_outputs(7, LONGEST):
        logits, attention = reference.translate_one(
            source, np.array([1, *ids[:-1]]), weights_of(model())
        )
        total = log_softmax(logits)[np.arange(len(ids)), list(ids)].sum()
        found.append((ids, total, attention.sum(axis=0)))
    return found


def ranked(sentence, alpha=0.6, beta=0.0, **constraints):
    """(score, ids) of every output that obeys, best first."""
    return sorted(
        (
            (
                total / ((5 + len(ids)) / 6) ** alpha
                + beta * np.log(np.minimum(coverage, 1.0)).sum(),
                ids,
            )
            for ids, total, coverage in witnessed(sentence)
            if obeys(ids, LONGEST, **constraints)
        ),
        reverse=True,
    )


def ids_of(result, sentence, n=0):
    length = int(numpy(result.lengths)[sentence, n])
    return tuple(numpy(result.ids)[sentence, n, :length].tolist())


@pytest.mark.one_case
@pytest.mark.parametrize("fixed_shapes", [False, True], ids=["resized", "fixed"])
@pytest.mark.parametrize(
    "given,rules",
    [
        ({}, {}),
        ({"length_penalty": 2.0, "coverage_penalty": 0.4}, {"alpha": 2.0, "beta": 0.4}),
        (
            {"min_output_length": 3, "no_repeat_ngram_size": 1},
            {"min_length": 3, "no_repeat_ngram_size": 1},
        ),
    ],
    ids=["the paper's", "penalties", "constraints"],
)
def test_a_wide_beam_finds_the_best_of_all_outputs(given, rules, fixed_shapes):
    config = DecodingConfig(beam_size=BEAM, max_output_length=LONGEST, **given)
    generator = Generator(model(), config, fixed_shapes=fixed_shapes)
    result = generator.search(SOURCE, LENGTHS, n_best=5)
    for sentence in range(3):
        expected = ranked(sentence, **rules)[:5]
        assert [ids_of(result, sentence, n) for n in range(5)] == [
            ids for _, ids in expected
        ]
        np.testing.assert_allclose(
            numpy(result.scores)[sentence], [score for score, _ in expected], rtol=1e-4
        )


def test_the_cases_differ():
    best = [[ids for _, ids in ranked(s)[:5]] for s in range(3)]
    assert len({tuple(five) for five in best}) == 3
    lengths = {len(ids) for five in best for ids in five}
    assert len(lengths) >= 3
    penalised = [[ids for _, ids in ranked(s, 2.0, 0.4)[:5]] for s in range(3)]
    assert penalised != best


def test_scores_and_attention_of_given_outputs_are_the_references():
    outputs = [witnessed(sentence)[90 + sentence] for sentence in range(3)]
    target_out = np.zeros((3, LONGEST), "int32")
    for row, (ids, _, _) in enumerate(outputs):
        target_out[row, : len(ids)] = ids
    generator = Generator(model(), DecodingConfig())
    scores = numpy(generator.score(SOURCE, target_out)).sum(axis=1)
    np.testing.assert_allclose(scores, [total for _, total, _ in outputs], rtol=1e-4)
    attention = numpy(generator.attention(SOURCE, target_out))
    assert attention.shape == (3, 1, LONGEST, 5)
    for row, (_, _, coverage) in enumerate(outputs):
        found = attention[row, 0].sum(axis=0)
        np.testing.assert_allclose(found[: LENGTHS[row]], coverage, rtol=1e-4)
        assert not found[LENGTHS[row] :].any()


def test_samples_come_as_often_as_the_model_says():
    count = 4000
    generator = Generator(model(), DecodingConfig(max_output_length=1))
    uniforms = np.random.default_rng(59).random((count, 1))
    result = generator.sample(
        np.tile(SOURCE[:1], (count, 1)), np.full(count, 5), uniforms, np.ones(count)
    )
    logits, _ = reference.translate_one(
        SOURCE[0, :5], np.array([1]), weights_of(model())
    )
    chances = np.exp(logits[0] - logits[0].max())
    chances[:2] = 0.0
    chances /= chances.sum()
    drawn = numpy(result.ids)[:, 0, 0]
    for ids in range(2, 7):
        margin = 5 * np.sqrt(chances[ids] * (1 - chances[ids]) / count)
        assert (drawn == ids).mean() == pytest.approx(chances[ids], abs=margin)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a graph of its")
def test_a_graph_searches_as_eager_code_does():
    import tensorflow as tf

    config = DecodingConfig(beam_size=3, max_extra_length=30, coverage_penalty=0.2)
    generator = Generator(model(), config)
    signature = [tf.TensorSpec([None, None], "int32"), tf.TensorSpec([None], "int32")]
    find = tf.function(generator.search, input_signature=signature, autograph=False)
    graph, eager = find(SOURCE, LENGTHS), generator.search(SOURCE, LENGTHS)
    np.testing.assert_array_equal(numpy(graph.ids), numpy(eager.ids))
    np.testing.assert_allclose(numpy(graph.scores), numpy(eager.scores), rtol=1e-5)
