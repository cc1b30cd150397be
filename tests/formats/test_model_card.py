"""The model card: what it says is known, what is not known is left to fill in."""

import dataclasses
import json
import re
import shutil
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from keras_transformer import Translator, evaluate_translator, open_pairs
from keras_transformer.apps import cli
from keras_transformer.apps.cli import use_verbs
from keras_transformer.formats.model_card import model_card
from keras_transformer.search.run_directory import (
    record_scores,
    recorded_scores,
    training_data,
    weights_digest,
)
from keras_transformer.search.strings import SIGNATURES
from keras_transformer.training import average_run, evaluation
from tests import tiny_run

hub = pytest.importorskip("huggingface_hub", reason="the reader of the YAML")
VERSION = Path("saved_models/en-de/1")
TRAINING_DATA = "assets.extra/training_data.json"


@pytest.fixture
def run(run_directory, tmp_path):
    """A copy of a training run, to write into."""
    return shutil.copytree(run_directory, tmp_path / "run")


@pytest.fixture(scope="module")
def live(run_directory):
    return Translator.load(run_directory)


def scored(live, run, name="test.tsv", search=None, pairs=tiny_run.VALID):
    scores = evaluate_translator(live, pairs)
    scores = dataclasses.replace(scores, bleu=12.345, chrf=34.567)  # Not 0 or 100.
    values = dataclasses.asdict(scores)
    record_scores(run, name, "its lines", search or live.config, values)
    return scores


def section(card, title):
    return card.split(f"## {title}\n")[1].split("\n## ")[0]


def rows_of(text):
    """Cells of the rows of tables, three to a row."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [[cell.strip() for cell in row] for row in rows if len(row) == 3]


def test_a_card_without_a_run_invents_nothing():
    card = model_card(tiny_run.translator(), VERSION)
    data = hub.ModelCard(card).data
    assert data.pipeline_tag == "translation" and data.library_name == "keras"
    assert data.license is data.language is data.eval_results is None
    assert section(card, "Data and training").count("\n- ") == 1  # To fill in.
    scores = section(card, "Scores")
    assert "None recorded" in scores and "sacreBLEU" not in scores
    assert f"{tiny_run.model().count_params():,} parameters" in card
    assert "d_model 16" in card and "beam_size 3" in card
    rows = "| -10.00 | 50% |\n| -9.00 | 38% |\n| -5.00 | 12% |"
    assert section(card, "Doubts").endswith(f"| --- | --- |\n{rows}\n")
    assert card.count("*to fill in*") == 3
    assert not re.search(r"\$\w", card)


def test_the_card_of_a_run_has_its_data_training_and_sentences(live, run):
    card = model_card(live, VERSION, run, ("en", "de"))
    assert hub.ModelCard(card).data.language == ["en", "de"]
    assert card.split("---\n")[2].lstrip().startswith("# en-de\n")
    assert "sentences from `en` to `de`:" in card
    training = section(card, "Data and training")
    assert "- training: 40 pairs, " in training and "from `train.tsv`\n" in training
    assert "- validation: 8 pairs, " in training
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert "- 12 updates, 3 epochs, " in training
    assert f"{summary['machine']['processor']}, in float32\n" in training
    assert "- the weights are the checkpoint of epoch 3\n" in training
    assert (
        f"- their validation: val_loss {summary['final']['val_loss']:.4f}" in training
    )
    # Nobody has evaluated it: sentences of the validation data.
    sources, references = zip(*tiny_run.VALID[:3], strict=True)
    assert "first translations of the validation data, not" in section(card, "Scores")
    cells = rows_of(section(card, "Scores").split("| --- | --- | --- |\n")[1])
    plain = [[re.sub(r"\\(.)", r"\1", cell) for cell in row] for row in cells]
    expected = zip(sources, live(sources), references, strict=True)
    assert plain == [[" ".join(text.split()) for text in row] for row in expected]


def test_the_card_of_a_mean_of_an_unfinished_run_has_its_training(run, tmp_path):
    (run / "model.keras").unlink()
    (run / "summary.json").unlink()
    mean = tmp_path / "mean"
    average_run(run, mean)
    card = model_card(Translator.load(mean), VERSION, mean)
    training = section(card, "Data and training")
    assert "- 12 updates, 3 epochs, " in training
    words = "- the weights are the mean of 3 checkpoints, epochs 1 to 3\n- source"
    assert words in training
    assert "- training: 40 pairs, " in training and "ion: 8 pairs, " in training
    average_run(run, tmp_path / "one", last=1)
    summary = json.loads((tmp_path / "one" / "summary.json").read_text("utf-8"))
    assert summary["weights"] == "the checkpoint of epoch 3"


def test_what_has_learned_no_doubts_has_no_table_of_them(live):
    text = section(model_card(live, VERSION), "Doubts")
    assert text.endswith("\n\nNone learned.\n")


def test_scores_stand_with_signature_name_and_search(live, run):
    scores = scored(live, run)
    card = model_card(live, VERSION, run)
    results = hub.ModelCard(card).data.eval_results
    assert [result.metric_type for result in results] == ["sacrebleu", "chrf"]
    rounded = [round(scores.bleu, 2), round(scores.chrf, 2)]
    assert [result.metric_value for result in results] == rounded
    assert {result.dataset_name for result in results} == {"test.tsv"}
    assert scores.bleu_signature in results[0].metric_name
    text = section(card, "Scores")
    assert f"| test.tsv | 8 | {scores.bleu:.2f} | {scores.chrf:.2f} | beam" in text
    assert scores.bleu_signature in text and scores.chrf_signature in text
    assert scores.examples[0][1] == live([tiny_run.VALID[0][0]])[0]
    assert "first translations of test.tsv, not selected" in text
    assert "of the float32 model: BLEU" in text
    half = Translator(live.model.with_dtype("bfloat16"), live.tokenizers, live.config)
    card = model_card(half, VERSION, run, no_examples=True)
    assert "of the bfloat16 model: BLEU" in card and "float32 model" not in card
    # What a run knows of its data does not go out with the model.
    for source, target in tiny_run.PAIRS:
        assert source not in card and target not in card


def test_scores_of_other_weights_are_not_shown(live, run):
    scored(live, run)
    scored(live, run, search=live.config.replace(beam_size=1))
    scored(live, run, name="the same, later")
    names = [entry["name"] for entry in recorded_scores(run)]
    assert names == ["test.tsv", "the same, later"]
    other_weights(run)
    assert recorded_scores(run) == []
    assert "None recorded" in model_card(Translator.load(run), VERSION, run)


@pytest.mark.parametrize("name", ["joint.model", "abbreviations.txt"])
def test_scores_with_another_tokenizer_are_not_shown(live, run, name):
    scored(live, run)
    assert recorded_scores(run)
    with open(run / "tokenizer" / name, "ab") as file:
        file.write(b"bzw\n")
    assert recorded_scores(run) == []


def other_weights(run):
    """Saves other weights than the run has, as a training does at its end."""
    other = Translator.load(run)
    other.model.weights[0].assign_add(other.model.weights[0])
    other.save(run)


def test_who_records_at_once_waits_for_the_other(run, live):
    def record(number):
        for test in range(20):
            lines = f"{number}-{test}"
            record_scores(run, "a test", lines, live.config, {"bleu": 1.0})

    threads = [threading.Thread(target=record, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({entry["fingerprint"] for entry in recorded_scores(run)}) == 80
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


def test_scores_belong_to_the_weights_that_were_loaded(run, monkeypatch, capsys):
    """Whatever a training writes while they are loaded, and while they translate."""
    test = tiny_run.write_pairs(run.parent / "x.tsv", tiny_run.VALID)
    load, score, loaded = use_verbs.load_runs, evaluation.evaluate_translator, []

    def loads(*words):
        translator = load(*words)
        if not loaded:
            other_weights(run)
        loaded.append(weights_digest(run))
        return translator

    def scores(*words, **options):
        other_weights(run)
        return score(*words, **options)

    monkeypatch.setattr(use_verbs, "load_runs", loads)
    monkeypatch.setattr(evaluation, "evaluate_translator", scores)
    assert cli.main(["evaluate", str(run), "--test", str(test), "--quiet"]) == 0
    assert len(loaded) == 2 and loaded[0] == loaded[1]
    (entry,) = json.loads((run / "scores.json").read_text("utf-8"))
    assert entry["model"] == loaded[1] != weights_digest(run)
    assert recorded_scores(run) == []
    assert (
        "warning: " + str(run) + " has other weights by now" in capsys.readouterr().err
    )


def test_what_is_written_in_a_text_is_no_markdown_and_no_yaml(live, run):
    name = 'a": [b] | <b>*x*\n- y $name'
    scored(live, run, name, pairs=[("a | b", "<i>c</i>")])
    card = model_card(live, VERSION, run)
    results = hub.ModelCard(card).data.eval_results
    assert {result.dataset_name for result in results} == {name}
    assert "| a \\| b |" in card and "\\<i\\>c" in card
    assert '| a": \\[b\\] \\| \\<b\\>\\*x\\* - y $name | 1 |' in card


def test_a_damaged_file_is_named_and_a_missing_one_leaves_the_digest(live, run):
    for name in ("data.json", "scores.json", "summary.json"):
        content = (run / name).read_bytes() if (run / name).exists() else b"{}"
        (run / name).write_text("[1", "utf-8")
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            training_data(run)
            model_card(live, VERSION, run)
        (run / name).write_bytes(content)
    # A run that did not end.
    (run / "summary.json").unlink()
    digest = open_pairs(tiny_run.VALID).fingerprint()
    assert training_data(run)["validation"] == {"fingerprint": digest}
    (run / "data.json").unlink()
    assert training_data(run) == {}


@pytest.mark.slow
def test_every_version_has_its_card_and_no_export_changes_another(run, saved_model):
    saved_models = run.parent / "saved" / "tiny"
    first, second = (saved_models / n / "README.md" for n in "12")
    first.parent.mkdir(parents=True)
    first.write_text("edited", "utf-8")
    words = ["export", str(run), "--output", str(saved_models)]
    assert cli.main([*words, "--languages", "en", "de", "--dtype", "bfloat16"]) == 0
    assert first.read_text("utf-8") == "edited"
    card = second.read_text("utf-8")
    assert "# tiny\n" in card and '"tiny/2"' in card
    assert "parameters, in bfloat16: " in card and "/v1/models/tiny:predict" in card
    assert hub.ModelCard(card).data.language == ["en", "de"]
    # For programs: what it was trained on.
    known = json.loads((second.parent / TRAINING_DATA).read_text("utf-8"))
    assert known["training"]["fingerprint"] == open_pairs(tiny_run.TRAIN).fingerprint()
    assert known["validation"]["pairs"] == 8
    assert known["training"]["files"] == ["train.tsv"]
    assert not (saved_model / TRAINING_DATA).exists()


def test_the_signatures_are_those_of_an_export(saved_model):
    rows = rows_of((saved_model / "README.md").read_text("utf-8"))
    signatures = {row[0].strip("`"): row[1:] for row in rows if row[0][:1] == "`"}
    found = tf.saved_model.load(str(saved_model)).signatures
    assert set(signatures) == set(found) == set(SIGNATURES)
    kinds = {"float32": tf.float32, "int64": tf.int64}
    for name, (inputs, outputs) in signatures.items():
        expected = list(SIGNATURES[name].inputs)
        assert re.findall(r"(\w+)(?: \(\w+\))?(?:, |$)", inputs) == expected
        types = {"truncated": (1, tf.bool)}
        for output in re.findall(r"(\w+)((?: \[[^\]]*\])?)((?: \(\w+\))?)", outputs):
            rank = len(output[1].split(",")) if output[1] else 1
            types[output[0]] = rank, kinds.get(output[2].strip(" ()"), tf.string)
        specs = found[name].structured_outputs
        assert types == {k: (s.shape.rank, s.dtype) for k, s in specs.items()}, name
        taken = found[name].structured_input_signature[1].values()
        assert all(spec.shape[0] is None for spec in (*specs.values(), *taken))
    assert found["nbest"].structured_outputs["scores"].shape[1] == 3


def test_evaluate_keeps_the_scores_of_a_run_or_warns(run, monkeypatch, capsys):
    test = tiny_run.write_pairs(run.parent / "x.tsv", tiny_run.VALID)
    words = ["evaluate", str(run), "--test", str(test), "--beam-size", "1"]
    assert cli.main(words) == 0
    (entry,) = recorded_scores(run)
    assert (entry["name"], entry["search"]["beam_size"]) == ("x.tsv", 1)
    assert f"BLEU {entry['scores']['bleu']:.2f}" in capsys.readouterr().out

    def fail(*arguments, **options):
        raise PermissionError(13, "Permission denied", "scores.json")

    monkeypatch.setattr(use_verbs, "record_scores", fail)
    assert cli.main(words) == 0
    error = capsys.readouterr().err
    assert "warning: the scores were not recorded: " in error
