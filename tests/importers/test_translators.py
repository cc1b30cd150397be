"""Imports as users see them: formats told apart, run directories, the command."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import Adam, MaskedCrossentropy, Translator
from keras_transformer.cli import main
from keras_transformer.export import ExportedTranslator
from keras_transformer.importers import (
    format_of,
    import_marian,
    import_model,
)
from tests import tiny_run
from tests.importers import foreign

WRITERS = {
    "student": foreign.write_student,
    "opus": foreign.write_opus,
    "hugging_face": foreign.write_hugging_face,
}


def test_formats_are_told_apart_by_their_files(tmp_path, rng):
    for name, write in WRITERS.items():
        write(tmp_path / name, rng)
    names = (*WRITERS, "opus/opus.npz")
    found = [format_of(tmp_path / name) for name in names]
    assert found == ["marian", "marian", "hugging_face", "marian"]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match="nothing must be a folder of"):
        format_of(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="missing"):
        import_model(tmp_path / "missing")


def test_the_command_writes_a_run_that_the_others_take(tmp_path, rng, capsys):
    foreign.write_student(tmp_path / "student", rng)
    run = tmp_path / "runs" / "student"
    assert main(["import", str(tmp_path / "student"), "--output", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run)
    assert {path.name for path in run.iterdir()} == {
        "model.keras", "tokenizer", "tokenizer.sha256", "decoding.json",
    }  # fmt: skip
    expected = import_marian(tmp_path / "student")(foreign.TEXTS)
    assert Translator.load(run)(foreign.TEXTS) == expected
    assert main(["translate", str(run), *foreign.TEXTS]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{text}\tx y\n" for text in foreign.TEXTS))
    arguments = ["--test", str(pairs), "--output", str(tmp_path / "out.txt")]
    assert main(["evaluate", str(run), *arguments]) == 0
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    output = tmp_path / "saved" / "1"
    assert main(["export", str(run), "--output", str(output)]) == 0
    assert ExportedTranslator(output)(foreign.TEXTS) == expected


def test_a_directory_that_exists_is_refused_before_anything_is_read(
    tmp_path, rng, capsys
):
    output = tmp_path / "there"
    output.mkdir()
    assert main(["import", str(tmp_path / "none"), "--output", str(output)]) == 1
    assert "exists" in capsys.readouterr().err
    assert list(output.iterdir()) == []


@pytest.mark.slow
def test_target_languages_and_added_pieces_are_in_the_saved_model(tmp_path, rng):
    foreign.write_hugging_face(tmp_path / "model", rng)
    translator = import_model(tmp_path / "model")
    texts = [">>deu<< the old man", "the old man", ">>xyz<< dogs", "Vögel und Bären"]
    expected = translator(texts)
    translator.export(tmp_path / "saved" / "1")
    assert ExportedTranslator(tmp_path / "saved")(texts) == expected
    translator.save(tmp_path / "run")
    assert Translator.load(tmp_path / "run")(texts) == expected
    with pytest.raises(ValueError, match=">>deu<<"):
        translator.export(tmp_path / "lite", "litert")
    foreign.write_opus(tmp_path / "opus", rng)
    with pytest.raises(ValueError, match="vocabulary has pieces besides"):
        import_marian(tmp_path / "opus").export(tmp_path / "site", "web")


def test_the_page_on_other_systems_runs(tmp_path, rng, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "other_systems.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    taken_in, given_out = blocks
    foreign.write_hugging_face(tmp_path / "opus-mt-en-de", rng)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(taken_in, names)
    again = Translator.load("runs/opus")(["The old man sleeps."])
    assert again == names["translations"]
    pytest.importorskip("ctranslate2")
    tiny_run.translator().export("ctranslate2/en-de", "ctranslate2")
    exec(given_out, names)
    assert names["result"].hypotheses


def test_an_import_trains(tmp_path, rng):
    foreign.write_student(tmp_path / "student", rng)
    translator = import_marian(tmp_path / "student")
    model, pair = translator.model, translator.tokenizers
    source = pair.source.tokenize(foreign.TEXTS[:2]).to_tensor(0).numpy()
    target = pair.target.tokenize(foreign.TEXTS[2:4]).to_tensor(0).numpy()
    target_in = np.pad(target, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    model.compile(Adam(1e-3), MaskedCrossentropy(0.1))
    inputs = (source, target_in)
    losses = [model.train_on_batch(inputs, target) for _ in range(6)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
