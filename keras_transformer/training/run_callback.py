"""The base of a run's callbacks: their place in an epoch, what they remember."""

from __future__ import annotations

import keras


class RunCallback(keras.callbacks.Callback):
    """A callback that continues where an interrupted run stopped.

    Saved states name callbacks by their class: a new name would lose what is saved.

    Attributes:
        first_batch: Batch of the epoch that this `fit` begins with; set when a state
            is restored.
        wants_every_batch: Whether `on_train_batch_end` needs the logs of every batch,
            for each of which the run then waits. If not, it gets `None` in place of
            most logs.
    """

    first_batch = 0
    wants_every_batch = True

    def batches_done(self, batch: int) -> int:
        """Returns how many batches of the epoch are done.

        Args:
            batch: As `on_train_batch_end` takes it. One call of the training step may
                run several batches: see `steps_per_execution`.
        """
        return self.first_batch + batch + 1

    def state(self) -> dict | None:
        """Returns what `restore` needs, as JSON can hold it; `None` if nothing."""
        return None

    def restore(self, state: dict):
        """Continues from what `state` returned."""
