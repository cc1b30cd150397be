"""Text to text with the recurrent model: translator, export, run, command line."""

from __future__ import annotations

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from keras_transformer import RunConfig, Translator, cli, open_pairs, train
from keras_transformer.config import RecurrentConfig, TransformerConfig
from keras_transformer.models.recurrent_seq2seq import RecurrentSeq2Seq
from keras_transformer.training import average_run
from tests import tiny_run
from tests.export.test_saved_graph import violations
from tests.layers.reference_weights import randomise

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exports are TensorFlow's"
)
TEXTS = [source for source, _ in tiny_run.PAIRS[:9]] + ["", "dog", "日本語 " * 30]
TARGETS = [target for _, target in tiny_run.PAIRS[:9]] + ["", "Hund", "x"]
SIZES = {"d_model": 16, "units": 12, "cell": "lstm", "num_decoder_layers": 2}
CONFIG = tiny_run.CONFIG.replace(model=RecurrentConfig(**SIZES))


@functools.cache
def translator(**decoding):
    """A translator of random weights: its words make no sense, but they differ."""
    tokenizers = tiny_run.tokenizers()
    size = tokenizers.source.vocabulary_size
    config = RecurrentConfig(
        source_vocabulary_size=size, target_vocabulary_size=size,
        tied_embeddings="none", **SIZES,
    )  # fmt: skip
    model = randomise(RecurrentSeq2Seq(config), np.random.default_rng(16))
    scale = np.full(size, 3.0, "float32")
    scale[4:260] = 0.0  # Bytes: seldom good UTF-8 together.
    model.output_kernel.assign(model.output_kernel.numpy() * scale)
    options = {"beam_size": 3, "coverage_penalty": 0.2} | decoding
    return Translator(model, tokenizers, CONFIG.decoding.replace(**options))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved_models") / "recurrent" / "1"
    return translator().export(path)


def answers(exported, signature, **inputs):
    loaded = tf.saved_model.load(str(exported)).signatures[signature]
    outputs = loaded(**{name: tf.constant(x) for name, x in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}


def test_the_translations_differ():
    assert len({*translator()(TEXTS)}) >= 6


@pytest.mark.slow
def test_export_gives_the_live_translations_alternatives_and_scores(exported):
    live = translator().translate(TEXTS, n_best=3)
    found = answers(exported, "nbest", text=TEXTS)
    for row, translations in enumerate(live):
        texts = [text.decode("utf-8") for text in found["translations"][row]]
        assert [t.text for t in translations] == texts[: len(translations)]
        scores = [t.score for t in translations]
        np.testing.assert_allclose(scores, found["scores"][row][: len(scores)], 1e-5)
    best = answers(exported, "serving_default", text=TEXTS)["translation"]
    assert [t.decode("utf-8") for t in best] == [t[0].text for t in live]


@pytest.mark.slow
def test_export_scores_completes_samples_and_aligns_as_live(exported):
    scores = translator().score(TEXTS, TARGETS)
    found = answers(exported, "score", source=TEXTS, target=TARGETS)
    np.testing.assert_allclose(
        [score.log_probability for score in scores], found["log_probability"], 1e-5
    )
    given = {"text": TEXTS[:5], "prefix": ["der", "", "der Hund", "x", "alte"]}
    completed = translator().complete(*given.values())
    found = answers(exported, "complete", **given)["translation"]
    assert [c.text for c in completed] == [text.decode("utf-8") for text in found]
    drawn = translator().sample(TEXTS, temperature=0.7, seed=5)
    found = answers(
        exported, "sample", text=TEXTS, temperature=np.full(12, 0.7, "float32"),
        seed=np.arange(5, 17),
    )["translation"]  # fmt: skip
    assert [d.text for d in drawn] == [text.decode("utf-8") for text in found]
    alignments = translator().align(TEXTS[:2])
    attention = answers(exported, "align", text=TEXTS[:2])["attention"]
    for row, alignment in enumerate(alignments):
        t, s = alignment.attention.shape
        assert (t, s) == (len(alignment.target_tokens), len(alignment.source_tokens))
        np.testing.assert_allclose(
            alignment.attention, attention[row, :t, :s], rtol=1e-4, atol=1e-6
        )
        np.testing.assert_allclose(alignment.attention.sum(axis=-1), 1.0, rtol=1e-5)


def test_the_export_holds_only_what_tensorflow_serving_has(exported):
    assert violations(exported) == []


@pytest.mark.slow
def test_a_bfloat16_export_translates(tmp_path):
    path = translator().export(tmp_path / "half" / "1", dtype="bfloat16")
    found = answers(path, "score", source=TEXTS, target=TARGETS)["log_probability"]
    exact = [score.log_probability for score in translator().score(TEXTS, TARGETS)]
    np.testing.assert_allclose(found, exact, rtol=0.1)


@pytest.mark.slow
def test_an_export_compiled_with_xla_translates_as_live(tmp_path):
    path = translator().export(tmp_path / "xla" / "1", jit_compile=True)
    found = answers(path, "serving_default", text=TEXTS)["translation"]
    assert [text.decode("utf-8") for text in found] == translator()(TEXTS)


def test_saved_translator_translates_alike(tmp_path):
    translator().save(tmp_path)
    loaded = Translator.load(tmp_path)
    assert type(loaded.model) is RecurrentSeq2Seq
    assert loaded(TEXTS) == translator()(TEXTS)


def test_there_is_one_layer_to_align_with():
    assert CONFIG.model.num_decoder_layers == 2
    with pytest.raises(ValueError, match="`alignment_layer` must be from -1 to 0"):
        Translator(
            translator().model, tiny_run.tokenizers(),
            CONFIG.decoding.replace(alignment_layer=1),
        )  # fmt: skip


def run(directory, config=CONFIG, **training):
    directory.mkdir(exist_ok=True)
    return train(
        open_pairs(tiny_run.write_pairs(directory / "train.tsv")),
        directory / "run",
        config.replace(training=config.training.replace(**training)),
        open_pairs(tiny_run.write_pairs(directory / "valid.tsv", tiny_run.VALID)),
        Console(quiet=True),
    )


@pytest.mark.slow
def test_a_run_that_goes_on_ends_with_the_weights_of_an_uninterrupted_one(tmp_path):
    options = {"gradient_accumulation_steps": 2, "global_clipnorm": 1.0}
    whole = run(tmp_path / "whole", epochs=2, **options)
    run(tmp_path / "parts", epochs=1, **options)
    parts = run(tmp_path / "parts", epochs=2, **options)
    assert type(parts.model) is RecurrentSeq2Seq
    for ours, theirs in zip(parts.model.weights, whole.model.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    loaded = Translator.load(tmp_path / "whole" / "run")
    assert loaded(TEXTS[:4]) == whole(TEXTS[:4])
    other = tiny_run.CONFIG.replace(
        training=CONFIG.training.replace(epochs=2, **options)
    )
    with pytest.raises(ValueError, match="`family` is 'transformer' and was 'recurr"):
        run(tmp_path / "whole", other)
    average_run(tmp_path / "whole" / "run", tmp_path / "mean")
    assert type(Translator.load(tmp_path / "mean").model) is RecurrentSeq2Seq


def test_json_names_the_family():
    values = json.loads(CONFIG.to_json())
    assert values["model"]["family"] == "recurrent"
    assert RunConfig.from_json(CONFIG.to_json()) == CONFIG
    assert type(RunConfig.from_dict({"model": {}}).model) is TransformerConfig
    with pytest.raises(ValueError, match="`RecurrentConfig` has no option 'num_heads'"):
        RunConfig.from_dict({"model": {"family": "recurrent", "num_heads": 2}})
    with pytest.raises(ValueError, match="`family` must be one of transformer, recurr"):
        RunConfig.from_dict({"model": {"family": "convolutional"}})


@pytest.fixture
def asked(monkeypatch):
    """The options of each training that the command line asks for."""
    found = []
    monkeypatch.setattr(
        "keras_transformer.training.train", lambda *given, **_: found.append(given[2])
    )
    return found


def test_the_command_line_trains_the_family(asked, tmp_path, capsys):
    pairs = str(tiny_run.write_pairs(tmp_path / "train.tsv"))
    words = ["train", "--train", pairs, "--run", "unused", "--family", "recurrent"]
    more = ["--preset", "tiny", "--units", "48", "--no-bidirectional"]
    layers = ["--cell", "lstm", "--num-encoder-layers", "2"]
    assert cli.main([*words, *more, *layers, "--num-decoder-layers", "3"]) == 0
    sizes = {"units": 48, "bidirectional": False, "cell": "lstm"}
    expected = RecurrentConfig.preset(
        "tiny", **sizes, num_encoder_layers=2, num_decoder_layers=3
    )
    assert asked[0].model == expected
    assert cli.main([*words, "--num-heads", "3"]) == 1
    assert "`RecurrentConfig` has no option 'num_heads'" in capsys.readouterr().err
    assert cli.main([*words, "--preset", "big"]) == 1
    assert "`preset` must be one of tiny, small, base" in capsys.readouterr().err
    assert len(asked) == 1
