"""What `fit` does after a batch whose loss or gradient is not finite.

The training step itself holds the weights from such a batch on, so `fit` need not look
at every batch, which would make the program wait until the device has computed it.
"""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.types import Tensor

# The value of the counter of held batches where training goes on after a bad one.
NEVER = -1
# Batches after which `fit` looks. A program that prepares each while the device still
# computes those before it loses a little time once in so many; and if one was bad, the
# device computes so many in vain.
_LOOK_EVERY = 16


def held_after(held: Tensor, is_nonfinite: Tensor) -> Tensor:
    """Returns the counter of held batches after another batch.

    Args:
        held: Batches held so far, 0 before the first bad one, or `NEVER`; an integer
            scalar.
        is_nonfinite: Whether this batch is bad; a boolean scalar.
    """
    begins = ops.logical_and(ops.equal(held, 0), is_nonfinite)
    more = ops.logical_or(held > 0, begins)
    return held + ops.cast(more, held.dtype)


class StopOnNonfinite(keras.callbacks.Callback):
    """Ends `fit` some batches after a bad one, if the model's policy is "stop".

    The batches in between change nothing: the weights are those before the bad one.
    `ExactTraining.fit` adds one unless its callbacks contain one. A subclass overrides
    `stop` to do more.

    It has no `on_train_batch_end`, for which Keras would read the logs of every batch
    before it starts the next.

    Attributes:
        found: Whether the last `fit` was ended.
    """

    found = False

    def on_train_begin(self, logs=None):
        self.found = False

    def on_epoch_begin(self, epoch, logs=None):
        self._looked_at = 0

    def on_train_batch_begin(self, batch, logs=None):
        if batch >= self._looked_at + _LOOK_EVERY:
            self._looked_at = batch
            self.look()

    def on_epoch_end(self, epoch, logs=None):
        self.look()

    def look(self):
        """Waits until the device has done what it was given, and asks about it."""
        held = self.model.held_batches
        if held:
            self.stop(held)

    def stop(self, held: int):
        """Makes Keras end `fit`.

        Args:
            held: Batches that were not applied: the bad one and those after it.
        """
        self.found = self.model.stop_training = True


def with_check(callbacks, model: keras.Model):
    """Returns what `fit` takes as `callbacks`, with a `StopOnNonfinite`, and this.

    Args:
        callbacks: What was given: `None`, callbacks, or a `CallbackList`, which stays
            the one that Keras calls.
        model: The model whose `fit` it is.
    """
    is_list = isinstance(callbacks, keras.callbacks.CallbackList)
    given = callbacks.callbacks if is_list else keras.tree.flatten(callbacks or [])
    check = next((c for c in given if isinstance(c, StopOnNonfinite)), None)
    if check is None:
        check = StopOnNonfinite()
        if is_list:
            check.set_model(model)
            given.insert(0, check)
        else:
            callbacks = [check, *given]
    return callbacks, check


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
