"""What `fit` does after a batch whose loss or gradient is not finite."""

from __future__ import annotations

import keras


class StopOnNonfinite(keras.callbacks.Callback):
    """Ends `fit` after a batch that was not applied, if the model's policy is "stop".

    `ExactTraining.fit` adds one unless its callbacks contain one. A subclass overrides
    `stop` to do more.

    Attributes:
        found: Whether the last `fit` was ended.
    """

    def on_train_begin(self, logs=None):
        self.found = False
        self._count = self.model.nonfinite_batches

    def on_train_batch_end(self, batch, logs=None):
        before, self._count = self._count, self.model.nonfinite_batches
        if self._count > before and self.model.nonfinite == "stop":
            self.stop(batch)

    def stop(self, batch: int):
        """Makes Keras end `fit` once the other callbacks have seen the batch.

        Args:
            batch: Last batch that the training step has run, counted from 0.
        """
        self.found = self.model.stop_training = True


def nonfinite_error(updates: int, advice: str) -> FloatingPointError:
    """Returns the error that ends a training.

    Args:
        updates: Weight updates made before.
        advice: What the user can do about it.
    """
    return FloatingPointError(
        f"The loss or the gradient of a batch is not finite after {updates} updates; "
        f"the weights are those before it. {advice}"
    )
