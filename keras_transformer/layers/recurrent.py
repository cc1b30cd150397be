"""Keras' GRU and LSTM for rows whose padding stands at the end."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.types import Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class Orthogonal(keras.initializers.Orthogonal):
    """As Keras' own, whose QR decomposition lacks bfloat16, for every float type."""

    def __call__(self, shape, dtype=None):
        return ops.cast(super().__call__(shape, dtype="float32"), dtype or "float32")


class _WithoutMask:
    """A layer that reads forwards and does not look at the mask.

    Where padding follows the tokens it changes none of their states, and the states at
    padding are nobody's to use. Keras' layers give up their faster ways, cuDNN's among
    them, as soon as they are given a mask (PyTorch, JAX).
    """

    def call(self, sequences, initial_state=None, mask=None, training=False):
        return super().call(sequences, initial_state=initial_state, training=training)


class GRU(_WithoutMask, keras.layers.GRU):
    """`keras.layers.GRU` without the mask."""


class LSTM(_WithoutMask, keras.layers.LSTM):
    """`keras.layers.LSTM` without the mask."""


def recurrent_layer(kind: str, units: int, dtype, name: str) -> keras.layers.Layer:
    """Returns a layer that reads a sequence from its beginning.

    Args:
        kind: "gru" or "lstm".
        units: Width of its states, U.
        dtype: Type or policy of the layer.
        name: Its name.

    Returns:
        A layer from (B, S, D) to (B, S, U), which expects padding after the tokens.
    """
    return {"gru": GRU, "lstm": LSTM}[kind](
        units,
        return_sequences=True,
        recurrent_initializer=Orthogonal(),
        use_cudnn=_cudnn(kind, keras.dtype_policies.get(dtype).compute_dtype),
        dtype=dtype,
        name=name,
    )


def recurrent_cell(kind: str, units: int, dtype, name: str) -> keras.layers.Layer:
    """Returns the cell of such a layer, for one step at a time.

    Args:
        kind: "gru" or "lstm".
        units: Width of its states, U.
        dtype: Type or policy of the layer.
        name: Its name.
    """
    cells = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}
    return cells[kind](
        units, recurrent_initializer=Orthogonal(), dtype=dtype, name=name
    )


def _cudnn(kind, compute_dtype):
    """What `use_cudnn` should be, which chooses Keras' other faster ways too."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        # XLA, which compiles the training step on a GPU, lacks cuDNN's operation, and
        # a CPU cannot run an export with it.
        return False
    if backend == "jax" and kind == "lstm" and compute_dtype != "float32":
        return False  # JAX's binding takes float32 alone.
    return "auto"


def reverse_tokens(inputs: TensorLike, is_token: TensorLike) -> Tensor:
    """Turns the tokens of each row round and leaves its padding at the end.

    Args:
        inputs: Float tensor (B, S, D).
        is_token: Boolean tensor (B, S), True before the padding.

    Returns:
        Float tensor (B, S, D); the same function undoes it.

    Example:
        >>> reverse_tokens([[[7.0], [8.0], [9.0]]], [[True, True, False]])
        [[[8.0], [7.0], [9.0]]]
    """
    is_token = ops.convert_to_tensor(is_token)
    positions = ops.arange(ops.shape(is_token)[1], dtype="int32")[None]
    last = _lengths(is_token)[:, None] - 1
    return _taken(inputs, ops.where(is_token, last - positions, positions))


def at_last_token(inputs: TensorLike, is_token: TensorLike) -> Tensor:
    """Returns what each row has at its last token.

    Args:
        inputs: Float tensor (B, S, D).
        is_token: Boolean tensor (B, S), True before the padding.

    Returns:
        Float tensor (B, D); the first position's where there is no token.
    """
    last = ops.maximum(_lengths(is_token) - 1, 0)
    return _taken(inputs, last[:, None])[:, 0]


def _lengths(is_token):
    return ops.sum(ops.cast(is_token, "int32"), axis=1)


def _taken(inputs, places):
    """Takes (B, P, D) of inputs (B, S, D) at places (B, P)."""
    inputs = ops.convert_to_tensor(inputs)
    batch, length, width = ops.shape(inputs)
    rows = ops.arange(batch, dtype="int32")[:, None] * length + places
    taken = ops.take(ops.reshape(inputs, (-1, width)), ops.reshape(rows, (-1,)), axis=0)
    return ops.reshape(taken, (batch, -1, width))
