"""Runs that begin with the weights of another, and go on like any other run."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
from rich.console import Console

from keras_transformer import (
    RunConfig,
    TokenizerConfig,
    TokenizerPair,
    Transformer,
    Translator,
    cli,
    learn_tokenizers,
    train,
)
from keras_transformer.config.run import FINE_TUNING
from keras_transformer.training import default_config, dry_run
from keras_transformer.training.state import StateFiles
from tests import tiny_run
from tests.training.test_resume import KillAfter, Killed

# A learning rate that changes no weight, and one that does.
STILL = {"schedule": "constant", "learning_rate": 1e-30, "warmup_steps": 1}
FAST = {"schedule": "constant", "learning_rate": 1e-2, "warmup_steps": 1}
PAIRS = tiny_run.VALID * 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tiny_run.run_directory(tmp_path_factory)


def options(init, training=STILL, **changes):
    """Options of a run that begins with a translator."""
    training = {"epochs": 1, "average_checkpoints": 2, "batch_tokens": 64} | training
    return default_config("a new run", init).with_options(**training | changes)


def run(directory, init=None, config=None, *callbacks, screen=None, **given):
    """Trains in a directory."""
    console = Console(file=io.StringIO() if screen is None else screen, width=200)
    if config is None:
        config = options(init)
    return train(
        PAIRS, directory, config, console=console, init=init, callbacks=callbacks,
        **given,
    )  # fmt: skip


def assert_same_weights(found, expected):
    for a, b in zip(found.model.weights, expected.model.weights, strict=True):
        assert a.path.split("/")[1:] == b.path.split("/")[1:]
        assert np.array_equal(a.numpy(), b.numpy()), a.path


def test_a_run_begins_with_the_weights_vocabulary_sizes_and_search_of_another(
    trained, tmp_path
):
    screen, expected = io.StringIO(), Translator.load(trained)
    found = run(tmp_path / "run", trained, screen=screen)
    assert f"starting from the weights of {trained}" in screen.getvalue()
    assert "learning the vocabulary" not in screen.getvalue()
    assert_same_weights(found, expected)
    assert found.tokenizers.same_as(expected.tokenizers)
    config = RunConfig.load(tmp_path / "run" / "config.json")
    assert config.model == expected.model.config
    assert config.tokenizer == tiny_run.CONFIG.tokenizer
    assert found.config == config.decoding == tiny_run.CONFIG.decoding
    assert found.model.optimizer.iterations.numpy() > 1  # Those of this run alone.
    loaded = Translator.load(tmp_path / "run")
    assert_same_weights(loaded, expected)


def test_dropout_and_search_may_be_the_new_runs_own(trained, tmp_path):
    translator, quiet = Translator.load(trained), Console(quiet=True)
    config = options(translator, dropout_rate=0.3, beam_size=1)
    assert config == options(trained, dropout_rate=0.3, beam_size=1)
    assert config.model == translator.model.config.replace(dropout_rate=0.3)
    assert config.tokenizer == tiny_run.CONFIG.tokenizer
    same = TokenizerPair.load(trained / "tokenizer")
    dry_run(PAIRS, tmp_path, config, console=quiet, tokenizers=same, init=trained)
    # Without options the run takes those for fine-tuning.
    default = RunConfig().with_options(**FINE_TUNING)
    assert default_config(tmp_path, trained).training == default.training
    assert default_config(trained) == RunConfig.load(trained / "config.json")


@pytest.mark.slow
def test_a_translator_is_taken_too_and_left_as_it_was(trained, tmp_path):
    translator = Translator.load(trained)
    found = run(tmp_path / "run", translator, options(translator, FAST))
    assert_same_weights(translator, Translator.load(trained))
    changed = [
        not np.array_equal(a.numpy(), b.numpy())
        for a, b in zip(found.model.weights, translator.model.weights, strict=True)
    ]
    assert all(changed)
    again = run(tmp_path / "again", trained, options(trained, FAST))
    assert_same_weights(again, found)  # It does not matter how it was given.


MISMATCHES = {
    "`d_model` is 256 and was 16": {"d_model": 256},
    "`num_heads` is 4 and was 2": {"num_heads": 4},
    "`vocabulary_size` is 400 and was 300": {"vocabulary_size": 400},
    "`algorithm` is 'unigram' and was 'bpe'": {"algorithm": "unigram"},
}


@pytest.mark.one_case
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


def other_tokenizers():
    return learn_tokenizers(tiny_run.VALID, TokenizerConfig(290))


def test_another_tokenizer_is_an_error(trained, tmp_path):
    with pytest.raises(ValueError, match="is a translator with another tokenizer than"):
        run(tmp_path / "run", trained, tokenizers=other_tokenizers())


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_what_cannot_be_trained_is_refused(trained, tmp_path):
    class Mine(Transformer):
        pass

    whole = Translator.load(trained)
    model = Mine(whole.model.config)
    with pytest.raises(ValueError, match="must be a `Transformer`.* Received: a Mine"):
        run(tmp_path / "run", Translator(model, whole.tokenizers), options(trained))
    whole.model.quantize("int8")
    with pytest.raises(ValueError, match="`init` must not be quantised"):
        run(tmp_path / "run", whole, options(trained))
    with pytest.raises(FileNotFoundError, match="holds no trained translator"):
        run(tmp_path / "run", tmp_path / "nothing")


@pytest.fixture(scope="module")
def uninterrupted(trained, tmp_path_factory):
    """A whole run that begins with another's weights."""
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    return directory, run(directory, trained, steady(trained))


def steady(init):
    """Options of a run of two epochs."""
    return options(init, FAST | {"epochs": 2, "save_every": 3, "ema_decay": 0.9})


def final(directory):
    return StateFiles(directory / "states").latest(Console(quiet=True))


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "rest", ("gone", *(pytest.param(r, marks=SLOW) for r in ("given", "left out")))
)
def test_a_run_that_was_killed_ends_the_same(rest, trained, uninterrupted, tmp_path):
    init = shutil.copytree(trained, tmp_path / "init")
    directory = tmp_path / "run"
    with pytest.raises(Killed):
        run(directory, init, steady(trained), KillAfter(4))
    if rest == "gone":
        shutil.rmtree(init)
    screen = io.StringIO()
    again = None if rest == "left out" else init
    found = run(directory, again, steady(trained), screen=screen)
    assert "resuming after 3 updates" in screen.getvalue()
    expected_in, expected = uninterrupted
    assert_same_weights(found, expected)
    for a, b in zip(final(directory).values, final(expected_in).values, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_run_without_a_state_needs_the_weights_again(
    trained, uninterrupted, tmp_path
):
    directory = tmp_path / "run"
    shutil.copytree(uninterrupted[0], directory)
    for what in ("states", "checkpoints"):
        shutil.rmtree(directory / what)
    with pytest.raises(ValueError, match=f"no state yet.* weights of {trained}:"):
        run(directory, None, steady(trained))
    dry_run(
        PAIRS, directory, steady(trained), console=Console(quiet=True), init=trained
    )


def test_weights_whose_tokenizer_has_changed_since_are_refused(trained, tmp_path):
    init = shutil.copytree(trained, tmp_path / "init")
    with pytest.raises(Killed):  # It is set up, and has no state.
        run(tmp_path / "run", init, steady(init), KillAfter(1))
    tiny_run.tokenizers().save(init / "tokenizer")
    tiny_run.tokenizers().save_digests(init / "tokenizer")
    with pytest.raises(ValueError, match="with another tokenizer than .*init"):
        run(tmp_path / "run", init, steady(init))


def test_a_run_goes_on_with_the_weights_that_it_began_with_alone(
    trained, uninterrupted, tmp_path
):
    directory, whole = uninterrupted
    message = f"holds a run with other initial weights: {trained}"
    with pytest.raises(ValueError, match=message):
        run(directory, directory, steady(trained))
    data = json.loads((directory / "data.json").read_text("utf-8"))
    assert sorted(data) == ["init", "planned_updates", "training", "validation"]
    assert data["init"] == str(trained)
    with pytest.raises(ValueError, match="other initial weights: random"):
        tiny = options(trained)
        run(tmp_path / "random", None, tiny)
        run(tmp_path / "random", trained, tiny)


def test_a_dry_run_says_what_it_would_begin_with(trained, tmp_path):
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    dry_run(PAIRS, tmp_path / "run", options(trained), console=console, init=trained)
    lines = [line for line in stream.getvalue().splitlines() if line]
    assert lines[0] == f"starting from the weights of {trained}"
    assert any(line == "10,176 parameters" for line in lines)
    assert not list(tmp_path.iterdir())


FLAGS = (
    "--batch-tokens 64 --epochs 1 --average-checkpoints 1 --schedule constant "
    "--learning-rate 1e-30 --warmup-steps 1"
).split()


def command(directory, *words):
    text = tiny_run.write_pairs(directory.parent / "domain.tsv", PAIRS)
    words = ["--train", text, "--run", directory, *words, *FLAGS]
    return cli.main(["train", *map(str, words)])


@pytest.mark.slow
def test_the_command_takes_the_sizes_from_the_run(trained, tmp_path, capsys):
    directory = tmp_path / "run"
    words = ["--dropout-rate", "0.2", "--beam-size", "1"]
    assert command(directory, "--init", trained, *words) == 0
    config = RunConfig.load(directory / "config.json")
    assert (config.model.d_model, config.model.dropout_rate) == (16, 0.2)
    assert config.decoding == tiny_run.CONFIG.decoding.replace(beam_size=1)
    assert_same_weights(Translator.load(directory), Translator.load(trained))
    # It is finished, and needs neither the weights nor the sizes again.
    for rest in ([], ["--init", tmp_path / "gone"], ["--init", trained]):
        capsys.readouterr()
        assert command(directory, *rest) == 0
        assert "is finished" in capsys.readouterr().out


BAD_WORDS = {
    "`d_model` is 128 and was 16": ["--preset", "tiny"],
    "`num_heads` is 4 and was 2": ["--num-heads", "4"],
    "`vocabulary_size` is 400 and was 300": ["--vocabulary-size", "400"],
}


@pytest.mark.parametrize("message", BAD_WORDS)
def test_the_command_refuses_other_sizes(message, trained, tmp_path, capsys):
    directory = tmp_path / "run"
    assert command(directory, "--init", trained, *BAD_WORDS[message]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1
    assert not any(directory.glob("*"))


def test_the_command_names_a_directory_that_holds_no_run(tmp_path, capsys):
    assert command(tmp_path / "run", "--init", tmp_path / "nothing") == 1
    assert "nothing: No such file" in capsys.readouterr().err
