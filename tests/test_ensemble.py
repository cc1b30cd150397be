"""Several translators as one: live, exported to TensorFlow Serving and to LiteRT."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import (
    ExportedTranslator,
    LiteTranslator,
    TokenizerConfig,
    Transformer,
    Translator,
    cli,
    learn_tokenizers,
    train,
)
from tests import tiny_run
from tests.layers.reference_weights import randomise

TEXTS = ["the good bear runs.", "", "a dog", "the old man sings. the big bird sleeps."]
TARGETS = ["der gute Bär rennt.", "", "ein Hund", "der alte Mann"]


@functools.cache
def members():
    """Two translators of random weights, of other sizes, and the file of one."""
    first = tiny_run.translator()
    model = Transformer(first.model.config.replace(d_model=24, num_decoder_layers=2))
    randomise(model, np.random.default_rng(7))
    kernel = np.array(model.output_dense.kernel)
    model.output_dense.kernel.assign(kernel * np.linspace(0.5, 3.0, kernel.shape[1]))
    return first, Translator(model, first.tokenizers, first.config)


@functools.cache
def ensemble():
    return Translator.ensemble(members())


def test_the_score_is_the_log_of_the_mean_of_each_tokens_probability():
    parts = [member.score(TEXTS, TARGETS) for member in members()]
    for found, *alone in zip(ensemble().score(TEXTS, TARGETS), *parts, strict=True):
        of_tokens = [score.token_log_probabilities.astype("float64") for score in alone]
        expected = np.log(np.mean(np.exp(of_tokens), axis=0))
        np.testing.assert_allclose(
            found.token_log_probabilities, expected, rtol=1e-4, atol=1e-5
        )
        assert found.log_probability == pytest.approx(expected.sum(), rel=1e-4)
        assert found.tokens == alone[0].tokens


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("ensemble") / "tiny" / "1"
    return tf.saved_model.load(str(ensemble().export(path))).signatures


GIVEN = {
    "serving_default": (TEXTS,),
    "nbest": (TEXTS,),
    "score": (TEXTS, TARGETS),
    "align": (TEXTS,),
    "sample": (TEXTS, [0.0, 1.0, 0.7, 1.3], [1, 2, 3, 4]),
    "complete": (TEXTS, ["der", "", "ein", "die"]),
}


@pytest.mark.one_case
@pytest.mark.parametrize("name", GIVEN)
def test_every_signature_of_the_export_equals_the_live_ensemble(name, exported):
    signature = exported[name]
    specs = signature.structured_input_signature[1]
    order = {
        "score": ("source", "target"), "complete": ("text", "prefix"),
        "sample": ("text", "temperature", "seed"),
    }.get(name, ("text",))  # fmt: skip
    inputs = [
        tf.constant(values, specs[key].dtype)
        for key, values in zip(order, GIVEN[name], strict=True)
    ]
    found = signature(**dict(zip(order, inputs, strict=True)))
    expected = ensemble()._pipeline.run(name, *inputs)
    assert sorted(found) == sorted(expected)
    for key, value in expected.items():
        if value.dtype in (tf.string, tf.bool):
            np.testing.assert_array_equal(found[key].numpy(), value.numpy())
        else:
            np.testing.assert_allclose(
                found[key].numpy(), value.numpy(), rtol=1e-4, atol=1e-5
            )


def test_members_need_one_tokenizer(tmp_path):
    config = TokenizerConfig(300, algorithm="unigram")
    other = learn_tokenizers(tiny_run.TRAIN, config)
    stranger = Translator(tiny_run.model(), other, tiny_run.CONFIG.decoding)
    with pytest.raises(ValueError, match="must have one tokenizer.*: member 3 with"):
        Translator.ensemble([*members(), stranger])
    with pytest.raises(ValueError, match="at least two members. Received: 1"):
        Translator.ensemble(members()[:1])
    with pytest.raises(FileNotFoundError, match="holds no trained translator"):
        Translator.ensemble([members()[0], tmp_path])


def test_it_is_neither_saved_nor_trained(tmp_path):
    with pytest.raises(ValueError, match="cannot be saved: .* ensemble of 2"):
        ensemble().save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="The model of `init` must be.* a Ensemble"):
        train(tiny_run.TRAIN, tmp_path / "run", init=ensemble())


@pytest.mark.slow
def test_the_command_exports_several_runs(tmp_path, capsys):
    runs = []
    for number, member in enumerate(members()):
        runs.append(str(tmp_path / f"run{number}"))
        member.save(runs[-1])
    output = tmp_path / "saved" / "1"
    words = ["export", *runs, "--output", str(output), "--beam-size", "2"]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == f"{output}\n"
    config = members()[0].config.replace(beam_size=2)
    live = Translator.ensemble(runs, config)
    assert ExportedTranslator(output)(TEXTS) == live(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ("none", "int8"))
def test_it_becomes_a_litert_file(tmp_path, quantize):
    path = ensemble().export(tmp_path / "lite", "litert", quantize=quantize)
    lite = LiteTranslator(path)
    if quantize == "none":
        assert lite(TEXTS) == ensemble()(TEXTS)
        expected = [best[0].score for best in ensemble().translate(TEXTS)]
        found = [best[0].score for best in lite.translate(TEXTS)]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    else:
        assert len(lite(TEXTS)) == len(TEXTS)
