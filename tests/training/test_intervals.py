"""Intervals of a run: where they end, what callbacks see, stops and validation say."""

import csv
import io
import math
import os
import signal
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from keras_transformer import Corpus, TrainingConfig, Transformer, Translator
from keras_transformer.training import intervals, run_model
from keras_transformer.training.evaluation import evaluate_translator
from keras_transformer.training.intervals import (
    StopSignals,
    check_not_hopeless,
    end_of_interval,
)
from keras_transformer.training.state import State, candidates, without_progress
from keras_transformer.training.validation import doubt_steps
from tests import tiny_run
from tests.tiny_run import CONFIG, VALID, assert_equal, last_state, run_toy

WITH = {"validation": VALID}
SHORT = {"epochs": 2, "batch_tokens": 120, **WITH}  # Seven batches an epoch.


@pytest.mark.parametrize(
    ("every", "batches", "ends"),
    [
        (None, 7, [7, 14]),  # An epoch.
        (None, 1001, [501, 1001, 1502]),  # Equal parts of at most a thousand.
        (None, 3000, [1000, 2000, 3000, 4000]),
        (3, 7, [3, 6, 7, 10, 13, 14]),  # None goes beyond an epoch.
        (50, 7, [7, 14]),
    ],
)
def test_an_interval_ends_where_a_part_of_an_epoch_ends(every, batches, ends):
    options, step, found = TrainingConfig(save_every=every), 0, []
    while len(found) < len(ends):
        step = end_of_interval(options, batches, step)
        assert end_of_interval(options, batches, step - 1) == step
        found.append(step)
    assert found == ends


class Watch(keras.callbacks.Callback):
    """Notes what it is told."""

    def __init__(self):
        super().__init__()
        self.told, self.losses, self.logs = [], [], []

    def on_train_begin(self, logs=None):
        self.told.append("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.told.append(epoch)

    def on_test_begin(self, logs=None):
        self.told.append("test")

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(dict(logs))
        logs["mine"] = 7 * epoch

    def on_train_end(self, logs=None):
        self.told.append("end")


class Clock(keras.callbacks.Callback):
    """Makes every batch take some seconds, and nothing else any."""

    def __init__(self, monkeypatch, seconds):
        super().__init__()
        self.now, self.seconds = 100.0, seconds
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def on_train_batch_end(self, batch, logs=None):
        self.now += self.seconds


# Thirty seconds of a second a batch, where 140 batches were planned: the warm-up is six
# updates. What the rate then is after 30, with the peak of a warm-up of 50.
HALF_A_MINUTE = {
    "paper": ({}, (16 * 50) ** -0.5 * (6 / 31) ** 0.5),
    "cosine": ({"schedule": "cosine", "learning_rate": 0.01}, 0.0),
}


@pytest.mark.parametrize("schedule", HALF_A_MINUTE)
def test_minutes_are_measured_once_and_the_schedule_follows_them(
    schedule, tmp_path, monkeypatch
):
    given, rate = HALF_A_MINUTE[schedule]
    options = SHORT | given | {"epochs": 20, "warmup_steps": 50, "max_minutes": 0.5}
    if keras.backend.backend() == "jax":
        # JAX's rows of padding are no number in `toy`, which takes their mean.
        options["given"] = {"model": None}
    screen, watch = io.StringIO(), Watch()
    run_toy(
        tmp_path / "whole", Clock(monkeypatch, 1.0), watch, screen=screen, **options
    )
    expected = last_state(tmp_path / "whole")
    assert (expected.step, expected.planned_updates) == (30, 30)
    assert expected.history[-1]["learning_rate"] == pytest.approx(rate, abs=1e-8)
    said = screen.getvalue()
    assert "about 30 updates fit into 0.5 min: 4.3 of 20 epochs\n" in said
    assert "the learning rate rises for 6 updates, not 28: at most a fifth" in said
    assert "expected: " not in said and "warning" not in said
    told = ["begin", *(part for n in range(5) for part in (n, "test"))]
    assert watch.told[: len(told)] == told

    run = tmp_path / "killed"
    callbacks = Clock(monkeypatch, 1.0), tiny_run.KillAfter(9)
    with pytest.raises(tiny_run.Killed):
        run_toy(run, *callbacks, **options)
    assert (last_state(run).step, last_state(run).planned_updates) == (7, 30)
    again = "the speed is measured again"
    monkeypatch.setattr(intervals, "fit_to_minutes", lambda *_: pytest.fail(again))
    run_toy(run, Clock(monkeypatch, 1.0), Watch(), **options)
    assert_equal(last_state(run).values, expected.values)


def test_xla_compiles_as_planned_whatever_minutes_are_measured(tmp_path, monkeypatch):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("other backends compile always or never")
    monkeypatch.setattr(run_model, "has_gpu", lambda: True)
    # Of the 30 updates that are measured that would be too many.
    monkeypatch.setattr(run_model, "_REPAYING_UPDATES", 100)
    options = {"epochs": 20, "warmup_steps": 2, "max_minutes": 0.5, "batch_shapes": 1}
    options |= {"batch_tokens": 120, "mixed_precision": "none"}
    clocks = [Clock(monkeypatch, 1.0)]
    with pytest.raises(tiny_run.Killed):
        run_toy(tmp_path / "run", *clocks, tiny_run.KillAfter(20), **options)
    assert last_state(tmp_path / "run").planned_updates == 30
    values = []
    for name in ("run", "whole"):
        clocks.append(Clock(monkeypatch, 1.0))
        run_toy(tmp_path / name, clocks[-1], **options)
        values.append(last_state(tmp_path / name).values)
    assert [clock.model.jit_compile for clock in clocks] == [True, True, True]
    assert_equal(*values)


def test_minutes_that_are_enough_change_nothing(tmp_path, monkeypatch):
    screen, values = io.StringIO(), []
    for minutes in (None, 100.0):
        clock, run = Clock(monkeypatch, 60.0), tmp_path / str(minutes)
        run_toy(run, clock, screen=screen, max_minutes=minutes, **SHORT)
        state = last_state(run)
        assert (state.step, state.planned_updates) == (14, 14)
        values.append(state.values)
    assert_equal(*values)
    assert "fit into" not in screen.getvalue()


def test_for_callbacks_a_run_is_one_fit_and_an_interval_an_epoch(tmp_path):
    watch = Watch()
    model = run_toy(tmp_path, watch, save_every=4, **SHORT).model
    assert watch.told == ["begin", 0, "test", 1, "test", 2, "test", 3, "test", "end"]
    assert len(watch.losses) == 14 and len(set(watch.losses)) == 14
    rows = last_state(tmp_path).history
    for number, (row, logs) in enumerate(zip(rows, watch.logs, strict=True)):
        places = {name: row[name] for name in ("step", "epoch", "updates")}
        assert row == logs | places | {"mine": 7 * number}
    # The loss is that of the interval: as it was after its last batch.
    assert [row["loss"] for row in rows] == [watch.losses[i] for i in (3, 6, 10, 13)]
    assert [row["epoch"] for row in rows] == [4 / 7, 1, 11 / 7, 2]
    assert model.history.history["val_loss"] == [row["val_loss"] for row in rows]


def test_callbacks_of_keras_work(tmp_path):
    """What one changes between two intervals stays changed."""

    def adam():
        return {"given": {"optimizer": keras.optimizers.Adam(0.02)}, "epochs": 9}

    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, 1, min_delta=99)
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}-{val_loss:.2f}.weights.h5"), save_weights_only=True
    )
    stop, run = keras.callbacks.EarlyStopping("loss", 99, patience=4), tmp_path / "run"
    run_toy(run, plateau, best, stop, **adam(), **WITH)
    rates = [row["learning_rate"] for row in last_state(run).history]
    # The first is the best of all, since nothing is better by 99.
    assert rates == pytest.approx([0.02, 0.02, 0.01, 0.005, 0.0025])
    assert len(list(tmp_path.glob("*.weights.h5"))) == 5
    # It was stopped, and is only loaded.
    run_toy(run, **adam(), **WITH)
    assert len(last_state(run).history) == 5


def test_no_interval_but_the_first_traces_a_step(tmp_path, monkeypatch):
    call, calls, traced = Transformer.call, [], []

    def counted(model, *args, **kwargs):
        calls.append(1)
        return call(model, *args, **kwargs)

    class Note(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            traced.append(len(calls))

    monkeypatch.setattr(Transformer, "call", counted)
    tiny_run.run(tmp_path, Note(), batch_shapes=1, save_every=2, epochs=2, **WITH)
    if keras.backend.backend() != "torch":  # It traces nothing.
        assert len(traced) > 3 and len(set(traced[1:])) == 1


def test_a_callback_that_stops_within_an_interval_ends_the_run(tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch == 1

    run_toy(tmp_path, Stop(), save_every=4, **SHORT)
    state = last_state(tmp_path)
    assert (state.step, [row["step"] for row in state.history]) == (2, [2])
    assert (tmp_path / "model.keras").exists()


def test_a_run_without_progress_ends_after_as_many_intervals_as_it_waits(tmp_path):
    screen = io.StringIO()
    still = {"schedule": "constant", "learning_rate": 1e-30, "epochs": 9}
    run_toy(tmp_path, screen=screen, patience=2, **still, **WITH)
    assert [row["epoch"] for row in last_state(tmp_path).history] == [1, 2, 3]
    said = "val_loss has not improved for 2 intervals: the training ends"
    assert said in screen.getvalue()


@pytest.mark.slow
def test_a_run_stops_at_the_first_batch_after_its_time(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(intervals.time, "monotonic", lambda: clock.now)

    class Tick(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            clock.now += 20.0

    run_toy(tmp_path, Tick(), max_minutes=1.5, **SHORT)
    assert last_state(tmp_path).step == 5
    # The time of before counts.
    run_toy(tmp_path, Tick(), max_minutes=2.5, **SHORT)
    assert (last_state(tmp_path).step, last_state(tmp_path).seconds) == (8, 160.0)


class PlantNaN(keras.callbacks.Callback):
    """Spoils a weight before a batch, counted over the run."""

    def __init__(self, before):
        super().__init__()
        self.left = before

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.model.sync_variables()
            weight = self.model.weights[0]
            weight.assign(np.full(weight.shape, np.nan))


def test_a_bad_batch_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # A terminal, to rich.
    screen = io.StringIO()
    # The batches after the bad one change nothing: no state has them.
    with pytest.raises(FloatingPointError, match="updates so far: 9"):
        run_toy(tmp_path, PlantNaN(10), screen=screen, save_every=4, **SHORT)
    assert last_state(tmp_path).step == 7
    # The terminal has its cursor again.
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")


def test_skipped_batches_are_told_and_a_run_of_nothing_else_ends(tmp_path):
    screen, skip = io.StringIO(), {"save_every": 4, "nonfinite": "skip"}
    # From the seventh batch on; those after the eighth are an epoch, in two intervals.
    with pytest.raises(FloatingPointError, match="Each of 7 batches was skipped"):
        run_toy(tmp_path, PlantNaN(6), screen=screen, **skip, **SHORT)
    assert "warning: skipped 2 batches whose loss or gradient" in screen.getvalue()


class Spoil(keras.callbacks.Callback):
    """Makes the loss of some batches no number, and leaves the weights as they were."""

    def __init__(self, batches):
        super().__init__()
        self.batches, self.number, self.weight = batches, 0, None

    def on_train_batch_begin(self, batch, logs=None):
        self.number += 1
        if self.number in self.batches:
            self.model.sync_variables()
            self.weight = keras.ops.convert_to_numpy(self.model.weights[0]).copy()
            self.model.weights[0].assign(np.full(self.weight.shape, np.nan))

    def on_train_batch_end(self, batch, logs=None):
        if self.number in self.batches:
            self.model.sync_variables()
            self.model.weights[0].assign(self.weight)


ONE, LEFT, LAST = {"save_every": 1}, {"save_every": 3}, {"max_updates": 4}
# Batches that are skipped, options, and the steps and updates at the end.
SKIPPED = [({3}, ONE, (7, 6)), ({7}, LEFT, (7, 6)), ({4, 5}, LAST, (6, 4))]


@pytest.mark.parametrize(("batches", "given", "end"), SKIPPED)
def test_a_bad_batch_that_is_all_of_an_interval_is_skipped(
    tmp_path, batches, given, end
):
    options = {"nonfinite": "skip", "batch_tokens": 120, "epochs": 1, **given}
    run_toy(tmp_path, Spoil(batches), **options)
    state = last_state(tmp_path)
    assert (state.step, state.updates) == end
    # The loss of nothing is no number.
    bad = [row["step"] for row in state.history if math.isnan(row["loss"])]
    assert bad == [step for step in batches if given != LAST]


def test_a_run_that_skips_all_its_batches_ends_whatever_its_intervals_are(tmp_path):
    state, every = State(), {"num_batches": 99}
    for step, skipped, is_over in (
        (1, 1, False),
        (15, 15, False),
        (99, 15, True),
        (0, 0, True),
    ):
        state.step, state.skipped = step, skipped
        check_not_hopeless(state, is_over=is_over, **every)
    for step, skipped, is_over in ((99, 16, False), (1, 1, True)):
        state.step, state.skipped = step, skipped
        with pytest.raises(FloatingPointError, match=f"Each of {skipped} batch"):
            check_not_hopeless(state, is_over=is_over, **every)
    # A process that goes on counts what the one before has skipped.
    run = {"nonfinite": "skip", "save_every": 1, "batch_tokens": 120}
    with pytest.raises(KeyboardInterrupt):
        run_toy(tmp_path, Spoil(range(99)), Interrupt(3), **run)
    assert last_state(tmp_path).skipped == 3
    with pytest.raises(FloatingPointError, match="Each of 7 batches was skipped"):
        run_toy(tmp_path, Spoil(range(99)), **run)


class Interrupt(keras.callbacks.Callback):
    """Presses Ctrl-C in a batch."""

    def __init__(self, batch):
        super().__init__()
        self.left = batch

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def test_a_bad_batch_after_an_interruption_is_skipped(tmp_path):
    run = {"nonfinite": "skip", "epochs": 1, "batch_tokens": 120}
    with pytest.raises(KeyboardInterrupt):
        run_toy(tmp_path, Interrupt(6), **run)
    assert last_state(tmp_path).step == 6  # One is left of the interval.
    run_toy(tmp_path, Spoil({1}), **run)
    assert (last_state(tmp_path).step, last_state(tmp_path).updates) == (7, 6)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_is_noted_and_becomes_the_status(of_a_terminal, number, status):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number
        with pytest.raises(SystemExit) as stopped:
            signals.stop()
    assert stopped.value.code == status
    assert signal.getsignal(number) is before


def test_a_handler_of_a_program_around_python_stays(of_a_terminal, monkeypatch):
    """Python has no name for it, and could not put it back."""
    get, put = signal.getsignal, []
    monkeypatch.setattr(
        signal, "getsignal", lambda n: None if n == signal.SIGTERM else get(n)
    )
    monkeypatch.setattr(signal, "signal", lambda *words: put.append(words))
    with StopSignals():
        assert [number for number, _ in put] == [signal.SIGINT, signal.SIGHUP]
    assert all(handler is not None for _, handler in put)


def test_a_run_under_nohup_outlives_the_terminal(of_a_terminal):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received is None
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


# What validation says.


def test_a_doubt_is_the_share_that_was_wrong_and_falls_with_the_score():
    scores = np.arange(-60.0, 0.0)
    worse = [False] * 10 + [True] * 10, [True] * 16 + [False] * 4, [True] + [False] * 19
    are_wrong = np.concatenate(worse)
    # The second twenty are no better than the first: one step.
    expected = [[-60.0, 0.65], [-20.0, 0.05]]
    assert doubt_steps(scores, are_wrong) == expected
    mixed = np.random.default_rng(3).permutation(60)
    assert doubt_steps(scores[mixed], are_wrong[mixed]) == expected
    assert doubt_steps(scores[:25], np.ones(25, bool)) == [[-60.0, 1.0]]
    many = np.arange(400)
    shares = [share for _, share in doubt_steps(many, many % 40 >= 4 * (many // 40))]
    assert shares == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]


def rows_of(values, name="val_loss"):
    return [{"step": n, name: value} for n, value in enumerate(values, start=1)]


NAN = math.nan
# The losses of the intervals; after each, the best so far, of equals the earlier, and
# the number of intervals without a new best. A tie is none, nor is no number.
SERIES = [
    (
        [5.0, 4.0, 4.0, 6.0, 3.0, NAN, 2.0],
        [1, 2, 2, 2, 5, 5, 7],
        [0, 0, 1, 2, 0, 1, 0],
    ),
    ([NAN, NAN, 5.0, NAN], [1, 1, 3, 3], [1, 2, 0, 1]),
]


@pytest.mark.parametrize(("values", "best", "waited"), SERIES)
@pytest.mark.parametrize("name", ["loss", "bleu", "chrf"])
def test_lower_losses_and_higher_scores_are_better(name, values, best, waited):
    sign = 1 if name == "loss" else -1
    options = TrainingConfig(average_checkpoints=1, monitor=name)
    rows = rows_of([sign * value for value in values], f"val_{name}")
    for end in range(1, len(rows) + 1):
        *_, last = candidates(rows[:end], options)
        # Where the last checkpoint is the best, it is the first candidate already.
        assert (last[0] is rows[best[end - 1] - 1]) or best[end - 1] == end
        assert without_progress(rows[:end], options) == waited[end - 1]


@pytest.mark.parametrize(
    ("number", "count", "steps"),
    [
        (0, 5, [[]]),
        (1, 5, [[1]]),
        (4, 5, [[4], [3, 4], [2, 3, 4], [1, 2, 3, 4], [1]]),
        (13, 1, [[13], [12, 13], [11, 12, 13], range(9, 14), range(4, 14), [1]]),
        (7, 6, [[7], [6, 7], [5, 6, 7], range(3, 8), range(2, 8), range(1, 8), [1]]),
    ],
)
def test_the_candidates_are_means_of_the_last_and_the_best(number, count, steps):
    options = TrainingConfig(average_checkpoints=count)
    rows = rows_of(range(1, number + 1))
    found = candidates(rows, options)
    assert [[row["step"] for row in mean] for mean in found] == [*map(list, steps)]
    # Without validation the last few are averaged.
    rows = rows_of(range(number), "loss")
    assert candidates(rows, options) == [rows[-count:]]


# Enough training that some words are right.
LEARNING = {"epochs": 8, "warmup_steps": 20, "learning_rate": 0.11, "validation": VALID}


class Score(keras.callbacks.Callback):
    """Scores greedy translations a second way, of the weights and of their average."""

    def __init__(self, run):
        super().__init__()
        self.run, self.bleu = run, []

    def on_epoch_end(self, epoch, logs=None):
        checkpoint = type(self.model)(self.model.config)
        checkpoint.load_weights(max((self.run / "checkpoints").iterdir()))
        greedy = CONFIG.decoding.replace(beam_size=1)
        tokenizers = Translator.load(self.run).tokenizers
        translators = (
            Translator(m, tokenizers, greedy) for m in (checkpoint, self.model)
        )
        # From the whole text, which may be sorted by length.
        pairs = [VALID[number * len(VALID) // 7] for number in range(7)]
        self.bleu.append([evaluate_translator(each, pairs) for each in translators])


@pytest.mark.slow
def test_bleu_is_that_of_the_average_of_the_weights_in_two_forms(tmp_path):
    screen, score = io.StringIO(), Score(tmp_path)
    options = LEARNING | {"monitor": "bleu", "bleu_sentences": 7, "ema_decay": 0.9}
    options |= {"learning_rate": 0.03}
    # A finished run, whose tokenizer can be loaded.
    tiny_run.run(tmp_path, **options | {"epochs": 39})
    tiny_run.run(tmp_path, score, screen=screen, **options | {"epochs": 40})
    row, ((averaged, raw),) = last_state(tmp_path).history[-1], score.bleu
    assert row["val_bleu"] == pytest.approx(averaged.bleu, abs=1e-9)
    assert row["val_bleu_lowercase"] == pytest.approx(averaged.lowercase_bleu, abs=1e-9)
    assert averaged.bleu != pytest.approx(raw.bleu)
    assert row["val_chrf"] == pytest.approx(averaged.chrf, abs=1e-9)
    [said] = [x for x in screen.getvalue().splitlines() if "case:" in x]
    start = "scores of 7 sentences, by greedy search: BLEU nrefs:1|case:mixed"
    assert said.startswith(start) and ", chrF nrefs:1|" in said


@pytest.mark.slow
def test_scoring_leaves_the_training_alone(tmp_path):
    for name in ("loss", "bleu"):
        tiny_run.run(tmp_path / name, **LEARNING | {"epochs": 2, "monitor": name})
    assert_equal(*(last_state(tmp_path / name).values for name in ("loss", "bleu")))


@pytest.mark.slow
def test_the_average_of_an_optimizer_of_ones_own_is_what_is_validated(tmp_path):
    """As it is what is saved; within an optimizer that scales the loss too."""
    inner = keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.9)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0)
    translator = tiny_run.run(
        tmp_path,
        given={"optimizer": optimizer},
        validation=VALID,
        epochs=1,
        average_checkpoints=1,
    )
    with open(tmp_path / "log.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    dataset = Corpus(VALID, translator.tokenizers, CONFIG.data).dataset(shuffle=False)
    saved = translator.model.evaluate(dataset, verbose=0, return_dict=True)["loss"]
    assert float(row["val_loss"]) == pytest.approx(saved, rel=1e-5)
