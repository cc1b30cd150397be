"""A run seldom waits for its device, and misses nothing by that."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from rich.console import Console

from keras_transformer import MaskedAccuracy, MaskedCrossentropy, Transformer, train
from keras_transformer.training import RunCallback, callback_list
from keras_transformer.training.callback_list import Pace, RunCallbacks
from keras_transformer.training.distribution import Distribution
from keras_transformer.training.update_count import UpdateCount
from tests import tiny_run
from tests.training.counted_reads import counted_reads

# PyTorch's step itself asks once whether the batch can be applied; on TensorFlow Keras'
# own list of callbacks, which `fit` has, reads each figure of each batch: two here.
OF_STEP = 1 if keras.backend.backend() == "torch" else 0
OF_KERAS = 2 if keras.backend.backend() == "tensorflow" else 0


class Note(keras.callbacks.Callback):
    """Notes the reads before each batch; it has no `on_train_batch_end`."""

    def __init__(self, counter):
        super().__init__()
        self.counter, self.seen = counter, []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(self.counter.number)

    def per_hundred(self):
        """Reads from the beginning of the first batch to that of the last."""
        return 100 * (self.seen[-1] - self.seen[0]) / (len(self.seen) - 1)


@pytest.mark.slow
def test_a_run_reads_every_sixteenth_batch(tmp_path, monkeypatch):
    # However slow this machine is now.
    monkeypatch.setattr(Pace.__init__, "__defaults__", (math.inf,))
    config = tiny_run.CONFIG.replace(
        data=tiny_run.CONFIG.data.replace(batch_tokens=80, batch_shapes=1),
        training=tiny_run.CONFIG.training.replace(
            epochs=1, max_updates=1000, checkpoint_updates=1000
        ),
    )
    with counted_reads(monkeypatch) as counter:
        note = Note(counter)
        train(
            tiny_run.PAIRS * 3, tmp_path / "run", config, console=Console(quiet=True),
            callbacks=[note],
        )  # fmt: skip
    assert len(note.seen) > 40
    # Two at each: the figures, and the counter of batches that are not finite.
    assert note.per_hundred() <= 100 * OF_STEP + 20


def small_model():
    size = {"source_vocabulary_size": 300, "target_vocabulary_size": 300}
    model = Transformer(tiny_run.CONFIG.model.replace(**size))
    model.compile("adam", MaskedCrossentropy(), metrics=[MaskedAccuracy()])
    return model


def test_fit_reads_every_sixteenth_batch(monkeypatch, rng):
    ids = rng.integers(4, 300, (68, 5)).astype("int32")
    with counted_reads(monkeypatch) as counter:
        note = Note(counter)
        small_model().fit(
            (ids, ids[:, :3]), ids[:, :3], batch_size=1, verbose=0, callbacks=[note]
        )
    assert len(note.seen) == 68
    assert note.per_hundred() <= 100 * (OF_STEP + OF_KERAS) + 10


class Sees(keras.callbacks.Callback):
    """Keeps the logs of each batch."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(logs)


class SeesSome(RunCallback, Sees):
    """One that does without most of them."""

    wants_every_batch = False


def callbacks_of(callbacks, monkeypatch, steps=40, clock=lambda: 0.0):
    """A `RunCallbacks` before its first batch."""
    monkeypatch.setattr(callback_list.time, "monotonic", clock)
    model = small_model()
    run = RunCallbacks(callbacks, model, 1, steps, Distribution())
    run.on_train_begin()
    run.on_epoch_begin(0)
    return run


def figures(batch):
    return {"loss": keras.ops.convert_to_tensor(float(batch)), "accuracy": 0.5}


def test_logs_come_now_and_then_and_at_the_end(monkeypatch):
    some = SeesSome()
    run = callbacks_of([some], monkeypatch)
    for batch in range(40):
        run.on_train_batch_end(batch, figures(batch))
    seen = [i for i, logs in enumerate(some.logs) if logs is not None]
    assert seen == [0, 16, 32, 39]
    assert some.logs[32] == {"loss": 32.0, "accuracy": 0.5}


def test_a_callback_of_ones_own_gets_the_logs_of_every_batch(monkeypatch):
    own, some, losses = Sees(), SeesSome(), []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    for callbacks in ([own, some], [record]):
        run = callbacks_of(callbacks, monkeypatch)
        for batch in range(20):
            run.on_train_batch_end(batch, figures(batch))
    assert losses == list(range(20))
    assert own.logs == some.logs == [{"loss": i, "accuracy": 0.5} for i in range(20)]


def test_a_slow_run_waits_about_once_a_second(monkeypatch):
    some, now = SeesSome(), [0.0]
    run = callbacks_of([some], monkeypatch, clock=lambda: now[0])
    for batch in range(30):
        now[0] += 5.0 if batch >= 20 else 0.26  # A second has three whole ones.
        run.on_train_batch_end(batch, figures(batch))
    seen = [i for i, logs in enumerate(some.logs) if logs is not None]
    assert seen == [0, 3, 6, 9, 12, 15, 18, 21, *range(22, 30)]


def test_several_batches_a_call_count(monkeypatch):
    some = SeesSome()
    run = callbacks_of([some], monkeypatch, steps=41)
    for batch in range(3, 44, 4):
        run.on_train_batch_end(batch, figures(batch))
    seen = [4 * i + 3 for i, logs in enumerate(some.logs) if logs is not None]
    assert seen == [3, 19, 35, 43]


class Model:
    """The counters of a model; notes how often they are read."""

    def __init__(self, updates, steps, accumulated):
        self.numbers, self.reads = (updates, accumulated), 0
        self.gradient_accumulation_steps = steps

    @property
    def updates(self):
        self.reads += 1
        return self.numbers[0]

    @property
    def accumulated_batches(self):
        return self.numbers[1]


@pytest.mark.parametrize("steps", (1, 3))
@pytest.mark.parametrize("skipped", ((), (4, 5, 6)))
def test_a_number_of_updates_is_noticed_at_once(steps, skipped):
    updates, accumulated = 7, 2 % steps
    model = Model(updates, steps, accumulated)
    count, reads, reached = UpdateCount(model), model.reads, []
    for number in range(60):
        accumulated = (accumulated + 1) % steps
        updates += accumulated == 0 and number not in skipped
        model.numbers = updates, accumulated
        # Epochs of 25 batches, after each of which Keras counts from 0.
        if count.has_reached(12, number % 25):
            reached.append(updates)
            break
    assert reached == [12]
    # Once at the end, and where as many batches had made fewer updates.
    missed = sum(number % steps == 0 for number in skipped) if steps == 1 else 1
    assert model.reads - reads <= 1 + (missed if skipped else 0)


@pytest.mark.slow
def test_a_state_due_after_a_bad_batch_is_not_saved(tmp_path, monkeypatch):
    """The batches after the bad one changed nothing, so they must come again."""

    class PlantNaN(RunCallback):
        wants_every_batch = False

        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.sync_variables()
                weight = self.model.weights[0]
                weight.assign(np.full(weight.shape, np.nan))

    monkeypatch.setattr(Pace.__init__, "__defaults__", (math.inf,))
    config = tiny_run.CONFIG.replace(
        data=tiny_run.CONFIG.data.replace(batch_tokens=80),
        # After every batch.
        training=tiny_run.CONFIG.training.replace(epochs=1, checkpoint_minutes=1e-9),
    )
    with pytest.raises(FloatingPointError, match=r"after 3 updates.*batch-000004\.npz"):
        train(
            tiny_run.PAIRS, tmp_path / "run", config, console=Console(quiet=True),
            callbacks=[PlantNaN()],
        )  # fmt: skip
    (bad,) = (tmp_path / "run" / "nonfinite").iterdir()
    assert bad.name == "epoch-0001-batch-000004.npz"
    names = {path.name for path in (tmp_path / "run" / "states").iterdir()}
    assert names == {
        f"update-00000000{n}-epoch-0000-batch-00000{n}.npz" for n in (2, 3)
    }
