"""Training runs, from files to a directory with a translator."""

from __future__ import annotations

import csv
import importlib
import io
import json
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from keras_transformer import RunConfig, Transformer, Translator, open_pairs, train
from keras_transformer.config import DataConfig, TrainingConfig
from keras_transformer.text import Corpus, TokenizerPair
from keras_transformer.training import compiled_model, make_optimizer
from keras_transformer.training.compiling import (
    with_data_defaults,
    with_device_defaults,
)
from keras_transformer.training.run_directory import RunDirectory
from tests import tiny_run

# The package's attribute of this name is the function.
fit = importlib.import_module("keras_transformer.training.train")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tiny_run.run_directory(tmp_path_factory)


@pytest.fixture(scope="module")
def log(directory):
    with open(directory / "log.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def weights_of(path, config):
    model = Transformer(config.model)
    model.load_weights(path)
    return model.get_weights()


def test_a_run_leaves_everything_in_its_directory(directory):
    assert sorted(path.name for path in directory.iterdir()) == [
        "checkpoints", "config.json", "data.json", "decoding.json", "log.csv",
        "model.keras", "states", "summary.json", "tensorboard", "tokenizer",
        "tokenizer.sha256",
    ]  # fmt: skip
    assert list((directory / "tensorboard").rglob("events.out.tfevents.*"))


def test_the_last_checkpoints_alone_are_kept(directory):
    names = sorted(path.name for path in (directory / "checkpoints").iterdir())
    assert names == ["epoch-0002.weights.h5", "epoch-0003.weights.h5"]


def test_the_config_has_the_options_and_the_learned_vocabulary(directory):
    config = RunConfig.load(directory / "config.json")
    assert config.model.source_vocabulary_size == 300
    assert config.model.target_vocabulary_size == 300
    assert config.training == tiny_run.CONFIG.training
    assert config.decoding == tiny_run.CONFIG.decoding
    assert config.data == tiny_run.CONFIG.data


def test_the_log_has_a_row_an_epoch_with_every_figure(log):
    assert list(log[0]) == [
        "epoch", "accuracy", "loss", "perplexity", "tokens_per_second",
        "val_accuracy", "val_loss", "val_perplexity",
    ]  # fmt: skip
    assert [row["epoch"] for row in log] == ["0", "1", "2"]
    for row in log:
        assert 0 <= float(row["accuracy"]) <= 1
        assert float(row["tokens_per_second"]) > 0
        assert float(row["val_perplexity"]) > 1


def test_a_run_learns(log):
    assert float(log[-1]["loss"]) < float(log[0]["loss"]) - 0.1
    assert float(log[-1]["val_loss"]) < float(log[0]["val_loss"]) - 0.1


def test_the_final_model_is_the_float64_mean_of_the_checkpoints(directory):
    config = RunConfig.load(directory / "config.json")
    paths = sorted((directory / "checkpoints").iterdir())
    final = keras.models.load_model(directory / "model.keras").get_weights()
    kept = [weights_of(path, config) for path in paths]
    assert any(np.any(a != b) for a, b in zip(*kept, strict=True))
    for weight, *values in zip(final, *kept, strict=True):
        mean = np.mean(np.stack(values).astype(np.float64), axis=0)
        np.testing.assert_array_equal(weight, mean.astype(np.float32))


def test_a_run_can_be_loaded_and_translates(directory):
    translator = Translator.load(directory)
    assert translator.config == tiny_run.CONFIG.decoding
    assert translator.tokenizers.source.vocabulary_size == 300


@pytest.fixture(scope="module")
def short_runs(tmp_path_factory):
    """Two runs of 7 updates with the same seed, and where they are."""
    folders = [tmp_path_factory.mktemp("short") for _ in range(2)]
    translators = [tiny_run.run(folder, max_updates=7, seed=3) for folder in folders]
    return translators, [folder / "run" for folder in folders]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_weights(short_runs):
    first, again = (translator.model.get_weights() for translator in short_runs[0])
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_stops_exactly_at_max_updates(short_runs):
    translators, folders = short_runs
    assert int(translators[0].model.optimizer.iterations.numpy()) == 7
    assert (folders[0] / "model.keras").exists()


def test_a_run_refuses_a_directory_that_holds_something(tmp_path):
    text = open_pairs(tiny_run.write_pairs(tmp_path / "train.tsv"))
    with pytest.raises(FileExistsError, match="needs a new or empty directory, or"):
        train(text, tmp_path, tiny_run.CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["train.tsv"]


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """A run whose weights are NaN from the second epoch on: its directory, screen."""

    class PlantNaN(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weight = self.model.weights[0]
            weight.assign(np.full(weight.shape, np.nan))

    folder, screen = tmp_path_factory.mktemp("diverged"), io.StringIO()
    console = Console(file=screen, force_terminal=True)
    made = fit._callbacks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "_callbacks", lambda *a: [*made(*a), PlantNaN()])
        message = "loss or the gradient of a batch is not finite after . updates.*npz"
        with pytest.raises(FloatingPointError, match=message):
            tiny_run.run(folder, console=console)
    return folder / "run", screen.getvalue()


def test_a_diverging_run_stops_and_keeps_earlier_checkpoints(diverged):
    directory, _ = diverged
    (checkpoint,) = (directory / "checkpoints").iterdir()
    assert checkpoint.name == "epoch-0001.weights.h5"
    config = RunConfig.load(directory / "config.json")
    assert all(np.isfinite(w).all() for w in weights_of(checkpoint, config))
    assert not (directory / "model.keras").exists()


def test_a_diverging_run_keeps_the_batch(diverged):
    (path,) = (diverged[0] / "nonfinite").iterdir()
    assert path.name == "epoch-0002-batch-000001.npz"
    config = RunConfig.load(diverged[0] / "config.json")
    text = open_pairs(diverged[0].parent / "train.tsv")
    tokenizers = TokenizerPair.load(diverged[0] / "tokenizer")
    corpus = Corpus(text, tokenizers, config.data, seed=config.training.seed)
    (source, target_in), target_out = next(corpus.epoch(1))
    with np.load(path, allow_pickle=False) as batch:
        np.testing.assert_array_equal(batch["source"], source)
        np.testing.assert_array_equal(batch["target_in"], target_in)
        np.testing.assert_array_equal(batch["target_out"], target_out)
        pairs = list(zip(batch["source_text"], batch["target_text"], strict=True))
    assert set(pairs) <= set(tiny_run.TRAIN)


def test_a_run_that_fails_gives_the_terminal_back(diverged):
    _, screen = diverged
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert hide in screen
    assert screen.rindex(show) > screen.rindex(hide)
    bars = [t for t in threading.enumerate() if type(t).__name__ == "_RefreshThread"]
    assert not bars


BAD_DATA = {
    "no tab": ("dog Hund\n", "train.tsv:3: no tab"),
    "empty side": ("dog\t\n", "train.tsv:3: target is empty"),
    "too long": ("dog " * 200 + "\tHund\n", "train.tsv:3: source has .* tokens"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_stops_a_run_before_it_trains(tmp_path, monkeypatch, name):
    line, message = BAD_DATA[name]
    path = tiny_run.write_pairs(tmp_path / "train.tsv")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([*lines[:2], line, *lines[2:]]), encoding="utf-8")
    monkeypatch.setattr(Transformer, "fit", lambda *_, **__: pytest.fail("trained"))
    data = tiny_run.CONFIG.data.replace(bad_line_budget=0)
    config = tiny_run.CONFIG.replace(data=data)
    with pytest.raises(ValueError, match=message):
        train(open_pairs(path), tmp_path / "run", config, console=Console(quiet=True))


def test_a_run_that_stops_on_bad_data_can_be_started_again(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("dog Hund\n", encoding="utf-8")
    data = tiny_run.CONFIG.data.replace(bad_line_budget=0)
    config = tiny_run.CONFIG.replace(data=data)
    for _ in range(2):
        with pytest.raises(ValueError, match="no tab"):
            train(open_pairs(path), tmp_path / "run", config, None, Console(quiet=True))


def test_every_optimizer_has_the_papers_schedule():
    rates = {}
    for name in ("adam", "sgd", "momentum", "adagrad", "rmsprop"):
        options = TrainingConfig(optimizer=name, warmup_steps=10)
        optimizer = make_optimizer(options, d_model=16)
        optimizer.build([keras.Variable(np.ones(2, "float32"))])
        # The first update: 16^-0.5 * 1 * 10^-1.5.
        rates[name] = float(optimizer.learning_rate)
    assert rates == pytest.approx(dict.fromkeys(rates, 0.25 * 10**-1.5))


def test_adam_has_the_papers_constants():
    adam = make_optimizer(TrainingConfig(), d_model=16)
    assert (adam.beta_1, adam.beta_2, adam.epsilon) == (0.9, 0.98, 1e-9)


def test_the_moving_average_is_the_optimizers():
    plain, averaged = (
        make_optimizer(TrainingConfig(ema_decay=decay), d_model=16)
        for decay in (None, 0.95)
    )
    assert not plain.use_ema
    assert (averaged.use_ema, averaged.ema_momentum) == (True, 0.95)


def test_a_processor_computes_in_float32_without_xla_unless_asked(monkeypatch):
    def chosen(**options):
        options = with_device_defaults(TrainingConfig(**options))
        return options.mixed_precision, options.jit_compile

    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    assert chosen() == (False, False)
    assert chosen(mixed_precision=True) == (True, False)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu"])
    assert chosen() == (True, True)
    assert chosen(jit_compile=False) == (True, False)
    # XLA cannot compile a step of several replicas.
    assert chosen(distribute="mirrored") == (True, False)
    assert chosen(distribute="multi_worker") == (True, False)


@pytest.mark.parametrize(("backend", "compiles"), [("jax", True), ("torch", False)])
def test_other_backends_are_asked_for_their_devices(monkeypatch, backend, compiles):
    pytest.importorskip(backend)
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["gpu"])
    options = with_device_defaults(TrainingConfig())
    assert (options.mixed_precision, options.jit_compile) == (False, compiles)


def test_replicas_are_not_compiled():
    with pytest.raises(ValueError, match="XLA cannot compile a step of several"):
        TrainingConfig(jit_compile=True, distribute="mirrored")


def test_momentum_is_a_tenth_short_of_one():
    options = (TrainingConfig(optimizer=name) for name in ("sgd", "momentum"))
    momenta = [make_optimizer(o, d_model=16).momentum for o in options]
    assert momenta == [0.0, 0.9]


@pytest.mark.parametrize("given", [True, "bfloat16", "float16"])
def test_mixed_precision_keeps_the_weights_in_float32(given):
    training = tiny_run.CONFIG.training.replace(mixed_precision=given)
    model = compiled_model(tiny_run.CONFIG.replace(training=training))
    assert model.compute_dtype == ("bfloat16" if given is True else given)
    is_scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert is_scaled == (given == "float16")
    assert {weight.dtype for weight in model.trainable_weights} == {"float32"}


class Stop(Exception):
    """Ends a run where the training would begin."""


def test_epochs_see_the_same_pairs_in_different_orders(tmp_path, monkeypatch):
    epochs = []

    def look(model, dataset, **options):
        assert options["shuffle"] is False
        for _ in range(2):
            rows = [row for _, batch in dataset for row in batch.numpy()]
            epochs.append([str(row[row > 0]) for row in rows])
        raise Stop

    monkeypatch.setattr(Transformer, "fit", look)
    with pytest.raises(Stop):
        tiny_run.run(tmp_path)
    first, second = epochs
    assert len(set(first)) == len(tiny_run.TRAIN)
    assert first != second
    assert sorted(first) == sorted(second)


def test_another_seed_gives_other_initial_weights(tmp_path, monkeypatch):
    initial = []

    def look(model, *_, **__):
        initial.append(model.get_weights()[0])
        raise Stop

    monkeypatch.setattr(Transformer, "fit", look)
    for number, seed in enumerate((1, 1, 2)):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(Stop):
            tiny_run.run(tmp_path / str(number), seed=seed)
    np.testing.assert_array_equal(initial[0], initial[1])
    assert np.all(np.abs(initial[0] - initial[2]).max(axis=1) > 0)


def test_a_new_run_has_batches_for_its_device_and_keeps_them(tmp_path, monkeypatch):
    compiling = "keras_transformer.training.compiling"
    config = RunConfig(training=TrainingConfig(jit_compile=True))
    plain = with_data_defaults(RunConfig(training=TrainingConfig(jit_compile=False)))
    assert (plain.data.batch_tokens, plain.data.batch_shapes) == (4096, None)
    chosen = with_data_defaults(config)
    assert (chosen.data.batch_tokens, chosen.data.batch_shapes) == (4096, 6)
    monkeypatch.setattr(f"{compiling}.has_gpu", lambda: True)
    chosen = with_data_defaults(config)
    assert (chosen.data.batch_tokens, chosen.data.batch_shapes) == (25000, 6)
    given = config.replace(data=DataConfig(batch_tokens=7, batch_shapes=2))
    assert with_data_defaults(given) == given

    directory = RunDirectory(tmp_path)
    fingerprints = {"training": "x", "validation": None}
    directory.save_config(chosen)
    (tmp_path / "data.json").write_text(json.dumps(fingerprints), encoding="utf-8")
    assert directory.config_to_go_on(config, fingerprints) == chosen
    with pytest.raises(ValueError, match="`batch_tokens` is 7 and was 25000"):
        directory.config_to_go_on(given, fingerprints)
