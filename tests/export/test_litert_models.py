"""LiteRT files of the models with an output of their own, against the live models."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from keras import ops

from keras_transformer import (
    Encoder,
    EncoderConfig,
    EncoderStack,
    FeatureEmbedding,
    LanguageModel,
    LanguageModelConfig,
    LanguageSampler,
    MaskedLanguageModel,
    PositionalEmbedding,
    Tagger,
    TextClassifier,
    Transformer,
    TransformerConfig,
    export_litert_model,
)
from keras_transformer.models.heads import EncoderHead
from tests.layers.reference_weights import assert_close, randomise

CONFIG = EncoderConfig(num_layers=2, d_model=6, d_ff=7, num_heads=2)
PRE_NORM = CONFIG.replace(norm_first=True, activation="gelu", use_bias=True)
VOCABULARY_SIZE = 29


def encoder(config=CONFIG, **options):
    return Encoder(config, VOCABULARY_SIZE, **options)


def learned(config):
    embedding = PositionalEmbedding(
        VOCABULARY_SIZE, config.d_model, positions="learned", max_length=31, pad_id=0
    )
    return Encoder(config, embedding)


def functional():
    """A model of vectors and of which positions see each other."""
    vectors = keras.Input((None, 5), name="vectors")
    allowed = keras.Input((None, None), name="allowed", dtype="bool")
    states = keras.layers.Dense(CONFIG.d_model)(vectors)
    states = EncoderStack(CONFIG)(states, mask=allowed)
    return keras.Model([vectors, allowed], keras.layers.Dense(4)(states))


def language_model(**options):
    sizes = {"num_layers": 2, "d_model": 6, "d_ff": 7, "num_heads": 2}
    config = LanguageModelConfig(vocabulary_size=VOCABULARY_SIZE, **sizes | options)
    return LanguageModel(config)


MODELS = {
    "tagger": lambda: Tagger(encoder(), 5),
    "tagger of features": lambda: Tagger(
        Encoder(CONFIG, FeatureEmbedding(VOCABULARY_SIZE, CONFIG.d_model)), 5
    ),
    "masked language model": lambda: MaskedLanguageModel(learned(PRE_NORM)),
    "mean": lambda: TextClassifier(encoder(), 3),
    "class token": lambda: TextClassifier(encoder(), 3, pooling="class_token"),
    "functional": functional,
}


def random_inputs(model, batch, length, rng):
    """Inputs of a model by their names in the file, the last row's end padded."""
    if not isinstance(model, (EncoderHead, LanguageModel)):
        vectors = rng.normal(size=(batch, length, 5)).astype("float32")
        allowed = rng.random((batch, length, length)) < 0.4
        return {"vectors": vectors, "allowed": allowed}
    features = (3,) * (len(model.input_signature()[0].shape) - 2)
    ids = rng.integers(3, VOCABULARY_SIZE, (batch, length, *features)).astype("int32")
    ids[-1, length // 2 + 1 :] = 0
    return {"ids": ids}


def live_logits(model, inputs):
    values = tuple(inputs.values())
    return ops.convert_to_numpy(model(values[0] if len(values) == 1 else values))


def check_predict(model, path, rng):
    runner = Interpreter(str(path)).get_signature_runner("predict")
    for batch, length in ((2, 7), (3, 11)):
        inputs = random_inputs(model, batch, length, rng)
        outputs = runner(**inputs)
        assert list(outputs) == ["logits"]
        assert_close(outputs["logits"], live_logits(model, inputs))


@pytest.mark.one_case
@pytest.mark.parametrize("name", MODELS)
def test_predict_equals_a_call(tmp_path, rng, name):
    model = randomise(MODELS[name](), rng)
    path = export_litert_model(model, tmp_path / "new" / "model.tflite")
    assert path == tmp_path / "new" / "model.tflite"
    assert list(Interpreter(str(path)).get_signature_list()) == ["predict"]
    check_predict(model, path, rng)


SAMPLING = [
    ({}, {}),
    (
        {
            "norm_first": True, "positions": "learned", "max_positions": 17,
            "tied_embeddings": False, "activation": "gelu",
        },
        {"top_k": 11, "top_p": 0.9, "min_length": 6, "no_repeat_ngram_size": 2},
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("options", "sampling"), SAMPLING)
def test_a_language_model_predicts_and_generates(tmp_path, rng, options, sampling):
    model = randomise(language_model(**options), rng)
    path = export_litert_model(model, tmp_path / "model.tflite", **sampling)
    signatures = Interpreter(str(path)).get_signature_list()
    assert signatures["generate"] == {
        "inputs": ["lengths", "prompts", "temperature", "uniforms"],
        "outputs": ["ids", "scores"],
    }
    check_predict(model, path, rng)
    sampler = LanguageSampler(model, **sampling)
    runner = Interpreter(str(path)).get_signature_runner("generate")
    for batch, width, length, temperature in (
        (2, 3, 7, 1.0), (5, 0, 13, 1.3), (3, 4, 17, 0.0), (1, 5, 5, 1.0),
    ):  # fmt: skip
        prompts = rng.integers(3, VOCABULARY_SIZE, (batch, width)).astype("int32")
        lengths = np.full(batch, width, "int32")
        lengths[0] = min(width, 2)  # What stands after it is ignored.
        found = runner(
            prompts=prompts,
            lengths=lengths,
            uniforms=uniforms(batch, length),
            temperature=np.full(batch, temperature, "float32"),
        )
        prompts[0, lengths[0] :] = 0
        expected = sampler(prompts, length, temperature, seed=5)
        assert found["ids"].tolist() == ops.convert_to_numpy(expected.ids).tolist()
        scores = ops.convert_to_numpy(expected.scores)
        np.testing.assert_allclose(found["scores"], scores, rtol=1e-5, atol=1e-4)


def uniforms(batch, length):
    """The numbers that `LanguageSampler` draws with for seed 5."""
    rows = [np.random.default_rng(5 + i).random(length) for i in range(batch)]
    return np.array(rows, "float32")


def test_generation_ends_when_all_texts_have(tmp_path, rng):
    model = randomise(language_model(positions="learned", max_positions=9), rng)
    path = export_litert_model(model, tmp_path / "model.tflite")
    end = model.config.end_id

    def generate(last):
        runner = Interpreter(str(path)).get_signature_runner("generate")
        return runner(
            prompts=np.array([[7, end, 0], [8, 9, last]], "int32"),
            lengths=np.array([2, 3], "int32"),
            uniforms=np.full((2, 23), 0.4, "float32"),
            temperature=np.ones(2, "float32"),
        )["ids"]

    # A step beyond the learned positions would be an error.
    assert generate(end)[:, 0, :4].tolist() == [[7, end, 0, 0], [8, 9, end, 0]]
    with pytest.raises(RuntimeError, match="gather index out of bounds"):
        generate(7)


@functools.cache
def sized(path, quantize):
    """Size of a file, and its logits."""
    keras.utils.set_random_seed(1)
    model = TextClassifier(
        encoder(CONFIG.replace(d_model=64, d_ff=256)), 3, pooling="class_token"
    )
    export_litert_model(model, path, quantize)
    runner = Interpreter(str(path)).get_signature_runner("predict")
    ids = np.array([[5, 9, 7, 12], [20, 4, 0, 0]], "int32")
    return path.stat().st_size, runner(ids=ids)["logits"]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("quantize", "share", "error"), [("float16", 0.65, 1e-2), ("int8", 0.45, 0.2)]
)
def test_quantised_files_are_smaller_and_answer_alike(
    tmp_path_factory, quantize, share, error
):
    path = tmp_path_factory.getbasetemp() / "sized.tflite"
    (whole, expected), (small, found) = sized(path, "none"), sized(path, quantize)
    assert small < share * whole
    assert 0 < np.abs(found - expected).max() < error


class Rolling(Tagger):
    """A tagger with an operation that LiteRT lacks."""

    def call(self, inputs, training=None):
        return ops.roll(super().call(inputs, training=training), 1, axis=1)


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(b"old")
    message = "A Rolling with these options cannot become a LiteRT file.* lacks, Roll"
    with pytest.raises(ValueError, match=message):
        export_litert_model(Rolling(encoder(), 5), path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [
        ("model.tflite", b"old")
    ]


def test_bad_arguments_are_refused(tmp_path):
    path, tagger = tmp_path / "model.tflite", Tagger(encoder(), 5)
    with pytest.raises(ValueError, match="`quantize` must be one of none, float16, in"):
        export_litert_model(tagger, path, "int4")
    with pytest.raises(IsADirectoryError, match="is a directory"):
        export_litert_model(tagger, tmp_path)
    with pytest.raises(TypeError, match=r"for a `LanguageModel`.*Tagger and top_k$"):
        export_litert_model(tagger, path, top_k=3)
    with pytest.raises(ValueError, match="`top_p` must be at most 1"):
        export_litert_model(language_model(), path, top_p=2.0)
    half = Tagger(encoder(dtype="mixed_float16"), 5, dtype="mixed_float16")
    with pytest.raises(ValueError, match=r"A Tagger must compute in float32.*mixed_fl"):
        export_litert_model(half, path)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(d_model=6, d_ff=7, num_heads=2, **sizes)
    with pytest.raises(TypeError, match=r"`Translator.export_litert` .*: Transformer$"):
        export_litert_model(Transformer(config), path)
    assert not list(tmp_path.iterdir())
