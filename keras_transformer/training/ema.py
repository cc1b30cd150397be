"""The exponential moving average of the weights that a Keras optimizer keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
from keras import ops

from keras_transformer.exact_training.update import inner_optimizer
from keras_transformer.kernels.keras_private import averages_of


@contextlib.contextmanager
def averaged_weights(model: keras.Model) -> Iterator[None]:
    """Puts the optimizer's moving average into the model while the block runs.

    Afterwards the model has its own weights again, to the bit. Keras'
    `SwapEMAWeights` adds and subtracts to swap them, which rounds. Without `use_ema`
    nothing changes. After w_1, w_2, ... the average of decay d is

        m_1 = w_1,  m_t = d m_(t-1) + (1 - d) w_t.

    Args:
        model: Compiled model, whose optimizer may have `use_ema`.

    Example:
        >>> with averaged_weights(model):
        ...     model.save_weights("average.weights.h5")
    """
    pairs = _weights_and_averages(model)
    raw = [_kept(weight) for weight, _ in pairs]
    for weight, average in pairs:
        weight.assign(_copied(average))
    try:
        yield
    finally:
        for (weight, _), value in zip(pairs, raw, strict=True):
            weight.assign(value)


def keeps_average(model: keras.Model) -> bool:
    """Whether the optimizer of a model, if it has one, keeps a moving average."""
    optimizer = inner_optimizer(getattr(model, "optimizer", None))
    return getattr(optimizer, "use_ema", False)


def _kept(weight):
    """The value of a weight, as it stays when another is assigned."""
    if keras.backend.backend() == "jax":
        # One process of several may not give all of them an array of NumPy.
        return weight.value
    return ops.convert_to_numpy(weight)


def _copied(average):
    """The value of a moving average, for a weight."""
    if keras.backend.backend() == "jax":
        # A step takes over the memory of its weights, which must not be the average's.
        return ops.copy(average.value)
    return average


def _weights_and_averages(model):
    """Returns the trainable weights, each with its average; none without `use_ema`."""
    optimizer = inner_optimizer(getattr(model, "optimizer", None))
    if not keeps_average(model) or not optimizer.built:
        return []
    return [pair for pair in averages_of(optimizer) if pair[1] is not None]


class ValidateAverage(keras.callbacks.Callback):
    """Makes `model.fit` validate the moving average of the weights."""

    def __init__(self):
        super().__init__()
        self._block = contextlib.ExitStack()

    def on_test_begin(self, logs=None):
        self._block.enter_context(averaged_weights(self.model))

    def on_test_end(self, logs=None):
        self._block.close()

    def on_train_end(self, logs=None):
        # An interrupted validation must not leave the average in the model.
        self._block.close()
