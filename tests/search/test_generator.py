"""Ids to ids against every output of a tiny vocabulary, with uncached logits."""

import functools
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.search import Constraints, SpecialIds, beam_search
from keras_transformer.search.generator import Generator
from tests.models.cases import random_language_model
from tests.nn.kernels.ways import eagerly
from tests.nn.layers.reference_weights import randomise
from tests.reference import numpy_transformer as reference
from tests.search.table_steps import END, all_outputs, obeys

SIZES = dict(
    source_vocabulary_size=7, target_vocabulary_size=7, num_encoder_layers=1,
    num_decoder_layers=2, d_model=12, d_ff=17, num_heads=2, tied_embeddings="none",
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
    transformer = kt.Transformer(kt.TransformerConfig(**SIZES))
    randomise(transformer, np.random.default_rng(53))
    kernel = numpy(transformer.output_dense.kernel) * 1.5
    transformer.output_dense.kernel.assign(kernel)
    return transformer


@functools.cache
def outputs():
    """Every output, and as a padded matrix."""
    every = list(all_outputs(7, LONGEST))
    return every, np.array([[*ids, *[0] * (LONGEST - len(ids))] for ids in every])


@functools.cache
def witnessed(sentence):
    """The log-probability of each output, by the uncached model and float64."""
    every, target_out = outputs()
    target_in = np.pad(target_out, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    source = np.repeat(SOURCE[sentence : sentence + 1], len(every), axis=0)
    scores = reference.log_softmax(numpy(model()((source, target_in))))
    scores = np.take_along_axis(scores, target_out[..., None], axis=-1)[..., 0]
    return (scores * (target_out != 0)).sum(axis=1)


def ranked(sentence, alpha=0.6, longest=LONGEST, **constraints):
    """(score, ids) of every output that obeys, best first."""
    return sorted(
        (
            (total / ((5 + len(ids)) / 6) ** alpha, ids)
            for ids, total in zip(outputs()[0], witnessed(sentence), strict=True)
            if obeys(ids, longest, **constraints)
        ),
        reverse=True,
    )


@functools.cache
def generator(config, **options):
    return Generator(model(), config, **options)


def search(config, n_best=1, prefix=None, **options):
    given = (SOURCE, LENGTHS)
    if prefix is not None:
        given += (np.tile(prefix, (3, 1)), np.full(3, len(prefix), "int32"))
    return generator(config, **options).search(*given, n_best=n_best)


def ids_of(result, sentence, n=0):
    length = int(numpy(result.lengths)[sentence, n])
    return tuple(numpy(result.ids)[sentence, n, :length].tolist())


OPTIONS = {
    "the paper's": ({}, {}),
    "all": (
        {"length_penalty": 2.0, "min_output_length": 3, "no_repeat_ngram_size": 1},
        {
            "alpha": 2.0,
            "min_output_length": 3,
            "no_repeat_ngram_size": 1,
            "prefix": (6,),
        },
    ),
}


shapes = pytest.mark.parametrize(
    "fixed_shapes", [False, True], ids=["resized", "fixed"]
)


@pytest.mark.one_case("all-resized")
@shapes
@pytest.mark.parametrize("given,rules", OPTIONS.values(), ids=OPTIONS)
def test_a_wide_beam_finds_the_best_of_all_outputs(given, rules, fixed_shapes):
    config = kt.DecodingConfig(beam_size=BEAM, max_output_length=LONGEST, **given)
    result = search(config, 5, rules.get("prefix"), fixed_shapes=fixed_shapes)
    for sentence in range(3):
        expected = ranked(sentence, **rules)[:5]
        assert [ids_of(result, sentence, n) for n in range(5)] == [
            ids for _, ids in expected
        ]
        np.testing.assert_allclose(
            numpy(result.scores)[sentence], [score for score, _ in expected], rtol=1e-4
        )


@shapes
@eagerly()
def test_the_longest_output_follows_from_the_source_and_the_limit(fixed_shapes):
    """Without lengths of the sources from the limit alone."""
    for lengths, extra, expected in (
        (LENGTHS, 2, [6, 5, 6]),
        (LENGTHS, 0, [5, 3, 4]),
        (None, 0, [6, 6, 6]),
    ):
        # An output that may not end before is as long as it can be.
        config = kt.DecodingConfig(
            max_extra_length=extra, max_output_length=6, min_output_length=6
        )
        one = generator(config, fixed_shapes=fixed_shapes)
        found = one.search(SOURCE, lengths).lengths
        assert numpy(found)[:, 0].tolist() == expected
    uniforms, temperature = np.full((3, 6), 0.4, "float32"), np.ones(3, "float32")
    drawn = one.sample(SOURCE, None, uniforms, temperature)
    assert numpy(drawn.lengths)[:, 0].tolist() == expected


@eagerly()
def test_a_source_without_a_token_gets_one_token_and_a_longer_prefix_its_room():
    config = kt.DecodingConfig(max_extra_length=3, min_output_length=50)
    source, lengths = np.array([[2, 0], [4, 2]]), np.array([1, 2], "int32")
    result = generator(config).search(source, lengths)
    assert numpy(result.lengths)[:, 0].tolist() == [1, 5]
    prefix = np.array([[3, 4, 5, 6, 3, 4], [3, 0, 0, 0, 0, 0]])
    result = generator(config).search(
        source, lengths, prefix, np.array([6, 1], "int32")
    )
    assert numpy(result.lengths)[:, 0].tolist() == [10, 5]
    assert numpy(result.ids)[0, 0, :6].tolist() == [3, 4, 5, 6, 3, 4]


@eagerly()
def test_an_output_longer_than_the_learned_positions_is_refused():
    """On a GPU and under XLA a lookup behind the table would go unnoticed."""
    sizes = SIZES | {"positions": "learned", "max_positions": 6}
    learned = kt.Transformer(kt.TransformerConfig(**sizes))
    with pytest.raises(ValueError, match="7 tokens, max_positions=6"):
        Generator(learned, kt.DecodingConfig(max_output_length=7))
    config = kt.DecodingConfig(max_output_length=6, min_output_length=6)
    result = Generator(learned, config).search(SOURCE, LENGTHS)
    assert numpy(result.lengths)[:, 0].tolist() == [6, 6, 6]


NO_SOURCES = {"a column": SOURCE[:0], "no column": np.zeros((0, 0), "int32")}


@pytest.mark.parametrize("source", NO_SOURCES.values(), ids=NO_SOURCES)
@shapes
@eagerly()
def test_no_sentence_gives_no_row(source, fixed_shapes):
    config = kt.DecodingConfig(beam_size=3, no_repeat_ngram_size=2, top_k=3, top_p=0.5)
    nobody = generator(config, fixed_shapes=fixed_shapes)
    nothing = np.zeros(0, "int32")
    found = nobody.search(source, nothing, n_best=2)
    begun = nobody.search(source, nothing, np.zeros((0, 2), "int32"), nothing)
    uniforms = np.zeros((0, config.longest_output), "float32")
    drawn = nobody.sample(source, nothing, uniforms, np.zeros(0, "float32"))
    for result, count in ((found, 2), (begun, 1), (drawn, 1)):
        assert tuple(result.ids.shape)[:2] == (0, count)
        assert result.ids.shape[2] > 0
        assert {tuple(x.shape) for x in result[1:]} == {(0, count)}
        types = [keras.backend.standardize_dtype(x.dtype) for x in result]
        assert types == ["int32", "int32", "float32", "float32"]
    target_out = np.zeros((0, 4), "int32")
    scores = nobody.score(SOURCE[:0], target_out)
    assert tuple(scores.shape) == (0, 4)
    attention = nobody.attention(SOURCE[:0], target_out)
    assert tuple(attention.shape) == (0, 2, 4, 5)


@eagerly()
def test_an_ngram_longer_than_any_output_bans_nothing_and_costs_nothing():
    """A comparison for each of its tokens would never end."""
    free = kt.DecodingConfig(beam_size=2, max_output_length=9, min_output_length=9)
    config = free.replace(no_repeat_ngram_size=10**6)
    expected, found = long_search(free, False), long_search(config, False)
    np.testing.assert_array_equal(numpy(found.ids), numpy(expected.ids))


LONG_SOURCE = np.zeros((9, 23), "int32")
for row, length in enumerate((23, 2, 9, 5, 17, 1, 3, 12, 2)):
    pieces = np.random.default_rng(row).integers(3, 7, length - 1)
    LONG_SOURCE[row, :length] = [*pieces, END]
LONG_LENGTHS = (LONG_SOURCE != 0).sum(axis=1).astype("int32")


def long_search(config, fixed_shapes, rows=9):
    given = generator(config, fixed_shapes=fixed_shapes)
    inputs = LONG_SOURCE[:rows], LONG_LENGTHS[:rows]
    return given.search(*inputs, n_best=config.beam_size)


def assert_found(found, expected):
    """Compares results whose ids may have another width."""
    width = min(found.ids.shape[2], expected.ids.shape[2])
    ids = numpy(found.ids)[..., :width], numpy(expected.ids)[..., :width]
    np.testing.assert_array_equal(*ids)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        np.testing.assert_allclose(numpy(ours), numpy(theirs), rtol=1e-4)


@pytest.mark.one_case("3")
@pytest.mark.parametrize("beam_size", [1, 3])
def test_resizing_changes_nothing_for_sources_of_very_different_lengths(beam_size):
    config = kt.DecodingConfig(
        beam_size=beam_size, max_extra_length=47, length_penalty=2.0
    )
    whole, resized = (long_search(config, fixed) for fixed in (True, False))
    assert_found(resized, whole)
    lengths = numpy(resized.lengths)[:, 0]
    assert lengths.min() == 1
    assert lengths.max() == 70
    assert len({*lengths}) >= 6
    nobody = long_search(config, False, rows=0)  # The graph takes any batch.
    assert nobody.ids.shape[:2] == (0, beam_size)


def compiled(function, xla):
    """The function in a graph that knows all shapes; AutoGraph reads the source."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=xla)


COMPILED = [
    ("search", [SOURCE]),
    ("search", [SOURCE, LENGTHS, [[3, 4], [5, 0], [6, 6]], [2, 1, 2]]),
    ("sample", [SOURCE, LENGTHS, np.full((3, 19), 0.4, "float32"), [1.0, 0.0, 2.0]]),
]


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="it compiles nothing")
@pytest.mark.slow  # `test_shortlist.py` has a quick one.
@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize(("method", "inputs"), COMPILED)
def test_a_compiled_search_may_know_all_shapes(method, inputs, xla, caplog):
    """Outputs are longer than the first room, so that a graph has to make more."""
    config = kt.DecodingConfig(
        beam_size=2, max_output_length=19, min_output_length=18, no_repeat_ngram_size=2
    )
    function = getattr(generator(config), method)
    inputs = [ops.convert_to_tensor(x) for x in inputs]
    assert_found(compiled(function, xla)(*inputs), function(*inputs))
    # AutoGraph warns of what it cannot read.
    assert not caplog.messages


# Texts that a language model continues.

PROMPTS = np.array([[9, 4, 17], [8, 0, 0]], "int32")


@pytest.fixture(scope="module")
def language():
    return random_language_model(np.random.default_rng(3), norm_first=True, pad_id=0)


def drawn(sampler, prompts, length, **options):
    result = sampler(prompts, length, **options)
    return numpy(result.ids)[:, 0], result


def next_logits(language, row):
    """Logits of the token after a row of ids."""
    ids = np.array([[1, *row]], "int32")
    return numpy(language(ids))[0, -1].astype("float64")


def test_temperature_0_takes_the_best_token_at_every_step(language):
    ids, result = drawn(kt.LanguageSampler(language), PROMPTS, 11, temperature=0)
    for row, prompt in zip(ids, ([9, 4, 17], [8]), strict=True):
        expected = list(prompt)
        while len(expected) < 11 and expected[-1] != 2:
            logits = next_logits(language, expected)
            logits[:2] = -np.inf  # Padding and start are never drawn.
            expected.append(int(logits.argmax()))
        assert row.tolist() == expected + [0] * (11 - len(expected))
    assert (numpy(result.lengths) <= 11).all()


@pytest.mark.parametrize("filters", ({"top_k": 3}, {"top_p": 0.4}))
@eagerly()
def test_log_probabilities_are_the_models_for_the_whole_text(language, filters):
    """And every token drawn is among those that the filter leaves."""
    ids, result = drawn(kt.LanguageSampler(language, **filters), PROMPTS[:1], 7, seed=5)
    length = int(numpy(result.lengths)[0, 0])
    row = ids[0, :length]
    logits = numpy(language(np.array([[1, *row[:-1]]], "int32")))[0]
    scores = reference.log_softmax(logits)
    for position in range(3, length):
        better = scores[position, 2:] > scores[position, row[position]]
        mass = np.exp(scores[position, 2:])
        share = mass[better].sum() / mass.sum()
        assert better.sum() < 3 if "top_k" in filters else share < 0.4
    expected = scores[np.arange(length), row].sum()
    actual = numpy(result.log_probabilities)[0, 0]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_a_row_depends_on_its_own_prompt_and_seed_alone(language):
    sampler = kt.LanguageSampler(language)
    together, _ = drawn(sampler, PROMPTS, 9, seed=20)
    alone, _ = drawn(sampler, PROMPTS[1:, :1], 9, seed=21)
    np.testing.assert_array_equal(alone[0], together[1])
    again, _ = drawn(sampler, PROMPTS, 9, seed=20)
    np.testing.assert_array_equal(again, together)
    other, _ = drawn(sampler, PROMPTS, 9, seed=22)
    assert (other != together).any()


def test_a_text_may_begin_with_nothing_and_must_not_end_too_early(language):
    sampler = kt.LanguageSampler(language, min_output_length=8, no_repeat_ngram_size=1)
    ids, result = drawn(sampler, np.zeros((3, 0), "int32"), 9, temperature=2.0)
    assert (numpy(result.lengths) >= 8).all()
    assert all(len(set(row[row > 0])) == (row > 0).sum() for row in ids)


@pytest.mark.parametrize("columns", (0, 3))
@eagerly()
def test_no_prompt_gives_no_text(language, columns):
    sampler = kt.LanguageSampler(language, top_k=3, no_repeat_ngram_size=2)
    result = sampler(np.zeros((0, columns), "int32"), 7)
    assert [tuple(x.shape) for x in result] == [(0, 1, 7), (0, 1), (0, 1), (0, 1)]
    types = [keras.backend.standardize_dtype(x.dtype) for x in result]
    assert types == ["int32", "int32", "float32", "float32"]


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="it compiles nothing")
@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_compiled_drawing_may_know_all_shapes(language, xla, caplog):
    sampler = kt.LanguageSampler(language, top_p=0.8)
    uniforms, temperatures = np.full((2, 11), 0.4, "float32"), np.ones(2, "float32")
    inputs = PROMPTS, uniforms, temperatures, np.full(2, 11, "int32")
    inputs = [ops.convert_to_tensor(x) for x in inputs]
    assert_found(compiled(sampler._draw, xla)(*inputs), sampler._draw(*inputs))
    assert not caplog.messages


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="has no graph")
def test_texts_of_many_lengths_are_drawn_by_one_graph(language):
    sampler = kt.LanguageSampler(language, no_repeat_ngram_size=3)
    for length in (3, 5, 8):
        ids, _ = drawn(sampler, PROMPTS[:, :1], length, seed=5)
        alone = kt.LanguageSampler(language, no_repeat_ngram_size=3)
        with eagerly():
            expected, _ = drawn(alone, PROMPTS[:, :1], length, seed=5)
        np.testing.assert_array_equal(ids, expected)
    # Of 3 tokens no n-gram is banned.
    assert sampler._drawn.variant.cache_info().misses == 2


def test_new_weights_are_used(language):
    """The graph that draws must not keep those of its first call."""
    copy = kt.LanguageModel.from_config(language.get_config())
    sampler = kt.LanguageSampler(copy)
    before, _ = drawn(sampler, PROMPTS, 9, temperature=0)
    copy.set_weights(language.get_weights())
    after, _ = drawn(sampler, PROMPTS, 9, temperature=0)
    expected, _ = drawn(kt.LanguageSampler(language), PROMPTS, 9, temperature=0)
    np.testing.assert_array_equal(after, expected)
    assert (before != after).any()


# Rows that are no texts, with the place of the first fault.
NO_TEXTS = {
    "a start": ([[1, 4, 5], [4, 5, 6]], "[0, 0]=1"),
    "a start inside": ([[4, 5, 6], [4, 1, 6]], "[1, 1]=1"),
    "padding before": ([[0, 4, 5]], "[0, 1]=4"),
    "padding inside": ([[4, 5, 6], [4, 0, 6]], "[1, 2]=6"),
    "an end inside": ([[4, 2, 5]], "[0, 2]=5"),
    "two ends": ([[4, 2, 2]], "[0, 2]=2"),
    "an id beyond": ([[4, 5, 99]], "Received: the id 99"),
    "no padding": ([[4, 5], [6]], "rows of one length: pad each at its end"),
}


@pytest.mark.parametrize("rows, words", NO_TEXTS.values(), ids=NO_TEXTS)
def test_ids_that_are_no_text_are_refused(rows, words, language):
    def refused(name, call, *inputs):
        with pytest.raises(ValueError, match=f"`{name}` must .*{re.escape(words)}"):
            call(*inputs)

    one = generator(kt.DecodingConfig(max_output_length=5))
    source = SOURCE[: len(rows)]
    refused("prompts", kt.LanguageSampler(language), rows, 5)
    refused("target_out", one.score, source, rows)
    refused("target_out", one.attention, source, rows)
    refused("prefix", lambda: one.search(source, prefix=rows))
    if words.startswith("rows"):
        refused("source", one.search, rows)
    if "99" not in words:  # Only its step knows how many ids there are.
        step = lambda ids, parents, state: (ops.zeros((4, 7)), state)  # noqa: E731
        limits = {"max_lengths": [5], "limit": 5, "special_ids": SpecialIds()}
        constraints = Constraints(prefix=rows)
        refused(
            "prefix", lambda: beam_search(step, (), constraints=constraints, **limits)
        )


@eagerly()
def test_a_text_may_end_and_be_padded(language):
    one = generator(kt.DecodingConfig(max_output_length=5))
    rows = [[4, 5, 2], [6, 0, 0], [0, 0, 0]]
    for padded in (rows, np.array(rows)):
        assert one.score(SOURCE.tolist(), padded).shape == (3, 3)
    ids, _ = drawn(kt.LanguageSampler(language), [[4, 5, 2], [6, 0, 0]], 5)
    assert ids[0].tolist() == [4, 5, 2, 0, 0] and ids[1, 0] == 6
