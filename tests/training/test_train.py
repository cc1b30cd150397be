"""Training runs, from files to a directory with a translator; and what they say."""

import csv
import io
import json
import math
import re
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from keras_transformer import Corpus, RunConfig, TrainingConfig, Translator
from keras_transformer.files import write_json
from keras_transformer.formats.model_card import model_card
from keras_transformer.text import learn_tokenizers, mixed_pairs
from keras_transformer.training import (
    dry_run,
    load_average,
    read_summary,
    report,
    summary_lines,
)
from keras_transformer.training.state import State
from keras_transformer.training.validation import Validation
from tests import tiny_run
from tests.models.backends import run_tests
from tests.training.test_averages import assert_is_mean
from tests.training.test_averages import checkpoints as paths_of


@pytest.fixture(scope="module")
def log(run_directory):
    with open(run_directory / "log.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_leaves_everything_in_its_directory(run_directory):
    assert sorted(path.name for path in run_directory.iterdir()) == [
        "checkpoints", "config.json", "corpus", "data.json", "decoding.json", "log.csv",
        "model.keras", "states", "summary.json", "tensorboard", "tokenizer",
    ]  # fmt: skip
    # Four batches an epoch, three epochs; up to ten checkpoints are kept.
    kept = sorted((run_directory / "checkpoints").iterdir())
    assert kept == paths_of(run_directory, 4, 8, 12)
    data = json.loads((run_directory / "data.json").read_text("utf-8"))
    assert sorted(data) == ["training", "validation"]
    config, given = RunConfig.load(run_directory / "config.json"), tiny_run.CONFIG
    sizes = dict(source_vocabulary_size=308, target_vocabulary_size=308)
    assert config == given.with_options(**sizes)


def test_the_log_has_a_row_an_interval_with_every_figure(log):
    assert list(log[0]) == [
        "epoch", "learning_rate", "loss", "masked_accuracy", "perplexity", "step",
        "tokens_per_second", "updates", "val_loss", "val_masked_accuracy",
        "val_perplexity",
    ]  # fmt: skip
    assert [row["epoch"] for row in log] == ["1", "2", "3"]
    assert [row["updates"] for row in log] == ["4", "8", "12"]
    # The warm-up is not 10 but a fifth of 12 updates, and its peak stays.
    rate = (16 * 10) ** -0.5 * (2 / 13) ** 0.5
    assert float(log[-1]["learning_rate"]) == pytest.approx(rate)
    for row in log:
        assert 0 <= float(row["masked_accuracy"]) <= 1
        assert float(row["tokens_per_second"]) > 0
        assert float(row["val_perplexity"]) > 1
    for name in ("loss", "val_loss"):
        assert float(log[-1][name]) < float(log[0][name]) - 0.1


def test_tensorboard_has_the_same_figures(run_directory, log):
    for side, name in (("train", "loss"), ("validation", "val_loss")):
        events = EventAccumulator(str(run_directory / "tensorboard" / side)).Reload()
        found = events.Tensors("epoch_loss")
        assert [event.step for event in found] == [4, 8, 12]
        values = [float(tf.make_ndarray(event.tensor_proto)) for event in found]
        assert values == pytest.approx([float(row[name]) for row in log])


def test_a_run_keeps_what_it_was(run_directory):
    summary = read_summary(run_directory)
    assert summary["model"]["class"] == "Transformer"
    assert summary["data"]["training"]["pairs"] == len(tiny_run.TRAIN)
    assert summary["data"]["validation"]["files"] == ["valid.tsv"]
    assert (summary["epochs"], summary["updates"]) == (3, 12)
    assert summary["examples"] == [list(pair) for pair in tiny_run.VALID[:3]]
    assert summary["machine"]["backend"].startswith("tensorflow ")
    first, scores, rest, written, *following = summary_lines(summary, run_directory)
    assert first.startswith("trained 10,304 parameters: 12 updates, 3 epochs in ")
    one = summary_lines(summary | {"epochs": 1, "updates": 1}, run_directory)[0]
    assert ": 1 update, 1 epoch in " in one
    figures = [f"{name} {value:.4f}" for name, value in summary["final"].items()]
    assert f"{scores} {rest}" == f"{summary['weights']}: {', '.join(figures)}"
    listed = written.partition(": ")[2].split(", ")
    assert listed and all((run_directory / name).exists() for name in listed)
    assert len(following) == 3


def test_a_figure_that_is_no_number_is_null_for_programs_and_told_to_people(
    run_directory, tmp_path
):
    run = shutil.copytree(run_directory, tmp_path / "run")
    summary = read_summary(run)
    for figures in (summary["last_epoch"], summary["final"]):
        figures["val_perplexity"] = math.inf
    write_json(run / "summary.json", summary)
    found = read_summary(run)
    assert found["last_epoch"]["val_perplexity"] is None
    assert "val_perplexity not finite" in "\n".join(summary_lines(found, run))
    card = model_card(Translator.load(run), tmp_path / "tiny" / "1", run)
    assert "val_perplexity not finite" in card


# The candidates of three checkpoints, of which the first validated best.
MEANS = {
    "the checkpoint of epoch 3": [12],
    "the mean of 2 checkpoints, epochs 2 to 3": [8, 12],
    "the mean of 3 checkpoints, epochs 1 to 3": [4, 8, 12],
    "the checkpoint of epoch 1": [4],
}


@pytest.mark.one_case("the mean of 3 checkpoints, epochs 1 to 3")
@pytest.mark.parametrize("taken", MEANS)
def test_the_candidate_that_validates_best_is_taken_with_its_own_score(
    taken, tmp_path, monkeypatch
):
    """Its loss is made a tenth of what it is."""
    directory, screen, figures = tmp_path / "run", io.StringIO(), Validation.figures
    factors, told = {name: 0.1 if name == taken else 1.0 for name in MEANS}, []

    def changed(validation, callbacks=None):
        found = figures(validation, callbacks)
        if callbacks is None:  # after the training
            found["val_loss"] *= [*factors.values()][len(told)]
        elif not told:  # after the first epoch
            found["val_loss"] *= 0.01
        told.append(found["val_loss"])
        if len(told) == 3 and callbacks is not None:
            told.clear()
        return found

    monkeypatch.setattr(Validation, "figures", changed)
    given = {"validation": tiny_run.VALID, "screen": screen}
    translator = tiny_run.run_toy(directory, **given)
    model, weights = translator.model, translator.model.get_weights()
    assert_is_mean(directory, directory, *MEANS[taken])
    data = Corpus(tiny_run.VALID, translator.tokenizers, tiny_run.CONFIG.data)
    losses = {}
    for name, factor in factors.items():
        load_average(model, paths_of(directory, *MEANS[name]))
        logs = model.evaluate(data.dataset(shuffle=False), verbose=0, return_dict=True)
        losses[name] = factor * logs["loss"]
    load_average(model, paths_of(directory, *MEANS[taken]))
    tiny_run.assert_equal(weights, model.get_weights())
    summary = read_summary(directory)
    assert summary["candidates"] == pytest.approx(losses, rel=1e-5)
    assert [*summary["candidates"]] == [*MEANS]
    assert (summary["weights"], summary["averaged_checkpoints"]) == (
        taken, len(MEANS[taken])
    )  # fmt: skip
    assert summary["final"]["val_loss"] == summary["candidates"][taken]
    assert not summary["rate_still_rose"]
    said = screen.getvalue().splitlines()[-5:]
    lines = [f"{loss:10.4f}  {name}" for name, loss in losses.items()]
    assert said == [f"final weights: {taken}, with the best val_loss of", *lines]


def test_without_validation_the_mean_is_taken_and_a_rising_rate_is_told(tmp_path):
    directory, screen = tmp_path / "run", io.StringIO()
    tiny_run.run_toy(directory, epochs=2, screen=screen)
    assert_is_mean(directory, directory, 4, 8)
    summary = read_summary(directory)
    assert summary["weights"] == "the mean of 2 checkpoints, epochs 1 to 2"
    assert summary["final"] == {} and len(summary_lines(summary, directory)) == 5
    assert "warning" not in screen.getvalue()
    tiny_run.run_toy(tmp_path / "short", max_minutes=1e-9, screen=screen)
    said = "warning: the run ended after 1 update of a warm-up of 2, while the learning"
    assert said in screen.getvalue()
    assert read_summary(tmp_path / "short")["rate_still_rose"]


def test_another_seed_is_another_run(tmp_path):
    """The same seed gives the same one: `test_resume.py` compares runs to the bit."""
    weights = []
    for seed in (3, 4):
        model = tiny_run.run_toy(tmp_path / str(seed), max_updates=1, seed=seed).model
        assert model.updates == 1
        weights.append(model.get_weights())
    assert all(np.any(one != other) for one, other in zip(*weights, strict=True))


def test_a_failed_run_leaves_the_ids_to_the_next(tmp_path):
    times = set()
    for _ in range(2):
        with pytest.raises(ValueError, match="row 1: target is empty"):
            tiny_run.run(tmp_path, validation=[("dog", "")], bad_line_share=0.0)
        times.add((tmp_path / "corpus/training/pairs.ids").stat().st_mtime_ns)
    assert len(times) == 1


def mean_crossentropy(y_true, y_pred):
    """A loss that is a plain function."""
    losses = keras.losses.sparse_categorical_crossentropy(
        y_true, y_pred, from_logits=True
    )
    return keras.ops.mean(losses)


def own_parts(rate=3e-3):
    schedule = keras.optimizers.schedules.ExponentialDecay(rate, 20, 0.9)
    inner = keras.optimizers.AdamW(schedule, weight_decay=0.01)
    return {
        "tokenizers": tiny_run.tokenizers(),
        "optimizer": keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0),
        "loss": mean_crossentropy,
    }


def run(directory, own, **options):
    return tiny_run.run_toy(directory, given=own, **options)


def test_a_run_goes_on_with_its_own_parts_alone(tmp_path):
    parts = own_parts()
    translator = run(tmp_path / "run", parts, max_updates=6)
    assert translator.model.updates == 6  # In the midst of an epoch.
    assert translator.model.optimizer is parts["optimizer"]
    assert translator.model.loss is mean_crossentropy
    assert translator.tokenizers is parts["tokenizers"]
    # Keras numbers the objects of a process: "adamw_1" is the same optimizer.
    expected = run(tmp_path / "whole", own_parts()).model.get_weights()
    found = run(tmp_path / "run", own_parts()).model.get_weights()
    tiny_run.assert_equal(found, expected)
    other = learn_tokenizers(tiny_run.VALID, tiny_run.CONFIG.tokenizer)
    changed = {
        "another optimizer: .*AdamW": own_parts(1e-3),
        "another loss: .*mean_crossentropy": own_parts() | {"loss": None},
        "run has another tokenizer than the": own_parts() | {"tokenizers": other},
    }
    for message, parts in changed.items():
        with pytest.raises(ValueError, match=message):
            run(tmp_path / "run", parts)


def said_by_dry_run(
    directory, config=tiny_run.CONFIG, validation=tiny_run.VALID, text=tiny_run.TRAIN
):
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    dry_run(text, directory, config, validation, console)
    return stream.getvalue().splitlines()


def test_training_pairs_are_cleaned_and_an_interrupted_run_stays_exact(tmp_path):
    clean = [("the old man &lt;sleeps.", "der alte Mann schläft."), *tiny_run.TRAIN[1:]]
    dirty = [clean[0], clean[1], clean[1], ("", "x"), *clean[2:], ("a\x07", "b")]
    screen, again = io.StringIO(), io.StringIO()
    with pytest.raises(tiny_run.Killed):
        tiny_run.run_toy(
            tmp_path / "a", tiny_run.KillAfter(6), text=dirty, screen=screen
        )
    found = tiny_run.run_toy(tmp_path / "a", text=dirty, screen=again)
    assert again.getvalue().startswith("training data: 40 pairs")
    said = screen.getvalue()
    assert said.startswith("cleaning left out 3 of 43 lines:\n        1 duplicates: ")
    assert (
        "          row 1: the old man &lt;sleeps. -> der alte Mann schläft.\n" in said
    )
    assert "training data: 40 pairs, 4 batches, no bad lines" in said
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["data"]["training"]["cleaning"] == {
        "empty": 1, "control": 1, "duplicates": 1, "entities": 1,
    }  # fmt: skip
    decoded = [(clean[0][0].replace("&lt;", "<"), clean[0][1]), *clean[1:]]
    expected = tiny_run.run_toy(tmp_path / "b", text=decoded)
    tiny_run.assert_equal(found.model.get_weights(), expected.model.get_weights())
    # Validation pairs are taken as they are.
    lines = said_by_dry_run(tmp_path / "c", validation=[("a", "b")] * 9)
    assert "validation data: 9 pairs, 1 batch, no bad lines" in lines


def test_a_dry_run_names_everything_and_writes_nothing(tmp_path):
    lines = [line for line in said_by_dry_run(tmp_path / "run") if line]
    assert lines[1:4] == [
        "the learning rate rises for 2 updates, not 10: at most a fifth of the "
        "training",
        "training data: 40 pairs, 4 batches, no bad lines",
        "validation data: 8 pairs, 1 batch, no bad lines",
    ]
    tokens = re.fullmatch(r"a batch has (\d+) tokens of both sides on .*", lines[4])
    assert 256 < int(tokens[1]) < 2 * 256
    assert lines[6:] == [
        "Transformer: 1+1 layers, d_model 16, d_ff 32, 2 heads, 308 pieces",
        "10,304 parameters",
        "nothing was trained or written: this was a dry run",
    ]
    assert not list(tmp_path.iterdir())


def test_without_options_the_number_of_pairs_chooses_the_preset(tmp_path):
    lines = said_by_dry_run(tmp_path / "run", None)
    assert lines[0] == "the preset for 40 pairs is micro: other options override it"
    # Capital letters and the pieces of spans need eleven more than 300.
    sizes = "4+4 layers, d_model 128, d_ff 256, 4 heads, 311 pieces"
    assert f"Transformer: {sizes}" in lines


def test_a_dry_run_names_sizes_that_the_text_lacks_and_the_corpora_of_a_mix(tmp_path):
    for size, why in ((9000, "has no more"), (100, "needs one for each character")):
        config = tiny_run.CONFIG.with_options(vocabulary_size=size)
        line = said_by_dry_run(tmp_path / "run", config, None)[2]
        assert re.fullmatch(rf"learned \d+ pieces, not {size:,}: the text {why}", line)
    path = tiny_run.write_pairs(tmp_path / "domain.tsv", tiny_run.VALID)
    mixed = mixed_pairs([(tiny_run.TRAIN, 1), (path, 4)])
    lines = said_by_dry_run(tmp_path / "run", text=mixed)
    assert f"mixed of 1 x the program's rows, 4 x {path}" in lines


def test_a_dry_run_refuses_what_train_does_and_says_what_is_frozen(tmp_path):
    compiled = {"batch_shapes": 1, "jit_compile": True, "freeze": "encoder"}
    config = tiny_run.CONFIG.with_options(**compiled)
    lines = said_by_dry_run(tmp_path / "run", config, None)
    assert lines[-2].endswith("8,144 of 10,304 parameters, without encoder")
    for options, message in (
        ({"max_length": 2}, "no good pair"),
        ({"patience": 3}, "needs validation pairs"),
    ):
        bad = config.with_options(**options)
        with pytest.raises(ValueError, match=message):
            said_by_dry_run(tmp_path / "run", bad, None)
        with pytest.raises(ValueError, match=message):
            tiny_run.run(tmp_path / "run", **compiled | options)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_an_interrupted_run_is_exact_on_other_backends(backend):
    kinds = "every_kind and (BLEU or skipping or float16) or a_bad_batch_stops"
    kinds += " or minutes_are_measured"
    files = (f"tests/training/test_{name}.py" for name in ("resume", "intervals"))
    said = run_tests(backend, *files, "-k", kinds, "-m", "slow or not slow")
    assert "6 passed" in said


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "1 s"), (59, "59 s"), (60, "1 min"), (200, "3 min 20 s"),
        (3599, "59 min"), (7300, "2 h 1 min"), (50 * 3600, "50 h 0 min"),
    ],
)  # fmt: skip
def test_a_time_has_two_units_at_most_and_numbers_their_nouns(seconds, words):
    assert report.duration(seconds) == words
    counted = [report.plural(n, "batch") for n in (0, 1, 1200)]
    assert counted == ["0 batches", "1 batch", "1,200 batches"]


def test_the_bar_fits_in_a_line_and_says_once_how_long_it_takes(monkeypatch):
    """Of a long run on a fast machine, with the times at its end."""
    clock, stream = [0.0], io.StringIO()
    monkeypatch.setattr(report.time, "monotonic", lambda: clock[0])
    console = Console(width=80, file=stream)
    options = TrainingConfig(epochs=20)
    with report.TrainingBar(console, 12345, options, State()) as bar:
        for clock[0], step in ((30.0, 60), (44.0, 90), (46.0, 92), (99.0, 234567)):
            bar.show(step, 12.345)
        # 32 batches in 16 seconds, after the first figures.
        said = "expected: 34 h 16 min more, at 2 batches a second"
        assert stream.getvalue().strip() == said
        console.print(bar.make_tasks_table(bar.tasks))
    line = stream.getvalue().splitlines()[-1]
    assert line.startswith("epoch 20/20  loss 12.345 ") and len(line) <= 80
    assert re.search(r" 95 % \d:\d\d:\d\d so far, 4 s to go$", line.rstrip())


# The limits, the time trained before, and what the bar then says of the limit that ends
# the run: 90 batches an epoch, 2 a second, shown after batch 1,620.
LIMITS = [
    ({"epochs": 110}, 0.0, "epoch 18/110 .* 16 % 0:04:10 so far, 1 h 9 min to go"),
    ({"epochs": 110, "max_minutes": 12}, 400.0,
     r"epoch 18, 11/12 min .* 90 % 0:10:50 so far, 1 min 10 s to go"),
    ({"epochs": 19, "max_minutes": 12}, 400.0,
     r"epoch 18/19 .* 95 % 0:10:50 so far, 45 s to go"),
    ({"max_updates": 850, "gradient_accumulation_steps": 2}, 0.0,
     r"epoch 18, update 810/850 .* 95 % 0:04:10 so far, 40 s to go"),
]  # fmt: skip


@pytest.mark.parametrize(("limits", "before", "words"), LIMITS)
def test_the_bar_is_of_the_limit_that_will_end_the_run(
    monkeypatch, limits, before, words
):
    clock, stream = [1000.0], io.StringIO()
    monkeypatch.setattr(report.time, "monotonic", lambda: clock[0])
    console = Console(width=80, file=stream)
    options, state = TrainingConfig(**limits), State(seconds=before, step=1120)
    with report.TrainingBar(console, 90, options, state) as bar:
        for clock[0], step in ((1001.0, 1122), (1250.0, 1620)):
            bar.show(step, 2.345)
        console.print(bar.make_tasks_table(bar.tasks))
    *said, line = stream.getvalue().splitlines()
    assert re.search(f"^{words}$", line.rstrip()), line
    rest = line.rstrip().split(", ")[-1].removesuffix(" to go")
    # The minutes are known.
    is_timed = " min .* 90 %" in words
    assert said == [f"expected: {rest} more, at 2 batches a second"] * (not is_timed)


def test_the_table_fits_in_a_terminal_and_marks_the_best(tmp_path):
    stream = io.StringIO()
    config = RunConfig().with_options(monitor="bleu", epochs=100)
    run = SimpleNamespace(
        path=tmp_path,
        console=Console(file=stream, width=80),
        config=config,
        state=State(),
    )
    log, rows = report.Log(run), []
    for number, bleu in enumerate((9.5, 10.25, 10.0)):
        row = {"epoch": 99.125, "step": 7, "updates": 123456, "loss": 12.34567}
        figures = {"val_loss": 1.5, "val_bleu": bleu, "tokens_per_second": 98765.4}
        figures["val_chrf"] = 10 * bleu
        rows.append(row | figures)
        log.add(rows, 3600.0 * number)
    head, *lines = stream.getvalue().splitlines()
    start = "    epoch    updates     loss  val loss    BLEU    chrF  tokens/s"
    assert head == f"{start}         time"
    row = "99.12/100    123,456  12.3457    1.5000"
    assert lines == [
        f"{row}    9.50   95.00    98,765          0 s *",
        f"{row}   10.25  102.50    98,765    1 h 0 min *",
        f"{row}   10.00  100.00    98,765    2 h 0 min",
    ]
    assert max(map(len, lines)) <= 80


def test_a_run_that_was_killed_says_the_command_that_finishes_it(tmp_path):
    now = "`keras-transformer average` makes a model of its checkpoints. "
    for given, batches, words in (
        ({"command": "keras-transformer train --run 'a b'"}, 1, "train --run 'a b'$"),
        ({}, 5, f"{now}To finish it: call `train` again with the same arguments"),
    ):
        directory = tmp_path / str(len(given))
        with pytest.raises(tiny_run.Killed):
            tiny_run.run_toy(directory, tiny_run.KillAfter(batches), given=given)
        with pytest.raises(FileNotFoundError, match=f"unfinished run. .*{words}"):
            Translator.load(directory)
    (directory / "config.json").unlink()
    with pytest.raises(FileExistsError, match=r"weights of a run that has lost config"):
        tiny_run.run(directory)
