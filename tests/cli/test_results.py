"""`--json` and `--quiet`, in real processes where streams matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from keras_transformer import cli
from keras_transformer.cli import translate as verbs
from keras_transformer.terminal import warnings_only
from tests import tiny_run
from tests.cli.test_cli import SIZES, TEXTS

# Two epochs have 8 updates; what warms up for longer is warned of.
TWO_EPOCHS = [*SIZES, "--epochs", "2", "--warmup-steps", "5"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Training and validation pairs."""
    folder = tmp_path_factory.mktemp("files")
    train = tiny_run.write_pairs(folder / "train.tsv")
    return train, tiny_run.write_pairs(folder / "valid.tsv", tiny_run.VALID)


def objects(capsys, *words):
    """The object that a verb prints, and what it printed on standard error."""
    assert cli.main([*map(str, words), "--json"]) == 0
    printed = capsys.readouterr()
    (line,) = printed.out.splitlines()
    return json.loads(line), printed.err


def in_a_process(*words, **environment):
    """Runs the command line as a shell does: what TensorFlow prints is seen too."""
    program = "import sys; from keras_transformer.cli import main; sys.exit(main())"
    environment = {**os.environ, **environment}
    environment.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        env=environment,
        encoding="utf-8",
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory, files):
    """The process that trained, and its run."""
    run = tmp_path_factory.mktemp("json") / "run"
    words = ["--train", files[0], "--valid", files[1], "--run", run, *TWO_EPOCHS]
    return in_a_process("train", *words, "--json"), run


def test_a_training_prints_one_object_and_no_line_of_tensorflow(trained):
    done, run = trained
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["run"] == str(run)
    assert result["model"] == {
        "class": "Transformer", "parameters": 10176, "dtype": "float32"
    }  # fmt: skip
    data = dict(result["data"]["training"])
    assert 40 * 8 < data.pop("tokens") < 40 * 40
    assert data == {
        "files": ["train.tsv"], "pairs": 40, "bad_lines": 0, "batches": 4
    }  # fmt: skip
    assert (result["updates"], result["epochs"]) == (8, 2)
    assert 0 < result["seconds"] < 600
    assert result["last_epoch"]["val_loss"] > 0
    assert result["machine"]["processor"]
    assert (
        json.loads((run / "summary.json").read_text("utf-8")) | {"run": str(run)}
        == result
    )

    lines = done.stderr.splitlines()
    beginnings = (
        "learning the vocabulary", "training data: 40 pairs", "validation data: 8 ",
        "a batch has ", "computing in float32 with tensorflow on ",
        "training a Transformer: num_encoder_layers 1, ", "epoch 1/2 ", "epoch 2/2 ",
        "trained 10,176 parameters: 8 updates, 2 epochs in ", f"written to {run}: ",
        "next: keras-transformer evaluate --model ", "      keras-transformer trans",
        "      keras-transformer export",
    )  # fmt: skip
    assert len(lines) == len(beginnings), done.stderr
    for found, beginning in zip(lines, beginnings, strict=True):
        assert found.startswith(beginning)


def test_the_commands_that_are_named_next_are_understood(trained):
    run = trained[1]
    lines = [s for s in trained[0].stderr.splitlines() if "keras-transformer " in s]
    assert len(lines) == 3
    for line in lines:
        words = line.partition("keras-transformer ")[2].split()
        options = cli.make_parser().parse_args(words)
        assert getattr(options, "model", None) in (run, [run])


@pytest.mark.slow
def test_a_quiet_export_prints_its_path_alone(trained, tmp_path):
    output = tmp_path / "version" / "1"
    done = in_a_process("export", "--run", trained[1], "--output", output, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{output}\n", "")


def test_a_quiet_training_prints_nothing(trained, files, capsys):
    """It is finished: without the flag that would be said."""
    words = ["train", "--train", files[0], "--valid", files[1], "--run", trained[1]]
    words = [*map(str, words), *TWO_EPOCHS]
    assert cli.main([*words, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert cli.main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert "is finished: 8 updates" in said[-6] and said[-5].startswith("trained ")


@pytest.mark.slow
def test_an_error_reaches_a_process_and_leaves_no_object(tmp_path):
    words = "evaluate", "--model", tmp_path, "--test", "no.tsv", "--json", "--quiet"
    done = in_a_process(*words)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("keras-transformer: error: ")


def test_evaluate_gives_scores_with_signatures(trained, files, tmp_path, capsys):
    output = tmp_path / "out.txt"
    words = ["--test", files[1], "--output", output]
    scores, said = objects(capsys, "evaluate", "--model", trained[1], *words)
    assert scores["sentences"] == len(tiny_run.VALID)
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed")
    assert scores["output"] == str(output)
    assert f"BLEU {scores['bleu']:.2f}" in said


def test_translate_gives_sources_texts_and_scores(tmp_path_factory, capsys):
    model = tiny_run.saved_model(tmp_path_factory)
    live = tiny_run.translator().translate(TEXTS, n_best=3)
    result, said = objects(capsys, "translate", "--model", model, *TEXTS)
    found = result["translations"]
    assert said == ""
    assert [one["source"] for one in found] == TEXTS
    assert [one["text"] for one in found] == [several[0].text for several in live]
    scores = [several[0].score for several in live]
    np.testing.assert_allclose([one["score"] for one in found], scores, atol=2e-4)
    assert all("n_best" not in one for one in found)

    words = "translate", "--model", model, "--n-best", 3, *TEXTS
    result, _ = objects(capsys, *words)
    for one, several in zip(result["translations"], live, strict=True):
        assert [each["text"] for each in one["n_best"]] == [t.text for t in several]
        assert one["text"] == several[0].text


@pytest.mark.slow
def test_translate_of_a_file_says_what_it_wrote(tmp_path_factory, tmp_path, capsys):
    model = tiny_run.saved_model(tmp_path_factory)
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("".join(text + "\n" for text in TEXTS), "utf-8")
    words = ["--input", source, "--output", output]
    result, said = objects(capsys, "translate", "--model", model, *words)
    seconds = result.pop("seconds")
    assert result == {"sentences": 3, "resumed": 0, "output": str(output)}
    assert seconds >= 0 and said.startswith("3 sentences in ")
    output.unlink()
    result, said = objects(capsys, "translate", "--model", model, *words, "--quiet")
    assert (result["sentences"], said) == (3, "")


def test_a_dry_run_and_an_average_have_results(trained, files, tmp_path, capsys):
    words = ["--train", files[0], "--run", tmp_path / "dry", *SIZES, "--dry-run"]
    result, said = objects(capsys, "train", *words)
    assert result["data"]["training"]["pairs"] == 40
    assert sum(shape["batches"] for shape in result["shapes"]) == 4
    assert "this was a dry run" in said
    mean = tmp_path / "mean"
    result, _ = objects(capsys, "average", "--run", trained[1], "--output", mean)
    assert result["run"] == str(mean)
    assert all(path.endswith(".weights.h5") for path in result["checkpoints"])


def test_no_number_is_one_that_json_lacks(monkeypatch, capsys):
    class Empty:
        def translate(self, texts, count):
            return [
                [type("T", (), {"text": "", "score": float("-inf")})] for _ in texts
            ]

    monkeypatch.setattr(verbs, "load_translator", lambda options: Empty())
    result, _ = objects(capsys, "translate", "--model", "any", "a")
    assert result["translations"] == [{"source": "a", "text": "", "score": None}]


def test_json_needs_standard_output(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout", None)
    assert cli.main(["translate", "--model", "any", "a", "--json"]) == 1
    assert "Standard output must be open" in capsys.readouterr().err


def test_a_quiet_console_prints_warnings_alone(capsys):
    console = warnings_only()
    for text in ("epoch 1", "warning: skipped 3 batches"):
        console.out(text)
        console.print(text)
    console.print()
    assert capsys.readouterr() == ("", "warning: skipped 3 batches\n" * 2)
    assert isinstance(console, Console)
