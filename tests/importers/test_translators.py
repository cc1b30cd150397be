"""Imports as users see them: formats told apart, run directories, the command."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import Translator
from keras_transformer.cli import main
from keras_transformer.export import ExportedTranslator
from keras_transformer.importers import (
    format_of,
    import_ctranslate2,
    import_marian,
    import_model,
    save_run,
)
from tests import tiny_run
from tests.importers import foreign, foreign_others


def test_formats_are_told_apart_by_their_files(tmp_path, rng):
    foreign.write_student(tmp_path / "student", rng)
    foreign.write_opus(tmp_path / "opus", rng)
    foreign_others.write_hugging_face(tmp_path / "hugging_face", rng)
    foreign_others.write_ctranslate2(tmp_path / "ctranslate2", rng)
    found = [
        format_of(tmp_path / name)
        for name in (
            "student", "opus", "opus/opus.npz", "hugging_face", "ctranslate2",
        )
    ]  # fmt: skip
    assert found == ["marian"] * 3 + ["hugging_face", "ctranslate2"]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match="none of them"):
        format_of(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="does not exist"):
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
    assert main(["translate", "--model", str(run), *foreign.TEXTS]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{text}\tx y\n" for text in foreign.TEXTS))
    arguments = ["--test", str(pairs), "--output", str(tmp_path / "out.txt")]
    assert main(["evaluate", "--model", str(run), *arguments]) == 0
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    output = tmp_path / "saved" / "1"
    assert main(["export", "--run", str(run), "--output", str(output)]) == 0
    assert ExportedTranslator(output)(foreign.TEXTS) == expected


def test_a_directory_that_exists_is_refused_before_anything_is_read(
    tmp_path, rng, capsys
):
    output = tmp_path / "there"
    output.mkdir()
    assert main(["import", str(tmp_path / "none"), "--output", str(output)]) == 1
    assert "exists" in capsys.readouterr().err
    assert list(output.iterdir()) == []


def test_a_run_is_written_whole_or_not_at_all(tmp_path, rng, monkeypatch):
    foreign.write_student(tmp_path / "student", rng)
    translator = import_marian(tmp_path / "student")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(translator.tokenizers), "save_digests", fail)
    with pytest.raises(OSError, match="No space"):
        save_run(translator, tmp_path / "runs" / "student")
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_target_languages_and_added_pieces_are_in_the_saved_model(tmp_path, rng):
    pytest.importorskip("safetensors")
    foreign_others.write_hugging_face(tmp_path / "model", rng)
    translator = import_model(tmp_path / "model")
    texts = [">>deu<< the old man", "the old man", ">>xyz<< dogs", "Vögel und Bären"]
    expected = translator(texts)
    translator.export(tmp_path / "saved" / "1")
    assert ExportedTranslator(tmp_path / "saved")(texts) == expected
    save_run(translator, tmp_path / "run")
    assert Translator.load(tmp_path / "run")(texts) == expected
    with pytest.raises(ValueError, match=">>deu<<"):
        translator.export(tmp_path / "lite", "litert")
    foreign.write_opus(tmp_path / "opus", rng)
    with pytest.raises(ValueError, match="vocabulary has pieces besides"):
        import_marian(tmp_path / "opus").export(tmp_path / "site", "web")


def test_the_page_on_other_systems_runs(tmp_path, rng, monkeypatch):
    pytest.importorskip("safetensors")
    page = Path(__file__).parents[2] / "docs" / "other_systems.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    taken_in, given_out = blocks
    foreign_others.write_hugging_face(tmp_path / "opus-mt-en-de", rng)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(taken_in, names)
    again = Translator.load("runs/opus")(["The old man sleeps."])
    assert again == names["translations"]
    pytest.importorskip("ctranslate2")
    tiny_run.translator().export("ctranslate2/en-de", "ctranslate2")
    exec(given_out, names)
    assert names["result"].hypotheses


def test_sentencepiece_models_may_be_given_for_ctranslate2(tmp_path, rng, capsys):
    _, source, target = foreign_others.write_ctranslate2(tmp_path / "model", rng)
    models = foreign.opus_models()
    for name, model in models.items():
        (tmp_path / f"{name}.spm").write_bytes(model)
    files = [tmp_path / "source.spm", tmp_path / "target.spm"]
    translator = import_ctranslate2(tmp_path / "model", *files)
    pieces = foreign.pieces_of(models["source"])
    size = translator.tokenizers.source.vocabulary_size
    # What the model cuts and the vocabulary lacks comes after it.
    assert size == len(source) + len(set(pieces[3:]) - set(source))
    assert np.isfinite(translator.score(["the old man"], ["uvw"])[0].log_probability)
    names = [str(file) for file in files]
    arguments = [str(tmp_path / "model"), "--output", str(tmp_path / "run")]
    assert main(["import", *arguments, "--tokenizer", *names]) == 0
    assert main(["import", *arguments[:2], str(tmp_path / "b"), "--tokenizer", "a", "b",
                 "c"]) == 1  # fmt: skip
    assert "one or two" in capsys.readouterr().err


@pytest.mark.one_case
@pytest.mark.parametrize("kind", ["student", "opus"])
def test_an_import_trains(tmp_path, rng, kind):
    writer = {"student": foreign.write_student, "opus": foreign.write_opus}[kind]
    writer(tmp_path / kind, rng)
    translator = import_marian(tmp_path / kind)
    model, pair = translator.model, translator.tokenizers
    source = pair.source.tokenize(foreign.TEXTS[:2]).to_tensor(0).numpy()
    target = pair.target.tokenize(foreign.TEXTS[2:4]).to_tensor(0).numpy()
    target_in = np.pad(target, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    from keras_transformer import Adam, MaskedCrossentropy

    model.compile(Adam(1e-3), MaskedCrossentropy(0.1))
    inputs = (source, target_in)
    losses = [model.train_on_batch(inputs, target) for _ in range(6)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
