"""An ensemble: its logits against float64, and several translators as one, exported."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_transformer import (
    Ensemble,
    ExportedTranslator,
    LiteTranslator,
    TokenizerConfig,
    Transformer,
    TransformerConfig,
    Translator,
    learn_tokenizers,
    train,
)
from keras_transformer.testing import assert_cached_equals_uncached
from tests import tiny_run
from tests.models.cases import logits_expected
from tests.nn.layers.reference_weights import randomise
from tests.reference import numpy_transformer as reference

VOCABULARY = dict(source_vocabulary_size=7, target_vocabulary_size=7)
SOURCE = np.array([[4, 5, 3, 6, 2], [6, 3, 2, 0, 0], [5, 5, 4, 2, 0]], "int32")
TARGET_IN = np.array([[1, 4, 6], [1, 3, 3], [1, 5, 0]], "int32")

numpy = ops.convert_to_numpy


SIZES = "d_model d_ff num_heads num_encoder_layers num_decoder_layers".split()
MEMBERS = [
    ((12, 17, 2, 1, 2), {"tied_embeddings": "none"}),
    ((20, 11, 4, 2, 1), {"norm_first": True}),
    ((6, 13, 3, 1, 1), {"tied_embeddings": "two-way"}),
]


@functools.cache
def members():
    """Three Transformers of different sizes, with random weights."""
    models = []
    for number, (sizes, options) in enumerate(MEMBERS):
        options = dict(zip(SIZES, sizes, strict=True)) | options
        model = Transformer(TransformerConfig(**VOCABULARY, **options))
        models.append(randomise(model, np.random.default_rng(number)))
    return models


@functools.cache
def ensemble():
    return Ensemble(members())


def probabilities(source, target_in):
    """The mean (B, T, V) of the members' probabilities, in float64 from formulas."""
    logits = [logits_expected(model, (source, target_in)) for model in members()]
    return np.mean([np.exp(reference.log_softmax(one)) for one in logits], axis=0)


def test_its_logits_are_the_log_of_the_mean_of_the_probabilities():
    expected = probabilities(SOURCE, TARGET_IN)
    logits = ensemble()((SOURCE, TARGET_IN))
    found = numpy(logits)
    assert found.dtype == "float32"
    real = TARGET_IN != 0
    np.testing.assert_array_equal(numpy(logits._keras_mask), real)
    np.testing.assert_allclose(np.exp(found)[real], expected[real], atol=1e-6)
    np.testing.assert_allclose(found[real], np.log(expected)[real], rtol=1e-5)
    # The members do not agree, or the test would tell nothing.
    alone = np.exp(reference.log_softmax(numpy(members()[0]((SOURCE, TARGET_IN)))))
    assert np.abs(alone - expected)[real].max() > 0.1


def test_inputs_may_have_names_also_symbolic_ones():
    inputs = {"source": SOURCE, "target_in": TARGET_IN}
    symbols = {name: keras.Input((None,), dtype="int32", name=name) for name in inputs}
    model = keras.Model(symbols, ensemble()(symbols))
    assert model.output.shape == (None, None, 7)
    expected = numpy(ensemble()((SOURCE, TARGET_IN)))
    for found in (ensemble()(inputs), model(inputs)):
        np.testing.assert_allclose(numpy(found), expected, rtol=1e-6)


def test_steps_with_a_cache_equal_a_call():
    assert_cached_equals_uncached(ensemble(), SOURCE, beam_size=2)


def test_its_heads_are_its_members():
    encoded = ensemble().encode(SOURCE)
    found = numpy(ensemble().attention(TARGET_IN, *encoded, layer=-1))
    assert found.shape == (3, 3, 3, 5)
    for number, model in enumerate(members()):
        own = model.attention(TARGET_IN, *model.encode(SOURCE), layer=-1)
        expected = numpy(own).mean(axis=1)
        np.testing.assert_allclose(found[:, number], expected, atol=1e-6)


def test_members_of_another_float_type_are_joined_in_float32():
    half = ensemble().with_dtype("bfloat16")
    assert {member.compute_dtype for member in half.members} == {"bfloat16"}
    found = numpy(half((SOURCE, TARGET_IN)))
    assert found.dtype == "float32"
    np.testing.assert_allclose(np.exp(found).sum(axis=-1), np.ones((3, 3)), rtol=1e-5)
    mixed = Ensemble([members()[0], half.members[1]])
    alone = [
        np.exp(numpy(Ensemble([m, m])((SOURCE, TARGET_IN)))) for m in mixed.members
    ]
    joined = np.exp(numpy(mixed((SOURCE, TARGET_IN))))
    np.testing.assert_allclose(joined, np.mean(alone, axis=0), rtol=1e-5)


def test_an_exported_model_equals_the_live_one(tmp_path):
    ensemble().export(tmp_path / "1", verbose=False)
    exported = tf.saved_model.load(tmp_path / "1")
    found = exported.serve((SOURCE, TARGET_IN))
    expected = ensemble()((SOURCE, TARGET_IN))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


# Translators.

TEXTS = ["the good bear runs.", "", "a dog", "the old man sings. the big bird sleeps."]


@functools.cache
def translators():
    """Two translators of random weights, of other sizes, and the file of one."""
    first = tiny_run.translator()
    model = Transformer(first.model.config.replace(d_model=24, num_decoder_layers=2))
    randomise(model, np.random.default_rng(7))
    kernel = np.array(model.output_dense.kernel)
    model.output_dense.kernel.assign(kernel * np.linspace(0.5, 3.0, kernel.shape[1]))
    return first, Translator(model, first.tokenizers, first.config)


@functools.cache
def joined():
    return Translator.ensemble(translators())


@pytest.mark.slow
def test_an_export_gives_what_the_live_ensemble_gives(tmp_path):
    both = ExportedTranslator(joined().export(tmp_path / "tiny" / "1")), joined()
    found, expected = (one(TEXTS) for one in both)
    assert found == expected
    scores = ([best[0].score for best in one.nbest(TEXTS)] for one in both)
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-5)
    for aligned in zip(*(one.align(TEXTS) for one in both), strict=True):
        heads = (one.attention for one in aligned)
        np.testing.assert_allclose(*heads, rtol=1e-4, atol=1e-5)


def test_members_need_one_tokenizer(tmp_path):
    config = TokenizerConfig(308, algorithm="unigram")
    other = learn_tokenizers(tiny_run.TRAIN, config)
    stranger = Translator(tiny_run.model(), other, tiny_run.CONFIG.decoding)
    with pytest.raises(ValueError, match="must have one tokenizer.*: member 3 with"):
        Translator.ensemble([*translators(), stranger])
    with pytest.raises(ValueError, match="at least two members. Received: 1"):
        Translator.ensemble(translators()[:1])
    with pytest.raises(FileNotFoundError, match="holds no trained translator"):
        Translator.ensemble([translators()[0], tmp_path])


def test_it_is_neither_saved_nor_trained(tmp_path):
    with pytest.raises(ValueError, match="cannot be saved: .* ensemble of 2"):
        joined().save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="The model of `init` must be.* a Ensemble"):
        train(tiny_run.TRAIN, tmp_path / "run", init=joined())


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ("none", "int8"))
@pytest.mark.parametrize("format", ("litert", "onnx"))
def test_it_becomes_a_file_of_ids(tmp_path, format, quantize):
    if format == "onnx":
        pytest.importorskip("tf2onnx")
    path = joined().export(tmp_path / "lite", format, quantize=quantize)
    lite = LiteTranslator(path)
    if quantize == "none":
        assert lite(TEXTS) == joined()(TEXTS)
        expected = [best[0].score for best in joined().nbest(TEXTS)]
        found = [best[0].score for best in lite.nbest(TEXTS)]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    else:
        assert len(lite(TEXTS)) == len(TEXTS)
