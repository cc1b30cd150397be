"""Runs that begin with the weights of another, and go on like any other run."""

import io
import json
import shutil

import keras
import numpy as np
import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import keras_transformer as kt
from keras_transformer.apps import cli
from keras_transformer.config.run_config import FINE_TUNING, FINE_TUNING_IMPORTED
from keras_transformer.training import default_config, dry_run, read_summary
from tests import tiny_run
from tests.tiny_run import CONFIG, KillAfter, Killed, last_state

# A learning rate that changes no weight, and one that does.
STILL = {"schedule": "constant", "learning_rate": 1e-30, "warmup_steps": 1}
FAST = STILL | {"learning_rate": 1e-2}
STEADY = FAST | {"epochs": 2, "save_every": 3, "ema_decay": 0.9}
PAIRS = tiny_run.VALID * 3
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def trained(run_directory):
    return run_directory


def options(init, training=STILL, **changes):
    """Options of a run that begins with a translator."""
    training = {"epochs": 1, "average_checkpoints": 2, "batch_tokens": 64} | training
    return default_config("a new run", init).with_options(**training | changes)


def run(directory, init=None, config=None, *callbacks, screen=None, **given):
    """Trains in a directory."""
    given |= {"config": config or options(init), "init": init, "text": PAIRS}
    console = Console(file=io.StringIO() if screen is None else screen, width=200)
    given |= {"console": console, "callbacks": callbacks, "directory": directory}
    return kt.train(**given)


def assert_same_weights(found, expected):
    for a, b in zip(found.model.weights, expected.model.weights, strict=True):
        assert a.path.split("/")[1:] == b.path.split("/")[1:]
        assert np.array_equal(a.numpy(), b.numpy()), a.path


def test_a_run_begins_with_the_weights_vocabulary_sizes_and_search_of_another(
    trained, tmp_path
):
    screen, expected = io.StringIO(), kt.Translator.load(trained)
    found = run(tmp_path / "run", trained, screen=screen)
    assert f"starting from the weights of {trained}" in screen.getvalue()
    assert "learning the vocabulary" not in screen.getvalue()
    assert_same_weights(found, expected)
    assert found.tokenizers.same_as(expected.tokenizers)
    config = kt.RunConfig.load(tmp_path / "run" / "config.json")
    assert config.model == expected.model.config
    assert config.tokenizer == CONFIG.tokenizer
    assert found.config == config.decoding == CONFIG.decoding
    assert found.model.optimizer.iterations.numpy() > 1  # Those of this run alone.
    assert_same_weights(kt.Translator.load(tmp_path / "run"), expected)


def test_dropout_and_search_may_be_the_new_runs_own(trained, tmp_path):
    translator = kt.Translator.load(trained)
    config = options(translator, dropout_rate=0.3, beam_size=1)
    assert config.model == translator.model.config.replace(dropout_rate=0.3)
    assert config.decoding == options(trained, beam_size=1).decoding
    assert config.tokenizer == CONFIG.tokenizer
    same = kt.TokenizerPair.load(trained / "tokenizer")
    dry_run(PAIRS, tmp_path, config, console=QUIET, tokenizers=same, init=trained)
    assert default_config(trained) == kt.RunConfig.load(trained / "config.json")


def test_the_defaults_are_those_of_a_run_or_of_an_import(trained, imported, tmp_path):
    # What the weights were trained with goes on.
    begun = CONFIG.training
    own = {"robust": begun.robust, "label_smoothing": begun.label_smoothing}
    expected = kt.RunConfig().with_options(**FINE_TUNING | own)
    assert default_config(tmp_path, trained).training == expected.training
    expected = kt.RunConfig().with_options(**FINE_TUNING_IMPORTED).training
    for init in (imported, kt.Translator.load(imported)):
        assert default_config(tmp_path, init).training == expected
    assert (expected.label_smoothing, expected.robust) == (0.0, False)


class Harm(keras.callbacks.Callback):
    """Makes the weights worse after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        for weight in self.model.trainable_weights:
            weight.assign(-2 * weight)


def test_a_run_that_only_did_harm_keeps_the_initial_weights(trained, tmp_path):
    config = options(trained, FAST | {"epochs": 2, "learning_rate": 0.5})
    screen = io.StringIO()
    found = run(
        tmp_path, trained, config, Harm(), validation=tiny_run.VALID, screen=screen
    )
    rows = last_state(tmp_path).history
    assert [row["step"] for row in rows][:2] == [0, rows[1]["step"]]
    first, *others = (row["val_loss"] for row in rows)
    assert 1.1 * first < min(others)
    summary = read_summary(tmp_path)
    assert summary["final"]["val_loss"] == first == summary["initial"]["val_loss"]
    assert summary["weights"] == "the initial weights"
    assert_same_weights(found, kt.Translator.load(trained))
    said = screen.getvalue()
    assert f"no update improved val_loss {first:.4f}" in said
    assert f"took val_loss from {first:.4f} to {others[0]:.4f}. Likely" in said
    log = (tmp_path / "log.csv").read_text("utf-8").splitlines()
    assert len(log) == 4 and ",0," in log[1]
    events = EventAccumulator(str(tmp_path / "tensorboard" / "validation")).Reload()
    assert [event.step for event in events.Tensors("epoch_loss")][0] == 0


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A translator that knows its pairs, trained without dropout, as one imported."""
    tokenizers = tiny_run.tokenizers()
    sizes = CONFIG.model.replace(**tokenizers.vocabulary_sizes)
    rates = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    model = kt.Transformer(sizes.replace(**dict.fromkeys(rates, 0.0)))
    corpus = kt.Corpus(tiny_run.PAIRS, tokenizers, CONFIG.data)
    model.compile(kt.optimizers.Adam(0.01), kt.losses.MaskedCrossentropy(0.0))
    model.fit(corpus.batches(0, 200), shuffle=False, verbose=0)
    path = tmp_path_factory.mktemp("imported") / "translator"
    kt.Translator(model, tokenizers, CONFIG.decoding).save(path)
    return path


def test_fine_tuning_by_defaults_does_not_make_an_import_worse(imported, tmp_path):
    given = {"validation": tiny_run.VALID, "console": QUIET}
    kt.train(tiny_run.TRAIN, tmp_path, init=imported, **given)
    summary = read_summary(tmp_path)
    assert summary["final"]["val_loss"] <= summary["initial"]["val_loss"]
    before, after = (loss_of(each, tiny_run.VALID) for each in (imported, tmp_path))
    assert after <= before
    assert summary["initial"]["val_loss"] == pytest.approx(before, rel=1e-5)


def loss_of(directory, pairs):
    """The mean loss of a translator's target tokens, without smoothing."""
    translator = kt.load(directory)
    data = kt.Corpus(pairs, translator.tokenizers, CONFIG.data).dataset(shuffle=False)
    translator.model.compile(loss=kt.losses.MaskedCrossentropy(0.0))
    return translator.model.evaluate(data, verbose=0)


@pytest.mark.slow
def test_a_translator_is_taken_too_and_left_as_it_was(trained, tmp_path):
    translator = kt.Translator.load(trained)
    # Only a run's directory tells its options and has pairs to replay.
    same = FAST | {"label_smoothing": 0.0, "robust": False, "replay": 0.0}
    found = run(tmp_path / "run", translator, options(translator, same))
    assert_same_weights(translator, kt.Translator.load(trained))
    weights = (each.model.get_weights() for each in (found, translator))
    assert all(np.any(a != b) for a, b in zip(*weights, strict=True))
    again = run(tmp_path / "again", trained, options(trained, same))
    assert_same_weights(again, found)  # It does not matter how it was given.


def test_pairs_of_the_run_before_are_mixed_in_and_stay_with_the_new_one(
    trained, tmp_path
):
    """40 pairs before, 24 lines now, one later."""

    def planned(init, text=PAIRS, **changes):
        screen = io.StringIO()
        console, config = Console(file=screen, width=200), options(init, **changes)
        facts = dry_run(text, tmp_path / "dry", config, console=console, init=init)
        lines = screen.getvalue().splitlines()
        found = facts["data"]["training"]
        return found["pairs"], found["replayed"], [x for x in lines if "each ep" in x]

    line = "each epoch also shows 24 pairs of "
    assert planned(str(trained)) == (48, 24, [f"{line}{trained}"])
    assert planned(trained, replay=0.5)[:2] == (36, 12)
    assert planned(trained, replay=0.0) == (24, 0, [])
    assert planned(kt.Translator.load(trained)) == (24, 0, [])
    # What was replayed is there for the next correction, with what was new.
    run(tmp_path / "run", trained)
    assert planned(tmp_path / "run", PAIRS[:1], replay=99.0)[:2] == (65, 64)


@pytest.mark.slow
def test_a_killed_run_needs_the_pairs_of_the_run_before_no_more(trained, tmp_path):
    first = shutil.copytree(trained, tmp_path / "first")
    config = options(first, FAST, save_every=3)
    expected = run(tmp_path / "whole", first, config)
    with pytest.raises(Killed):
        run(tmp_path / "killed", first, config, KillAfter(5))
    shutil.rmtree(first)
    assert_same_weights(run(tmp_path / "killed", None, config), expected)


MISMATCHES = {
    "`d_model` is 256 and was 16": {"d_model": 256},
    "`num_heads` is 4 and was 2": {"num_heads": 4},
    "`vocabulary_size` is 400 and was 308": {"vocabulary_size": 400},
    "`algorithm` is 'unigram' and was 'bpe'": {"algorithm": "unigram"},
}


@pytest.mark.one_case("`d_model` is 256 and was 16")
@pytest.mark.parametrize("message", MISMATCHES)
def test_other_sizes_are_an_error_before_anything_is_written(
    message, trained, tmp_path
):
    config = options(trained, **MISMATCHES[message])
    with pytest.raises(ValueError, match=message) as raised:
        run(tmp_path / "run", trained, config)
    assert f"those of {trained}, whose" in str(raised.value)
    assert not any((tmp_path / "run").glob("*"))
    with pytest.raises(ValueError, match=message):
        dry_run(PAIRS, tmp_path / "run", config, init=trained)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_what_cannot_be_trained_is_refused(trained, tmp_path):
    class Mine(kt.Transformer):
        pass

    whole, quantised = kt.Translator.load(trained), kt.Translator.load(trained)
    mine = kt.Translator(Mine(whole.model.config), whole.tokenizers)
    quantised.model.quantize("int8")
    other = kt.learn_tokenizers(tiny_run.VALID, kt.TokenizerConfig(290))
    nothing = tmp_path / "nothing"
    for init, more, error, words in (
        (mine, {}, ValueError, "must be a `Transformer`.* Received: a Mine"),
        (quantised, {}, ValueError, "`init` must not be quantised"),
        (nothing, {}, FileNotFoundError, "holds no trained translator"),
        (trained, {"tokenizers": other}, ValueError, "has another tokenizer than"),
    ):
        with pytest.raises(error, match=words):
            run(tmp_path / "run", init, options(trained), **more)


@pytest.fixture(scope="module")
def uninterrupted(trained, tmp_path_factory):
    """A whole run of two epochs that begins with another's weights."""
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    return directory, run(directory, trained, options(trained, STEADY))


@pytest.mark.slow
@pytest.mark.parametrize("rest", ("gone", "given", "left out"))
def test_a_run_that_was_killed_ends_the_same(rest, trained, uninterrupted, tmp_path):
    init, screen = shutil.copytree(trained, tmp_path / "init"), io.StringIO()
    directory, config = tmp_path / "run", options(trained, STEADY)
    with pytest.raises(Killed):
        run(directory, init, config, KillAfter(4))
    if rest == "gone":
        shutil.rmtree(init)
    again = None if rest == "left out" else init
    found = run(directory, again, config, screen=screen)
    assert "resuming after 3 updates" in screen.getvalue()
    expected_in, expected = uninterrupted
    assert_same_weights(found, expected)
    states = last_state(directory), last_state(expected_in)
    tiny_run.assert_equal(*(state.values for state in states))


@pytest.mark.slow
def test_a_run_without_a_state_needs_the_weights_again(
    trained, uninterrupted, tmp_path
):
    directory = shutil.copytree(uninterrupted[0], tmp_path / "run")
    for what in ("states", "checkpoints"):
        shutil.rmtree(directory / what)
    config = options(trained, STEADY)
    with pytest.raises(ValueError, match=f"weights of {trained} and has no state yet"):
        run(directory, None, config)
    dry_run(PAIRS, directory, config, console=QUIET, init=trained)


def test_a_run_goes_on_with_the_weights_that_it_began_with_alone(trained, tmp_path):
    init = shutil.copytree(trained, tmp_path / "init")
    config = options(init, STEADY)
    for name, begun_with, said in (("run", init, str(init)), ("new", None, "random")):
        with pytest.raises(Killed):  # It is set up, and has no state.
            run(tmp_path / name, begun_with, config, KillAfter(0))
        with pytest.raises(ValueError, match=f"other initial weights: {said}"):
            run(tmp_path / name, trained, config)
    data = json.loads((tmp_path / "run" / "data.json").read_text("utf-8"))
    assert sorted(data) == ["init", "replayed", "training", "validation"]
    assert data["init"] == str(init)
    # Nor with another tokenizer than they had then.
    tiny_run.tokenizers().save(init / "tokenizer")
    with pytest.raises(ValueError, match="has another tokenizer than .*init"):
        run(tmp_path / "run", init, config)


def test_the_same_directory_has_one_name_whatever_links_lead_to_it(trained, tmp_path):
    (tmp_path / "link").symlink_to(trained)
    (tmp_path / "folder").symlink_to(trained.parent)
    config = options(trained, STEADY)
    for init in (tmp_path / "link", trained, tmp_path / "folder" / trained.name):
        with pytest.raises(Killed):
            run(tmp_path / "run", init, config, KillAfter(0))
    data = json.loads((tmp_path / "run" / "data.json").read_text("utf-8"))
    assert data["init"] == str(trained)


def test_a_dry_run_says_what_it_would_begin_with(trained, tmp_path):
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    dry_run(PAIRS, tmp_path / "run", options(trained), console=console, init=trained)
    lines = [line for line in stream.getvalue().splitlines() if line]
    assert lines[0].startswith("no validation: of so few pairs none are held out")
    assert lines[1] == f"starting from the weights of {trained}"
    assert any(line == "10,304 parameters" for line in lines)
    assert not list(tmp_path.iterdir())


FLAGS = (
    "--batch-tokens 64 --epochs 1 --average-checkpoints 1 --schedule constant "
    "--learning-rate 1e-30 --warmup-steps 1"
).split()


@pytest.mark.slow
def test_the_command_takes_the_sizes_from_the_run(trained, tmp_path, capsys):
    directory = tmp_path / "run"
    text = tiny_run.write_pairs(tmp_path / "domain.tsv", PAIRS)

    def command(*words):
        words = ["--train", text, "--run", directory, *words, *FLAGS]
        return cli.main(["train", *map(str, words)])

    words = ["--dropout-rate", "0.2", "--beam-size", "1"]
    assert command("--init", trained, *words) == 0
    config = kt.RunConfig.load(directory / "config.json")
    assert (config.model.d_model, config.model.dropout_rate) == (16, 0.2)
    assert config.decoding == CONFIG.decoding.replace(beam_size=1)
    assert_same_weights(kt.Translator.load(directory), kt.Translator.load(trained))
    # It is finished, and needs neither the weights nor the sizes again.
    for rest in ([], ["--init", trained]):
        capsys.readouterr()
        assert command(*rest) == 0
        assert "is finished" in capsys.readouterr().out
