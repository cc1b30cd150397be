"""Dropout whose mask is a hash."""

from __future__ import annotations

import keras

from keras_transformer.kernels.dropout import (
    STEPS,
    hashed_dropout,
    keep_and_scale,
    of_this_replica,
    threshold_of,
)
from keras_transformer.kernels.execution import in_replica
from keras_transformer.types import Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Dropout):
    """Sets a random share of the inputs to 0 in training and scales up the others.

    As `keras.layers.Dropout`, whose arguments and seed generator it has, but the mask
    is a hash of the seed, the call's number and the position: on a CPU that costs a
    fraction of Keras' random numbers. The same seed gives the same masks in every
    mode of TensorFlow and on JAX, and the replicas of a TensorFlow strategy drop
    different units. With PyTorch, or with a `noise_shape`, it is Keras' own dropout.

    The share dropped is `rate` rounded to a multiple of 1 / 65536, and the scale is
    that of the rounded rate, so that the expected output is the input.

    Args:
        rate: Share of the units to drop, in [0, 1].
        noise_shape: Shape of the mask, broadcast to the inputs; default theirs.
        seed: Integer seed; default drawn from Python's generator.
    Call arguments:
        inputs: Float tensor (...).
        training: Whether anything is dropped.
    Returns:
        Float tensor (...).
    Raises:
        ValueError: If `rate` is outside [0, 1].

    Example:
        >>> Dropout(0.5, seed=1)(np.ones((2, 3)), training=True)  # of 0 and 2
    """

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        if not training or not self.is_hashed:
            return super().call(inputs, training=training)
        return hashed_dropout(inputs, self.rate, self._next_state())

    @property
    def is_hashed(self):
        """Whether the mask is a hash and not Keras' own."""
        by_us = self.noise_shape is None and keras.backend.backend() != "torch"
        return by_us and 0 < threshold_of(self.rate) < STEPS

    def next_mask(self, shape):
        """Returns the next mask, for a kernel that drops by itself.

        Args:
            shape: Shape of the tensor, of integers or scalar tensors.

        Returns:
            Boolean tensor of that shape, True where an element is kept, and the factor
            on what is kept; `None` and 1 where nothing is dropped.
        """
        if not self.is_hashed:
            return None, 1.0
        return keep_and_scale(shape, self.rate, self._next_state())

    def _next_state(self):
        """The seed and the number of the call, a different one in each replica."""
        state = self.seed_generator.next()
        return of_this_replica(state) if in_replica() else state
