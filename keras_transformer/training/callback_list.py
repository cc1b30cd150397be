"""How a run calls its callbacks: it waits for the device only now and then."""

from __future__ import annotations

import time
from collections.abc import Sequence

import keras
from keras import ops

from keras_transformer.training.distribution import Distribution


class RunCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a run's `fit`, which get the figures of some batches only.

    Keras' own list reads every figure of a batch before it starts the next, so a GPU
    idles while the program prepares that. This one hands on `None` in place of the logs
    except about once a second, every 16 batches at the latest, and after an epoch's
    last batch. If a callback has `on_train_batch_end`, every batch is read, as by
    Keras, unless its `wants_every_batch` is false: see `RunCallback`.

    Args:
        callbacks: The callbacks, in order.
        model: The model in training.
        epochs: As `model.fit` takes it.
        steps: Batches of an epoch of this `fit`.
        distribution: The devices; all processes read after the same batches.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        epochs: int,
        steps: int,
        distribution: Distribution,
    ):
        super().__init__(
            list(callbacks), add_history=True, model=model, verbose=0, epochs=epochs,
            steps=steps,
        )  # fmt: skip
        most = 1 if any(map(_waits_for_batches, callbacks)) else 16
        self._pace = Pace(distribution, most)

    def on_epoch_begin(self, epoch, logs=None):
        self._done = 0
        self._pace.start()
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch, logs=None):
        passed, self._done = batch + 1 - self._done, batch + 1
        is_due = self._pace.is_due(passed)
        figures = None
        if is_due or self._done >= self.params["steps"]:
            figures = read(logs)
            self._pace.waited()
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs=figures)


class Pace:
    """Says after which batches a run waits for the device.

    Waits are about a second apart, to lose little time by each, and at most `most`
    batches, so that a program never runs far ahead of its device.

    Args:
        distribution: The devices; all processes wait after the same batches.
        most: Batches between two waits.
        seconds: Time between two waits.
    """

    def __init__(self, distribution: Distribution, most: int, seconds: float = 1.0):
        self._distribution = distribution
        self._most = most
        self._seconds = seconds
        self._every = 1

    def start(self):
        """Begins to measure; call it when the device has nothing left to do."""
        self._batches, self._since = 0, time.monotonic()

    def is_due(self, batches: int) -> bool:
        """Returns whether to wait now, when some more batches were given out."""
        self._batches += batches
        return self._batches >= self._every

    def waited(self):
        """Notes that the device has done all it was given."""
        if self._most > 1:
            seconds = (time.monotonic() - self._since) / self._batches
            # Another shape's compilation makes one wait come early.
            a_second = self._seconds / max(self._distribution.mean(seconds), 1e-9)
            self._every = int(max(1, min(self._most, a_second)))
        self.start()


def read(logs: dict) -> dict[str, float]:
    """Returns the figures of a batch as numbers, once the device has computed them."""
    tensors = [ops.cast(tensor, "float32") for tensor in logs.values()]
    # From one tensor, since each transfer waits.
    values = ops.convert_to_numpy(ops.stack(tensors)) if tensors else []
    return dict(zip(logs, map(float, values), strict=True))


def _waits_for_batches(callback):
    """Whether a callback has something to do after every batch with its figures."""
    base = keras.callbacks.Callback
    return getattr(callback, "wants_every_batch", True) and any(
        getattr(getattr(callback, hook, None), "__func__", None)
        is not getattr(base, hook)
        for hook in ("on_train_batch_end", "on_batch_end")
    )
