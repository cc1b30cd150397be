"""A run with tokenizers, callbacks, an optimizer and a loss of the program's own."""

from __future__ import annotations

import csv
import json

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import Translator, cli, train
from keras_transformer.config import DataConfig, TokenizerConfig, TrainingConfig
from keras_transformer.schedules import TransformerSchedule, WarmupSchedule
from keras_transformer.text import TokenizerPair, WordPieceTokenizer
from keras_transformer.training import (
    KeepCheckpoints,
    RunCallback,
    distribution,
    make_optimizer,
)
from keras_transformer.training.run_callback import check_names
from tests import tiny_run
from tests.text import foreign_tokenizers as foreign


class Watch(RunCallback):
    """Counts batches over the whole run, and adds a figure to the logs."""

    def __init__(self):
        super().__init__()
        self.batches = self.begun = 0

    def on_train_begin(self, logs=None):
        self.begun += 1

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_epoch_end(self, epoch, logs=None):
        logs["seen"] = self.batches

    def state(self):
        return {"batches": self.batches}

    def restore(self, state):
        self.batches = state["batches"]


def run(directory, own=None, **training):
    config = tiny_run.CONFIG.replace(
        data=tiny_run.CONFIG.data.replace(batch_tokens=64),
        training=tiny_run.CONFIG.training.replace(**training),
    )
    quiet = Console(quiet=True)
    return train(tiny_run.TRAIN, directory, config, console=quiet, **(own or {}))


def own_parts():
    rate = keras.optimizers.schedules.ExponentialDecay(3e-3, 20, 0.9)
    return {
        "tokenizers": foreign.keras_hub_word_pieces(),
        "callbacks": [Watch()],
        "optimizer": keras.optimizers.AdamW(rate, weight_decay=0.01),
        "loss": keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=0
        ),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("own") / "run"
    own = own_parts()
    return directory, own, run(directory, own)


def test_own_parts_are_those_that_train(whole):
    directory, own, translator = whole
    assert type(translator.tokenizers.source) is WordPieceTokenizer
    assert translator.model.optimizer is own["optimizer"]
    assert translator.model.loss is own["loss"]
    with open(directory / "log.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    (watch,) = own["callbacks"]
    batches = watch.batches // 3
    assert [float(row["seen"]) for row in rows] == [batches, 2 * batches, 3 * batches]
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) - 0.1
    loaded = Translator.load(directory)
    texts = [source for source, _ in tiny_run.VALID[:3]]
    assert loaded(texts) == translator(texts)


@pytest.mark.slow
def test_a_run_of_own_parts_is_resumed_exactly(whole, tmp_path):
    _, own, expected = whole
    directory = tmp_path / "run"
    run(directory, own_parts(), max_updates=7)
    again = own_parts()
    translator = run(directory, again)
    for a, b in zip(
        expected.model.get_weights(), translator.model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    watch, before = again["callbacks"][0], own["callbacks"][0]
    assert watch.batches == before.batches
    assert watch.begun == 2  # The rest of an epoch is a `fit` of its own.


CHANGED = {
    "optimizer": (lambda: keras.optimizers.Lion(1e-3), "another optimizer: .*AdamW"),
    "loss": (lambda: None, "with another loss: .*SparseCategorical"),
    "tokenizers": (lambda: foreign.word_pieces(True), "`vocabulary_size` is"),
}  # fmt: skip


@pytest.mark.parametrize("part", CHANGED)
def test_a_run_goes_on_with_its_own_parts_alone(whole, part):
    make, message = CHANGED[part]
    with pytest.raises(ValueError, match=message):
        run(whole[0], own_parts() | {part: make()})


def test_another_tokenizer_of_one_size_is_noticed(whole):
    layer = foreign.keras_hub_word_pieces()
    pieces = layer.get_vocabulary()
    pair = TokenizerPair.of(WordPieceTokenizer([*pieces[:-2], pieces[-1], pieces[-2]]))
    with pytest.raises(ValueError, match="holds a run with another tokenizer"):
        run(whole[0], own_parts() | {"tokenizers": pair})


def mean_crossentropy(y_true, y_pred):
    """A loss that is a plain function."""
    losses = keras.losses.sparse_categorical_crossentropy(
        y_true, y_pred, from_logits=True
    )
    return keras.ops.mean(losses)


@pytest.mark.slow
def test_a_function_and_a_numbered_optimizer_are_known_again(tmp_path):
    """Keras numbers the objects of a process: "adam_1" is the same optimizer."""

    def parts():
        rate = keras.optimizers.schedules.ExponentialDecay(3e-3, 20, 0.9)
        inner = keras.optimizers.Adam(rate)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0)
        return {"loss": mean_crossentropy, "optimizer": optimizer}

    run(tmp_path / "run", parts(), epochs=1, max_updates=2)
    path = tmp_path / "run" / "data.json"
    saved = json.loads(path.read_text())
    assert saved["loss"]["config"] == "mean_crossentropy"
    run(tmp_path / "run", parts(), epochs=1)
    # Runs that were begun before have the name.
    saved["optimizer"]["config"]["inner_optimizer"]["config"]["name"] = "adam_7"
    path.write_text(json.dumps(saved))
    run(tmp_path / "run", parts(), epochs=1)
    sgd = keras.optimizers.SGD(3e-3)
    other = parts() | {"optimizer": keras.optimizers.LossScaleOptimizer(sgd)}
    with pytest.raises(ValueError, match="holds a run with another optimizer"):
        run(tmp_path / "run", other, epochs=1)


@pytest.mark.slow
def test_a_callback_of_keras_ends_a_run(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 1

    run(tmp_path / "run", {"callbacks": [Stop()]}, epochs=9)
    rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert len(rows) == 3
    run(tmp_path / "run", {"callbacks": [Stop()]}, epochs=9)  # It is only loaded.
    assert (tmp_path / "run" / "log.csv").read_text().splitlines() == rows


@pytest.mark.slow
def test_tokenizers_are_read_once_the_devices_are_set(tmp_path, monkeypatch):
    """TensorFlow joins workers, and leaves GPUs alone, before it does anything."""
    path, events = tmp_path / "tokenizer.json", []
    foreign.word_pieces().save(str(path))

    def noted(name, function):
        return lambda *given: (events.append(name), function(*given))[1]

    leave = distribution.leave_gpus_to_backend
    monkeypatch.setattr(distribution, "leave_gpus_to_backend", noted("set", leave))
    of = TokenizerPair.of
    monkeypatch.setattr(TokenizerPair, "of", noted("read", of))
    text = str(tiny_run.write_pairs(tmp_path / "train.tsv"))
    words = ["train", "--train", text, "--run", str(tmp_path / "run"), "--dry-run"]
    words += ["--preset", "tiny", "--tied-embeddings", "none"]
    assert cli.main([*words, "--tokenizer", str(path), str(path)]) == 0
    run(tmp_path / "run", {"tokenizers": str(path)}, epochs=1, max_updates=1)
    assert events == 2 * ["set", "read"]


def test_parts_that_do_not_go_together_are_told(tmp_path):
    optimizer = keras.optimizers.Adam()
    with pytest.raises(ValueError, match="`ema_decay` belongs to the options' optim"):
        run(tmp_path / "run", {"optimizer": optimizer}, ema_decay=0.9)
    optimizer.build([keras.Variable(np.ones(2, "float32"))])
    with pytest.raises(ValueError, match="`optimizer` must be new: .* a Adam that is"):
        run(tmp_path / "run", {"optimizer": optimizer})
    two = TokenizerPair.of(foreign.whole_words(), foreign.whole_words())
    with pytest.raises(ValueError, match="Three-way `tied_embeddings` needs one joint"):
        run(tmp_path / "run", {"tokenizers": two})
    config = tiny_run.CONFIG.replace(data=DataConfig(subword_sampling=0.1))
    with pytest.raises(ValueError, match="Only a SentencePiece model .* WordPiece"):
        train(tiny_run.TRAIN, tmp_path / "run", config, **own_parts())
    assert not list(tmp_path.iterdir())


class StopAtLimit(Watch):
    """Called like one of the run's own."""


class Silent(RunCallback):
    """It has no state to confuse."""


@pytest.mark.parametrize(
    "callbacks",
    (
        [Watch(), Watch()], [StopAtLimit()], [KeepCheckpoints("c", 1)],
        [Watch(), type("Watch", (Watch,), {})()],
    ),
    ids=lambda callbacks: type(callbacks[-1]).__name__ + str(len(callbacks)),
)  # fmt: skip
def test_callbacks_that_a_state_would_confuse_are_told(tmp_path, callbacks):
    name = type(callbacks[-1]).__name__
    with pytest.raises(ValueError, match=f"two of the name '{name}'"):
        run(tmp_path / "run", {"callbacks": callbacks})
    assert not list(tmp_path.iterdir())
    check_names([Watch(), Silent(), Silent(), keras.callbacks.Callback()])


def test_a_run_without_own_parts_has_the_data_of_before(tmp_path):
    run(tmp_path / "run", epochs=1)
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert sorted(data) == ["training", "validation"]


def rates(options, updates):
    optimizer = make_optimizer(TrainingConfig(**options), d_model=16)
    schedule = optimizer._learning_rate
    return [float(schedule(update - 1)) for update in updates]


RATES = {
    # Half of the peak half-way up; then as each says.
    "constant": ({}, [0.05, 0.1, 0.1, 0.1]),
    "cosine": ({"decay_steps": 20}, [0.05, 0.1, 0.05, 0.0]),
    # Its second period is twice as long: 40 updates from update 31 on.
    "cosine_restarts": ({"decay_steps": 20}, [0.05, 0.1, 0.05, 0.1]),
    # 0.1 (10 / step)^0.5.
    "paper": ({}, [0.05, 0.1, 0.1 * (10 / 21) ** 0.5, 0.1 * (10 / 31) ** 0.5]),
}


@pytest.mark.parametrize("schedule", RATES)
def test_each_schedule_rises_to_its_peak_and_goes_on(schedule):
    more, expected = RATES[schedule]
    options = {"schedule": schedule, "learning_rate": 0.1, "warmup_steps": 10, **more}
    assert rates(options, [5, 10, 21, 31]) == pytest.approx(expected, abs=1e-7)


def test_a_schedule_comes_back_from_its_config():
    cosine = keras.optimizers.schedules.CosineDecay(0.1, 20)
    for schedule in (WarmupSchedule(0.1, 10, cosine), WarmupSchedule(0.1, 10)):
        config = keras.optimizers.schedules.serialize(schedule)
        again = keras.optimizers.schedules.deserialize(json.loads(json.dumps(config)))
        assert type(again) is WarmupSchedule
        for step in (0, 9, 10, 25, 40):
            assert float(again(step)) == float(schedule(step))
    with pytest.raises(ValueError, match="`warmup_steps` must be a positive number"):
        WarmupSchedule(0.1, 0)


KINDS = {
    "adamw": "AdamW", "lion": "Lion", "nadam": "Nadam", "adamax": "Adamax",
    "adafactor": "Adafactor", "lamb": "Lamb",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_each_optimizer_trains(name):
    options = TrainingConfig(
        optimizer=name, schedule="constant", learning_rate=0.01, warmup_steps=1,
        weight_decay=0.25,
    )  # fmt: skip
    optimizer = make_optimizer(options, d_model=16)
    assert type(optimizer).__name__ == KINDS[name]
    assert optimizer.weight_decay == 0.25
    weight = keras.Variable(np.array([1.0, -2.0], "float32"))
    for _ in range(30):
        optimizer.apply([2 * weight.value], [weight])
    assert np.all(np.abs(weight.numpy()) < [1.0, 2.0])


def test_the_default_is_the_papers():
    optimizer = make_optimizer(TrainingConfig(), d_model=16)
    assert type(optimizer._learning_rate) is TransformerSchedule
    assert optimizer.weight_decay is None
    assert make_optimizer(TrainingConfig(optimizer="adamw"), 16).weight_decay == 0.004


BAD_OPTIONS = {
    "`learning_rate` must be given unless `schedule` is 'paper'": dict(
        schedule="constant"
    ),
    "give one of them": dict(learning_rate=0.1, learning_rate_scale=2.0),
    "`decay_steps` goes with .* decay_steps=None": dict(
        schedule="cosine", learning_rate=0.1
    ),
    "`decay_steps` goes with .* decay_steps=5": dict(decay_steps=5),
}


@pytest.mark.parametrize("message", BAD_OPTIONS)
def test_options_of_a_schedule_go_together(message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**BAD_OPTIONS[message])


def test_the_config_of_given_tokenizers_says_their_size():
    pair = TokenizerPair.of(foreign.whole_words())
    size = pair.source.vocabulary_size
    assert pair.config == TokenizerConfig(vocabulary_size=size)
