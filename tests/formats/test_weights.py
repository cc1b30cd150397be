"""Exports for CTranslate2, against what it computes itself; and of named tensors."""

import json

import ctranslate2
import keras
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from sentencepiece import SentencePieceProcessor

import keras_transformer as kt
from keras_transformer.search.generator import Generator
from tests import tiny_run
from tests.nn.layers.reference_weights import randomise
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
    sizes = {"tied_embeddings": "none"} | tokenizers.vocabulary_sizes | options
    model = kt.Transformer(tiny_run.CONFIG.model.replace(**sizes))
    randomise(model, np.random.default_rng(3))
    search = {"max_output_length": 20, "max_extra_length": 99, "length_penalty": 0.0}
    config = tiny_run.CONFIG.decoding.replace(**(search | decoding))
    return kt.Translator(model, tokenizers, config)


def pieces_of(tokenizer, texts):
    return [tokenizer.pieces(ids) for ids in tokenizer.tokenize(texts).to_list()]


def scores_by_ctranslate2(directory, tokenizers):
    """The log-probability of each target token, the end token included."""
    # Its products in int8 are rough where the processor has no AVX-512 VNNI.
    engine = ctranslate2.Translator(str(directory), compute_type="float32")
    sides = zip((tokenizers.source, tokenizers.target), (SOURCES, TARGETS), strict=True)
    pairs = [pieces_of(tokenizer, texts) for tokenizer, texts in sides]
    return [result.log_probs for result in engine.score_batch(*pairs)]


def assert_same_scores(translator, path):
    theirs = scores_by_ctranslate2(path, translator.tokenizers)
    for one, other in zip(translator.score(SOURCES, TARGETS), theirs, strict=True):
        np.testing.assert_allclose(other, one.token_log_probabilities, 0, atol=1e-4)


@pytest.mark.one_case("normalised")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_ctranslate2_gives_the_same_probabilities(tmp_path, options):
    translator = translator_of(options, max_output_length=None)
    assert_same_scores(translator, translator.export(tmp_path / "m", "ctranslate2"))


def found_by_ctranslate2(translator, directory, **options):
    """What CTranslate2 finds for the sources of the tiny corpus."""
    engine = ctranslate2.Translator(str(directory))
    sources = pieces_of(translator.tokenizers.source, [pair[0] for pair in PAIRS])
    return engine.translate_batch(sources, **SEARCH, **options)


def test_ctranslate2_finds_the_same_translations(tmp_path):
    config = translator_of({}, beam_size=1).config  # Outputs of many lengths.
    translator = kt.Translator(tiny_run.model(7), tiny_run.tokenizers(), config)
    path = translator.export(tmp_path / "model", "ctranslate2")
    results = found_by_ctranslate2(translator, path, beam_size=1)
    lengths = {len(result.hypotheses[0]) for result in results}
    assert 20 in lengths and len(lengths) > 3
    join = SentencePieceProcessor(str(path / "joint.model")).decode_pieces
    texts = [join(result.hypotheses[0]) for result in results]
    assert texts == translator([source for source, _ in PAIRS])


def test_ctranslate2_scores_a_beam_as_we_do(tmp_path):
    # Its beams are not quite ours: of the 2 N best tokens it lets the first N end.
    translator = translator_of({"output_bias": True}, beam_size=3)
    # No padding and no start, which CTranslate2 takes out of the softmax.
    translator.model.output_bias.assign(np.where(np.arange(308) < 2, -1000.0, 0.0))
    path = translator.export(tmp_path / "model", "ctranslate2")
    results = found_by_ctranslate2(translator, path, beam_size=3, num_hypotheses=3)
    piece_id = SentencePieceProcessor(str(path / "joint.model")).piece_to_id
    generator = Generator(translator.model, translator.config)
    for (source, _), result in zip(PAIRS[:10], results[:10], strict=True):
        ids = translator.tokenizers.source.tokenize([source]).to_list()[0]
        for hypothesis, score in zip(result.hypotheses, result.scores, strict=True):
            target = np.array([[*map(piece_id, hypothesis), 2][:20]])
            scores = generator.score(np.array([[*ids, 2]]), target)
            assert float(np.sum(scores)) == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize(("quantize", "bound"), [("float16", 0.01), ("int8", 0.1)])
def test_smaller_weights_give_nearly_the_same(tmp_path, quantize, bound):
    translator = translator_of({})
    plain = translator.export(tmp_path / "plain", "ctranslate2")
    small = translator.export(tmp_path / "small", "ctranslate2", quantize=quantize)
    sizes = [(path / "model.bin").stat().st_size for path in (plain, small)]
    assert sizes[1] < 0.7 * sizes[0]
    scores = [scores_by_ctranslate2(p, translator.tokenizers) for p in (plain, small)]
    assert 0 < np.abs(np.subtract(*map(np.concatenate, scores))).max() < bound


def test_two_vocabularies_keep_their_pieces(tmp_path):
    config = tiny_run.CONFIG.tokenizer.replace(joint_vocabulary=False)
    tokenizers = kt.learn_tokenizers(tiny_run.PAIRS, config)
    sizes = {"tied_embeddings": "none", **tokenizers.vocabulary_sizes}
    model = kt.Transformer(tiny_run.CONFIG.model.replace(**sizes))
    translator = kt.Translator(model, tokenizers, tiny_run.CONFIG.decoding)
    path = translator.export(tmp_path / "model", "ctranslate2")
    assert {file.name for file in path.iterdir()} == {
        "config.json", "model.bin", "source.model", "source_vocabulary.json",
        "target.model", "target_vocabulary.json",
    }  # fmt: skip
    assert_same_scores(translator, path)


# Named tensors.


def test_every_weight_has_its_name_and_the_sizes_come_with_it(tmp_path):
    translator = tiny_run.translator()
    path = translator.export(tmp_path / "weights", "safetensors")
    tensors = load_file(path / "model.safetensors")
    weights = {
        weight.path.split("/", 1)[1]: keras.ops.convert_to_numpy(weight)
        for weight in translator.model.weights
    }
    assert tensors.keys() == weights.keys()
    assert "encoder_layer_0/self_attention/query_dense/kernel" in tensors
    for name, value in weights.items():
        np.testing.assert_array_equal(tensors[name], value)
    with safe_open(path / "model.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == "keras_transformer"
    assert metadata["class"] == "Transformer"
    sizes = json.loads(metadata["config"])
    assert kt.TransformerConfig.from_dict(sizes) == translator.model.config
    decoding = kt.DecodingConfig.from_dict(json.loads(metadata["decoding"]))
    assert decoding == translator.config
    assert kt.TokenizerPair.load(path / "tokenizer").same_as(translator.tokenizers)


def test_weights_in_bfloat16_are_written_as_float32(tmp_path):
    live = tiny_run.translator()
    model = live.model.with_dtype("bfloat16")
    other = kt.Translator(model, live.tokenizers, live.config)
    path = other.export(tmp_path / "weights", "safetensors")
    name = "decoder_layer_0/feed_forward_norm/gamma"
    gamma = load_file(path / "model.safetensors")[name]
    assert gamma.dtype == np.float32
    expected = model.decoder_layers[0].feed_forward_residual.norm.gamma
    expected = keras.ops.convert_to_numpy(keras.ops.cast(expected, "float32"))
    np.testing.assert_array_equal(gamma, expected)
