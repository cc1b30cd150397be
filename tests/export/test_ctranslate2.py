"""Exports for CTranslate2, compared with what CTranslate2 itself computes."""

from __future__ import annotations

import ctranslate2
import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor

from keras_transformer import (
    Transformer,
    Translator,
    enable_lora,
    learn_tokenizers,
)
from keras_transformer.generation.generator import Generator
from tests import tiny_run
from tests.layers.reference_weights import randomise
from tests.tiny_run import PAIRS

SOURCES = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]
TARGETS = ["der alte Mann schläft.", "Bär", "der gute Hund rennt. der große Vogel."]
# In CTranslate2's search padding and start are ordinary pieces, and an output must have
# one, for which it takes the end out of the first softmax.
SEARCH = {
    "suppress_sequences": [["<pad>"], ["<s>"]], "max_decoding_length": 20,
    "min_decoding_length": 0, "length_penalty": 0, "return_scores": True,
}  # fmt: skip
OPTIONS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "biases": {"use_bias": True, "output_bias": True},
    "learned": {"positions": "learned", "max_positions": 131},
    "halves": {"positions": "sinusoidal-halves"},
    "Marian's": {"positions": "sinusoidal-marian", "layer_norm_epsilon": 1e-3},
    "tied": {"tied_embeddings": "three-way"},
    "normalised": {"normalize_embeddings": True, "tied_embeddings": "two-way"},
    "gelu": {"activation": "gelu", "num_encoder_layers": 2},
    "silu": {"activation": "silu", "num_decoder_layers": 3, "num_heads": 4},
}


def translator_of(options, **decoding):
    tokenizers = tiny_run.tokenizers()
    sizes = tiny_run.CONFIG.model.replace(
        **({"tied_embeddings": "none"} | tokenizers.vocabulary_sizes | options)
    )
    model = Transformer(sizes)
    randomise(model, np.random.default_rng(3))
    search = {"max_output_length": 20, "max_extra_length": 99, "length_penalty": 0.0}
    config = tiny_run.CONFIG.decoding.replace(**(search | decoding))
    return Translator(model, tokenizers, config)


def pieces_of(tokenizer, texts):
    return [tokenizer.pieces(ids) for ids in tokenizer.tokenize(texts).to_list()]


def scores_by_ctranslate2(directory, tokenizers, **options):
    """The log-probability of each target token, the end token included."""
    engine = ctranslate2.Translator(str(directory), **options)
    pairs = [
        pieces_of(tokenizers.source, SOURCES),
        pieces_of(tokenizers.target, TARGETS),
    ]
    return [result.log_probs for result in engine.score_batch(*pairs)]


@pytest.mark.one_case
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_ctranslate2_gives_the_same_probabilities(tmp_path, options):
    translator = translator_of(options, max_output_length=None)
    path = translator.export(tmp_path / "model", "ctranslate2")
    expected = [
        score.token_log_probabilities for score in translator.score(SOURCES, TARGETS)
    ]
    given = scores_by_ctranslate2(path, translator.tokenizers)
    for ours, theirs in zip(expected, given, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-4)


def found_by_ctranslate2(translator, directory, **options):
    """What CTranslate2 finds for the sources of the tiny corpus."""
    engine = ctranslate2.Translator(str(directory))
    sources = pieces_of(translator.tokenizers.source, [pair[0] for pair in PAIRS])
    return engine.translate_batch(sources, **SEARCH, **options)


def test_ctranslate2_finds_the_same_translations(tmp_path):
    # One with outputs of many lengths.
    config = translator_of({}, beam_size=1).config
    translator = Translator(tiny_run.model(), tiny_run.tokenizers(), config)
    path = translator.export(tmp_path / "model", "ctranslate2")
    results = found_by_ctranslate2(translator, path, beam_size=1)
    lengths = {len(result.hypotheses[0]) for result in results}
    assert 20 in lengths and len(lengths) > 3
    join = SentencePieceProcessor(str(path / "joint.model")).decode_pieces
    texts = translator([source for source, _ in PAIRS])
    assert [join(result.hypotheses[0]) for result in results] == texts


def test_ctranslate2_scores_a_beam_as_we_do(tmp_path):
    # Its beams are not quite ours: of the 2 N best tokens it lets the first N end.
    translator = translator_of({"output_bias": True}, beam_size=3)
    # No padding and no start, which CTranslate2 takes out of the softmax.
    translator.model.output_bias.assign(np.where(np.arange(300) < 2, -1000.0, 0.0))
    path = translator.export(tmp_path / "model", "ctranslate2")
    results = found_by_ctranslate2(translator, path, beam_size=3, num_hypotheses=3)
    processor = SentencePieceProcessor(str(path / "joint.model"))
    generator = Generator(translator.model, translator.config)
    for (source, _), result in zip(PAIRS[:10], results[:10], strict=True):
        ids = translator.tokenizers.source.tokenize([source]).to_list()[0]
        for hypothesis, score in zip(result.hypotheses, result.scores, strict=True):
            target = [*map(processor.piece_to_id, hypothesis), 2][:20]
            scores = generator.score(np.array([[*ids, 2]]), np.array([target]))
            assert float(np.sum(scores)) == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize(("quantize", "bound"), [("float16", 0.01), ("int8", 0.3)])
def test_smaller_weights_give_nearly_the_same(tmp_path, quantize, bound):
    translator = translator_of({})
    plain = translator.export(tmp_path / "plain", "ctranslate2")
    small = translator.export(tmp_path / "small", "ctranslate2", quantize=quantize)
    sizes = [(path / "model.bin").stat().st_size for path in (plain, small)]
    assert sizes[1] < 0.7 * sizes[0]
    exact, rounded = (
        np.concatenate(scores_by_ctranslate2(path, translator.tokenizers))
        for path in (plain, small)
    )
    assert 0 < np.abs(exact - rounded).max() < bound


def test_two_vocabularies_keep_their_pieces(tmp_path):
    config = tiny_run.CONFIG.tokenizer.replace(joint_vocabulary=False)
    tokenizers = learn_tokenizers(tiny_run.PAIRS, config)
    sizes = tiny_run.CONFIG.model.replace(
        tied_embeddings="none", **tokenizers.vocabulary_sizes
    )
    translator = Translator(Transformer(sizes), tokenizers, tiny_run.CONFIG.decoding)
    path = translator.export(tmp_path / "model", "ctranslate2")
    assert {file.name for file in path.iterdir()} == {
        "config.json", "model.bin", "source.model", "source_vocabulary.json",
        "target.model", "target_vocabulary.json",
    }  # fmt: skip
    expected = translator.score(SOURCES, TARGETS)
    given = scores_by_ctranslate2(path, tokenizers)
    for ours, theirs in zip(expected, given, strict=True):
        np.testing.assert_allclose(theirs, ours.token_log_probabilities, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"activation": "softplus"}, "activation='softplus'"),
        ({"key_dim": 3}, "key_dim=3"),
        ({"value_dim": 3}, "value_dim=3"),
        ({"decoder_self_attention": "ssru"}, "decoder_self_attention='ssru'"),
        ({"attention": "relu"}, "attention='relu'"),
        ({"positions": "rotary"}, "positions='rotary'"),
        ({"num_key_value_heads": 1}, "num_key_value_heads=1"),
    ],
)
def test_what_ctranslate2_lacks_is_named(tmp_path, options, named):
    translator = translator_of(options)
    with pytest.raises(ValueError, match=named):
        translator.export(tmp_path / "model", "ctranslate2")
    assert not list(tmp_path.iterdir())


class Other(Transformer):
    """A model that may compute anything."""


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_models_of_another_kind_are_refused(tmp_path):
    def export(translator, **options):
        translator.export(tmp_path / "model", "ctranslate2", **options)

    plain, adapted = translator_of({}), translator_of({})
    other = Translator(Other(plain.model.config), plain.tokenizers, plain.config)
    with pytest.raises(ValueError, match="Received: a Other"):
        export(other)
    with pytest.raises(ValueError, match="`quantize` must be one of none, float16"):
        export(plain, quantize="int4")
    plain.model.quantize("int8")
    with pytest.raises(ValueError, match="quantization_mode='int8'"):
        export(plain)
    enable_lora(adapted.model, 2)
    with pytest.raises(ValueError, match="with an adapter"):
        export(adapted)
    assert not list(tmp_path.iterdir())
