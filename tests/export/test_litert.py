"""LiteRT exports: what is in them, every quantisation, and language models alone."""

import hashlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from keras import ops

import keras_transformer as kt
from keras_transformer.formats.litert import export_litert
from tests import tiny_run
from tests.layers.reference_weights import assert_close, randomise

TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]


def test_the_description_tells_a_client_what_it_needs(lite_export):
    description = json.loads((lite_export / "translator.json").read_text("utf-8"))
    files = description.pop("files")
    assert description == {
        "format": "keras_transformer.litert.1",
        "special_ids": {"pad_id": 0, "start_id": 1, "end_id": 2, "unknown_id": 3},
        "tokenizers": {"source": "joint.model", "target": "joint.model"},
        "max_source_length": 32,
        "longest_output": 35,
        "n_best": 3,
        "search": json.loads(tiny_run.translator().config.to_json()),
        "quantize": "none",
        "languages": ["en", "de"],
    }
    assert set(files) == {"model.tflite", "joint.model"}
    for name, digest in files.items():
        assert hashlib.sha256((lite_export / name).read_bytes()).hexdigest() == digest
    assert sorted(path.name for path in lite_export.iterdir()) == [
        "joint.model", "model.tflite", "translate.py", "translation.py",
        "translator.json",
    ]  # fmt: skip


def test_signatures_have_the_names_of_the_documentation_and_share_weights(lite_export):
    found = Interpreter(str(lite_export / "model.tflite")).get_signature_list()
    rows = [
        line.split("|")[1].strip() for line in export_litert.__doc__.splitlines()
        if line.strip().startswith("|") and line.split("|")[1].strip().isalpha()
    ]  # fmt: skip
    assert sorted(found) == sorted(set(rows) - {"signature"})
    assert found["complete"]["inputs"] == [
        "lengths", "prefix", "prefix_lengths", "source",
    ]  # fmt: skip
    assert found["nbest"]["outputs"] == ["ids", "scores"]
    parameters = tiny_run.model().count_params() * 4  # bytes
    size = (lite_export / "model.tflite").stat().st_size
    # Six graphs of some 100 KB each; the weights once.
    assert parameters < size < parameters + 900_000


@pytest.mark.slow
def test_a_model_in_half_precision_becomes_one_in_float32(tmp_path):
    live = tiny_run.translator()
    half = kt.Translator(
        live.model.with_dtype("bfloat16"), live.tokenizers, live.config
    )
    whole = kt.Translator(
        half.model.with_dtype("float32"), live.tokenizers, live.config
    )
    lite = kt.LiteTranslator(half.export(tmp_path / "lite", "litert"))
    assert lite(TEXTS) == whole(TEXTS)


def language_model(**options):
    sizes = {"num_layers": 2, "d_model": 6, "d_ff": 7, "num_heads": 2}
    return kt.LanguageModel(
        kt.LanguageModelConfig(vocabulary_size=29, **sizes | options)
    )


@pytest.mark.parametrize(
    ("quantize", "share", "error"), [("float16", 0.65, 0.02), ("int8", 0.6, 0.3)]
)
def test_quantised_weights_take_less_and_answer_alike(tmp_path, quantize, share, error):
    model = randomise(language_model(d_model=64, d_ff=256), np.random.default_rng(3))
    path, ids = tmp_path / "model.tflite", np.array([[5, 9, 7, 12], [20, 4, 0, 0]])
    kt.export_litert_language_model(model, path, quantize)
    run = Interpreter(str(path)).get_signature_runner("predict")
    found = run(ids=ids.astype("int32"))["logits"]
    expected = ops.convert_to_numpy(model(ids))
    # Of four bytes a weight, and of two graphs.
    assert path.stat().st_size < share * (4 * model.count_params() + 180_000)
    assert 0 < np.abs(found - expected).max() < error * np.abs(expected).max()


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


@pytest.mark.one_case
@pytest.mark.parametrize(("options", "sampling"), SAMPLING)
def test_a_language_model_predicts_and_generates(tmp_path, rng, options, sampling):
    model = randomise(language_model(**options), rng)
    path = tmp_path / "new" / "model.tflite"
    assert kt.export_litert_language_model(model, path, **sampling) == path
    interpreter = Interpreter(str(path))
    assert interpreter.get_signature_list()["generate"] == {
        "inputs": ["lengths", "prompts", "temperature", "uniforms"],
        "outputs": ["ids", "scores"],
    }
    predict = interpreter.get_signature_runner("predict")
    for shape in ((2, 7), (3, 11)):
        ids = rng.integers(3, 29, shape).astype("int32")
        assert_close(predict(ids=ids)["logits"], ops.convert_to_numpy(model(ids)))
    sampler = kt.LanguageSampler(model, **sampling)
    runner = interpreter.get_signature_runner("generate")
    for batch, width, length, temperature in (
        (2, 3, 7, 1.0),
        (5, 0, 13, 1.3),
        (3, 4, 17, 0.0),
        (1, 5, 5, 1.0),
    ):
        prompts = rng.integers(3, 29, (batch, width)).astype("int32")
        lengths = np.full(batch, width, "int32")
        lengths[0] = min(width, 2)  # What stands after it is ignored.
        # The numbers that `LanguageSampler` draws with for seed 5.
        drawn = [np.random.default_rng(5 + i).random(length) for i in range(batch)]
        found = runner(
            prompts=prompts,
            lengths=lengths,
            uniforms=np.array(drawn, "float32"),
            temperature=np.full(batch, temperature, "float32"),
        )
        prompts[0, lengths[0] :] = 0
        expected = sampler(prompts, length, temperature, seed=5)
        assert found["ids"].tolist() == ops.convert_to_numpy(expected.ids).tolist()
        scores = ops.convert_to_numpy(expected.scores)
        np.testing.assert_allclose(found["scores"], scores, rtol=1e-5, atol=1e-4)


def test_generation_ends_when_all_texts_have(tmp_path, rng):
    model = randomise(language_model(positions="learned", max_positions=9), rng)
    path = kt.export_litert_language_model(model, tmp_path / "model.tflite")
    end = model.config.end_id

    def generate(last):
        runner = Interpreter(str(path)).get_signature_runner("generate")
        return runner(
            prompts=np.array([[7, end, 0], [8, 9, last]], "int32"),
            lengths=np.array([2, 3], "int32"),
            uniforms=np.full((2, 23), 0.4, "float32"),
            temperature=np.ones(2, "float32"),
        )["ids"]

    # A step beyond the learned positions is an error.
    assert generate(end)[:, 0, :4].tolist() == [[7, end, 0, 0], [8, 9, end, 0]]
    with pytest.raises(RuntimeError, match="gather index out of bounds"):
        generate(7)


class RollingModel(kt.LanguageModel):
    """A language model with an operation that LiteRT lacks."""

    def call(self, inputs, training=None):
        return ops.roll(super().call(inputs, training=training), 1, axis=1)


def test_an_error_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(b"old")
    model = RollingModel(language_model().config)
    message = "A RollingModel with these options cannot become a LiteRT .* lacks, Roll"
    with pytest.raises(ValueError, match=message):
        kt.export_litert_language_model(model, path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [
        ("model.tflite", b"old")
    ]


def tagger():
    config = kt.EncoderConfig(num_layers=2, d_model=6, d_ff=7, num_heads=2)
    return kt.Tagger(kt.Encoder(config, 29), 5)


def test_bad_arguments_of_a_language_model_are_refused(tmp_path):
    path, export = tmp_path / "model.tflite", kt.export_litert_language_model
    half = kt.LanguageModel(language_model().config, dtype="mixed_float16")
    for call, error, message in (
        (lambda: export(language_model(), path, "int4"), ValueError, "`quantize` must"),
        (lambda: export(language_model(), tmp_path), IsADirectoryError, "is a direct"),
        (lambda: export(language_model(), path, top_p=2.0), ValueError, "`top_p` must"),
        (lambda: export(language_model(), path, beam=2), TypeError, "'beam'"),
        (lambda: export(half, path), ValueError, "compute in float32.*mixed_float16"),
        (lambda: export(tagger(), path), TypeError, "format='litert'.*: Tagger$"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert not list(tmp_path.iterdir())


@pytest.mark.one_case
@pytest.mark.parametrize("quantize", [False, True])
def test_keras_itself_writes_any_other_model_for_any_size(tmp_path, rng, quantize):
    model, path = randomise(tagger(), rng), tmp_path / "tagger.tflite"
    optimizations = [tf.lite.Optimize.DEFAULT] if quantize else []
    model.export(path, format="litert", verbose=False, optimizations=optimizations)
    runner = Interpreter(str(path)).get_signature_runner()
    for shape in ((2, 7), (3, 11)):
        ids = rng.integers(3, 29, shape).astype("int32")
        (logits,) = runner(args_0=ids).values()
        assert_close(logits, keras.ops.convert_to_numpy(model(ids)))
