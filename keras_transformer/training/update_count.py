"""How many updates a run has made, without asking the device after every batch."""

from __future__ import annotations

from keras_transformer.exact_training import ExactTraining


class UpdateCount:
    """Says when a number of weight updates is reached.

    Every `gradient_accumulation_steps` batches make one update, or none if they were
    not finite or without a target. So their number has an upper bound that the program
    knows, and the device is asked only where this bound reaches what is sought.

    Args:
        model: Compiled model, not within a `fit`.
    """

    def __init__(self, model: ExactTraining):
        self._model = model
        self._last_batch = -1
        self._read()

    def has_reached(self, target: float, batch: int) -> bool:
        """Returns whether there are `target` updates; must be asked after every batch.

        Args:
            target: Updates since the model was made; may be infinite.
            batch: As `on_train_batch_end` takes it.
        """
        begins_epoch = batch <= self._last_batch
        self._batches += batch + 1 if begins_epoch else batch - self._last_batch
        self._last_batch = batch
        steps = self._model.gradient_accumulation_steps
        if self._updates + self._batches // steps < target:
            return False
        self._read()
        return self._updates >= target

    def _read(self):
        self._updates = self._model.updates
        # Batches since then, with those whose gradients await the next update.
        self._batches = self._model.accumulated_batches


def next_multiple(number: int, every: int) -> int:
    """Returns the first multiple of `every` above a number."""
    return (number // every + 1) * every
