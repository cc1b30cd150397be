"""A search is compiled, few times, and finds what it finds uncompiled.

Most of it is for JAX: `tests/models/test_other_backends.py` runs it there.
"""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.search.compiled import Compiled, _rows_for
from keras_transformer.search.generator import Generator
from keras_transformer.search.tokens import best_tokens
from tests import tiny_run
from tests.models.cases import random_language_model
from tests.nn.layers.reference_weights import randomise

BACKEND = keras.backend.backend()
only_jax = pytest.mark.skipif(BACKEND != "jax", reason="pads nothing")
TEXTS = ["the good bear runs.", "the big dog", "", "a"]
BEGUN = ["der", "", "die", "ein"]

numpy = ops.convert_to_numpy


def translator(**options):
    config = tiny_run.CONFIG.decoding.replace(**{"beam_size": 2, **options})
    return kt.Translator(tiny_run.model(), tiny_run.tokenizers(), config)


def uncompiled(monkeypatch):
    """Makes all functions to come those that are given."""
    plain = lambda self, *x, **options: self._function(*x, **options)  # noqa: E731
    monkeypatch.setattr(Compiled, "__call__", plain)


def test_inputs_of_any_size_get_one_of_twelve_shapes(rng):
    compiled, shapes = Compiled(None, tiny_run.model(), {0: 256, 2: 306}), set()
    widths = (1, 32, 33, 64, 65, 128, 129, 256)
    for batch, width, begun in itertools.product((0, 1, 2, 8, 9, 32), widths, widths):
        source = rng.integers(1, 9, (batch, width))
        prefix = rng.integers(1, 9, (batch, begun))
        lengths = rng.integers(1, 9, batch)
        padded = compiled._padded([source, lengths, prefix, np.array(0)])
        shapes.add(tuple(x.shape for x in padded))
        for x, given in zip(padded, (source, lengths, prefix), strict=False):
            size = tuple(slice(count) for count in given.shape)
            np.testing.assert_array_equal(x[size], given)
            assert np.count_nonzero(x[:batch]) == given.size
            assert batch == 0 or np.all(x[batch:] == x[batch - 1])
    assert len(shapes) == 12
    # A large batch makes no later one larger.
    assert [_rows_for(batch) for batch in (4096, 33, 200, 64)] == [4096, 64, 256, 64]


VERBS = {
    "translate": lambda translator: translator.nbest(TEXTS, n_best=2),
    "complete": lambda translator: [translator.complete(TEXTS, BEGUN)],
    "sample": lambda translator: [translator.sample(TEXTS, temperature=1.3, seed=5)],
    "score": lambda translator: [translator.score(TEXTS, BEGUN)],
    "align": lambda translator: [translator.align(TEXTS, per_head=True)],
}


@pytest.mark.skipif(BACKEND == "tensorflow", reason="one graph takes all shapes")
@pytest.mark.one_case("complete")
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_verb_finds_what_it_finds_uncompiled(verb, monkeypatch):
    found = sum(verb(translator()), [])
    uncompiled(monkeypatch)
    expected = sum(verb(translator()), [])
    assert len(found) == len(expected) >= len(TEXTS)
    for ours, theirs in zip(found, expected, strict=True):
        for part, other in zip(ours, theirs, strict=True):
            if isinstance(other, float | np.ndarray):
                np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-6)
            else:
                assert part == other


@only_jax
def test_batches_of_any_size_and_new_weights_compile_little(rng):
    model = kt.Transformer(tiny_run.model().config)
    greedy = tiny_run.CONFIG.decoding.replace(beam_size=1)
    one = kt.Translator(model, tiny_run.tokenizers(), greedy)
    texts = [source for source, _ in tiny_run.PAIRS]
    for seed in (1, 2):
        randomise(model, np.random.default_rng(seed))
        expected = {text: one([text])[0] for text in texts[:3]}
        order = rng.permutation(texts).tolist()
        for one.batch_size in (1, 3, 17, 32):
            found = dict(zip(order, one(order), strict=True))
            assert {text: found[text] for text in expected} == expected
        if seed == 1:
            first = expected
    assert first != expected
    # Sources of at most 32 tokens have one width, in batches of 1, 8 and 32 rows.
    variant = one.generator._searched.variant
    assert variant.cache_info().misses == 3


def test_a_translation_prints_nothing(caplog):
    """AutoGraph would read, and slow, the code of a search on PyTorch."""
    assert len(translator()(TEXTS)) == len(TEXTS)
    assert not caplog.messages


@pytest.mark.skipif(BACKEND == "jax", reason="jax.jit sees other variables")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantised_model_is_compiled_again():
    model = kt.Transformer(tiny_run.model().config)
    randomise(model, np.random.default_rng(3))
    rest = tiny_run.tokenizers(), tiny_run.CONFIG.decoding
    translator = kt.Translator(model, *rest)
    before = translator.nbest(TEXTS[:1])
    model.quantize("int8")
    after = translator.nbest(TEXTS[:1])
    assert after == kt.Translator(model, *rest).nbest(TEXTS[:1]) != before


@only_jax
def test_a_language_model_compiles_once_for_texts_of_many_lengths():
    language = random_language_model(np.random.default_rng(3), norm_first=True)
    sampler, prompts = kt.LanguageSampler(language), np.array([[9, 4], [8, 3]])
    long, short, none = (
        numpy(sampler(prompts[:, :count], length, 0.0).ids)[:, 0]
        for count, length in ((1, 9), (1, 4), (0, 15))
    )
    assert sampler._drawn.variant.cache_info().misses == 1
    np.testing.assert_array_equal(short, long[:, :4])
    assert long.shape[1] == 9 and none.shape[1] == 15


@only_jax
def test_an_own_model_is_padded_only_if_that_changes_nothing():
    def model(masked):
        source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
        embedded = keras.layers.Embedding(30, 8)(source)
        if masked:
            embedded *= ops.cast(ops.not_equal(source, 0), "float32")[..., None]
        states = keras.layers.Embedding(30, 8)(target)
        states += ops.sum(ops.tanh(embedded), axis=1, keepdims=True)
        return keras.Model((source, target), keras.layers.Dense(30)(states))

    config = kt.DecodingConfig(beam_size=1, max_output_length=4)
    for masked, width in ((True, 32), (False, 3)):
        if masked:
            generator = Generator(model(masked), config)
        else:
            with pytest.warns(UserWarning, match="change with padding"):
                generator = Generator(model(masked), config)
        padded = generator._searched._padded([np.ones((1, 3)), None, None, np.array(0)])
        assert padded[0].shape == (1, width)


@only_jax
def test_xla_finds_the_best_tokens_without_sorting_the_vocabulary():
    import jax

    find = jax.jit(lambda logits: best_tokens(logits, 11))
    assert " sort(" not in find.lower(np.ones((4, 500))).compile().as_text()
