"""LiteRT exports: what is in them, every option of the search, every quantisation."""

from __future__ import annotations

import functools
import hashlib
import json

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from keras import ops

from keras_transformer import LiteTranslator, Transformer, Translator, cli
from keras_transformer.export import litert
from keras_transformer.training.logs import last_scores
from tests import tiny_run

TEXTS = ["the old man sleeps.", "a bear", "the good dog runs. the big bird sings."]


def of_options(model_options=(), **decoding):
    """A translator of random weights with other options."""
    config = tiny_run.CONFIG.decoding.replace(**decoding)
    model = tiny_run.model(**dict(model_options))
    return Translator(model, tiny_run.tokenizers(), config)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return tiny_run.litert(tmp_path_factory)


def test_the_description_tells_a_client_what_it_needs(exported):
    description = json.loads((exported / "translator.json").read_text("utf-8"))
    files = description.pop("files")
    assert description == {
        "format": "keras_transformer.litert",
        "format_version": 1,
        "special_ids": {"pad_id": 0, "start_id": 1, "end_id": 2, "unknown_id": 3},
        "tokenizers": {"source": "joint.model", "target": "joint.model"},
        "max_source_length": 32,
        "longest_output": 35,
        "n_best": 3,
        "search": json.loads(tiny_run.translator().config.to_json()),
        "quantize": "none",
        "languages": ["en", "de"],
        "scores": {"bleu": 3},
    }
    assert set(files) == {"model.tflite", "joint.model"}
    for name, digest in files.items():
        assert hashlib.sha256((exported / name).read_bytes()).hexdigest() == digest
    assert sorted(path.name for path in exported.iterdir()) == [
        "joint.model", "model.tflite", "translate.py", "translator.json",
    ]  # fmt: skip


def test_signatures_have_the_names_of_the_documentation(exported):
    interpreter = Interpreter(str(exported / "model.tflite"))
    found = interpreter.get_signature_list()
    rows = [
        line.split("|")[1].strip() for line in litert.export_litert.__doc__.splitlines()
        if line.strip().startswith("|") and line.split("|")[1].strip().isalpha()
    ]  # fmt: skip
    assert sorted(found) == sorted(set(rows) - {"signature"})
    assert found["complete"]["inputs"] == [
        "lengths", "prefix", "prefix_lengths", "source",
    ]  # fmt: skip
    assert found["nbest"]["outputs"] == ["ids", "scores"]


def test_signatures_share_the_weights(exported):
    parameters = tiny_run.model().count_params() * 4  # bytes
    size = (exported / "model.tflite").stat().st_size
    # Six graphs of some 100 KB each; the weights once.
    assert parameters < size < parameters + 900_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {
            "beam_size": 2, "coverage_penalty": 0.3, "no_repeat_ngram_size": 2,
            "length_penalty": 1.0, "min_output_length": 4, "max_output_length": 9,
            "top_k": 7, "top_p": 0.9,
        },
        {"beam_size": 2, "top_p": 0.5, "alignment_layer": 0},
    ],
)  # fmt: skip
def test_every_option_of_the_search_is_in_the_file(tmp_path, options):
    live = of_options(**options)
    lite = LiteTranslator(live.export_litert(tmp_path / "lite"))
    assert lite(TEXTS) == live(TEXTS)
    for found, expected in zip(
        lite.sample(TEXTS, 1.2, 5), live.sample(TEXTS, 1.2, 5), strict=True
    ):
        assert found.text == expected.text
        assert found.score == pytest.approx(expected.score, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"norm_first": True, "positions": "learned", "max_positions": 40},
            marks=pytest.mark.slow,
        ),
        {"num_encoder_layers": 2, "num_decoder_layers": 2, "activation": "gelu"},
    ],
)
def test_other_models_convert(tmp_path, options):
    live = of_options(options.items(), beam_size=2)
    lite = LiteTranslator(live.export_litert(tmp_path / "lite"))
    assert lite(TEXTS) == live(TEXTS)


@pytest.mark.slow
def test_a_model_in_half_precision_becomes_one_in_float32(tmp_path):
    live = tiny_run.translator()
    half = Translator(live.model.with_dtype("bfloat16"), live.tokenizers, live.config)
    whole = Translator(half.model.with_dtype("float32"), live.tokenizers, live.config)
    lite = LiteTranslator(half.export_litert(tmp_path / "lite"))
    assert lite(TEXTS) == whole(TEXTS)


class Rolling(Transformer):
    """A model with an operation that LiteRT lacks."""

    def encode(self, source, training=None):
        states, mask = super().encode(source, training)
        return ops.roll(states, 1, axis=1), mask


@pytest.mark.slow
def test_a_model_that_cannot_convert_is_named_with_the_operation(tmp_path):
    model = Rolling(tiny_run.model().config)
    live = Translator(model, tiny_run.tokenizers(), tiny_run.CONFIG.decoding)
    message = "A Rolling with these options.* LiteRT lacks, Roll"
    with pytest.raises(ValueError, match=message):
        live.export_litert(tmp_path / "lite")
    assert not list(tmp_path.iterdir())


@functools.cache
def scored(quantize):
    """Size of a file with the signature `score` alone, and what it gives."""
    model = tiny_run.model(d_model=64, d_ff=256)
    every = litert.signatures_of(model, tiny_run.CONFIG.decoding)
    content = litert.convert(model, {"score": every["score"]}, quantize)
    run = Interpreter(model_content=content).get_signature_runner("score")
    ids = np.array([[270, 280, 290, 2], [275, 285, 2, 0]], np.int32)
    outputs = run(source=ids, target=ids[:, ::-1].copy())
    return len(content), outputs["token_log_probabilities"]


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("quantize", "share", "error"), [("float16", 0.6, 1e-2), ("int8", 0.4, 0.3)]
)
def test_quantised_weights_take_less_and_score_alike(quantize, share, error):
    (whole, expected), (small, found) = scored("none"), scored(quantize)
    assert small < share * whole
    assert 0 < np.abs(found - expected).max() < error


@pytest.mark.slow
def test_the_command_line_exports_and_translates(tmp_path, tmp_path_factory, capsys):
    run = tiny_run.run_directory(tmp_path_factory)
    path = tmp_path / "lite"
    words = ["export", "--run", str(run), "--output", str(path), "--format", "litert"]
    assert cli.main([*words, "--quantize", "float16", "--languages", "en", "de"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    description = json.loads((path / "translator.json").read_text("utf-8"))
    assert description["quantize"] == "float16"
    assert description["scores"]["epoch"] == 2
    assert description["scores"]["val_loss"] > 0
    assert cli.main(["translate", "--model", str(path), *TEXTS]) == 0
    assert capsys.readouterr().out.splitlines() == LiteTranslator(path)(TEXTS)
    test = tiny_run.write_pairs(tmp_path / "test.tsv", tiny_run.VALID[:3])
    assert cli.main(["evaluate", "--model", str(path), "--test", str(test)]) == 0
    assert "BLEU 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--quantize", "int8"],
            "`--quantize` goes with `--format litert or litert_serving or web",
        ),
        (["--format", "litert", "--dtype", "bfloat16"], "goes with `--format saved_mo"),
        (["--format", "litert", "--jit-compile"], "`--jit-compile` goes with"),
    ],
)
def test_options_of_the_other_format_are_refused(tmp_path, capsys, words, message):
    command = ["export", "--run", str(tmp_path), "--output", str(tmp_path / "x")]
    assert cli.main([*command, *words]) == 1
    assert message in capsys.readouterr().err


def test_bad_arguments_leave_nothing(tmp_path, monkeypatch):
    live = tiny_run.translator()
    (tmp_path / "old").mkdir()
    with pytest.raises(FileExistsError, match="never overwritten"):
        live.export_litert(tmp_path / "old")
    with pytest.raises(ValueError, match="`quantize` must be one of none, float16, in"):
        live.export_litert(tmp_path / "new", "int4")
    with pytest.raises(ValueError, match="`languages` must be those of source and"):
        live.export_litert(tmp_path / "new", languages=["en"])
    monkeypatch.setattr(litert, "convert", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        live.export_litert(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_an_operation_that_litert_lacks_is_named():
    function = tf.function(
        lambda source: {"y": tf.strings.as_string(source)},
        input_signature=[tf.TensorSpec([None], tf.int32, name="source")],
    )
    with pytest.raises(ValueError, match=r"A Transformer with these options.*AsString"):
        litert.convert(tiny_run.model(), {"translate": function})


def test_the_scores_of_a_run_are_its_last_row(tmp_path):
    assert last_scores(tmp_path) is None
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n0,2.5\n1,1.5\n")
    assert last_scores(tmp_path) == {"epoch": 1.0, "loss": 1.5}
    log.write_text("epoch,loss\n0,2.5\n1\n")
    with pytest.raises(ValueError, match=r"log\.csv: the last row is damaged"):
        last_scores(tmp_path)
