"""Checks of arguments that layers, losses and models share."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.keras_private import learns_shapes
from keras_transformer.types import TensorLike

_READS_VALUES = contextvars.ContextVar("reads_values", default=True)


def check_size(name, value, optional=False):
    """Raises `ValueError` unless `value` is a positive integer, or an optional None."""
    rule = "a positive integer"
    check_number(name, value, int, rule=rule, optional=optional, minimum=1)


def check_rate(name, value):
    """Raises `ValueError` unless `value` is a number in [0, 1)."""
    check_number(name, value, rule="a number in [0, 1)", minimum=0, below=1)


def check_known_width(layer, **shapes):
    """Raises `ValueError` unless the last axis of each input has a known size."""
    for name, shape in shapes.items():
        if shape[-1] is None:
            raise ValueError(
                f"`{name}` must have a last axis of known size, the width that "
                f"{type(layer).__name__} is built for. Received: shape {tuple(shape)}"
            )


def refuse_integers(inputs):
    """Raises the `TypeError` for ids where a layer takes vectors."""
    raise TypeError(
        "`inputs` must be float vectors (B, T, D): embed ids first, as "
        "`PositionalEmbedding` does, or cast numbers. Received: dtype "
        f"{keras.backend.standardize_dtype(inputs.dtype)}"
    )


def integer_ids(name, ids, *axes):
    """Returns ids as an integer tensor, checked to have axes such as "B" and "T"."""
    # A `keras.Sequential` without an `Input` passes float32, exact up to 2^24.
    if type(ids).__name__ == "RaggedTensor":
        raise TypeError(
            f"`{name}` must be a padded dense tensor: call `to_tensor()`. Received: a "
            f"RaggedTensor of shape {tuple(ids.shape)}"
        )
    if not hasattr(ids, "shape") or not hasattr(ids, "dtype"):
        raise TypeError(
            f"`{name}` must be one tensor of shape ({', '.join(axes)}). Received: "
            f"{described(ids)}"
        )
    is_known = getattr(ids.shape, "rank", 0) is not None
    if is_known and len(ids.shape) != len(axes):
        raise ValueError(
            f"`{name}` must have the shape ({', '.join(axes)}). Received: shape "
            f"{tuple(ids.shape)}"
        )
    dtype = keras.backend.standardize_dtype(ids.dtype)
    if "int" in dtype:
        return ids
    if dtype not in ("float32", "float64"):
        # In bfloat16, 257 would be 256.
        raise TypeError(
            f"`{name}` must be integers; in a functional model use `keras.Input(shape, "
            f"dtype='int32')`. Received: dtype {dtype}"
        )
    return ops.cast(ids, "int32")


def described(value):
    """Returns a value in words for an error."""
    if isinstance(value, dict):
        return f"a dictionary with the keys {', '.join(map(repr, value))}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if hasattr(value, "shape"):
        return f"one tensor of shape {tuple(value.shape)}"
    return f"{value!r:.80}"


def check_ids(name, ids, size, pad_id=None):
    """Raises `ValueError` for an id that is neither below `size` nor `pad_id`.

    It does nothing in a compiled step, where no value is known.
    """
    values = None if size is None else known_values(ids)
    if values is None or not values.size:
        return
    if values.min() >= 0 and values.max() < size:
        return
    is_good = (values >= 0) & (values < size)
    rule = f"`{name}` must be ids from 0 to {size - 1}"
    rest = ""
    if pad_id is not None:
        is_good |= values == pad_id
        rule += ", or `pad_id` at padding; convert ids such as -100 to it"
        rest = f", pad_id={pad_id}"
    if not is_good.all():
        raise ValueError(f"{rule}. Received: the id {values[~is_good][0]}{rest}")


@contextlib.contextmanager
def without_known_values() -> Iterator[None]:
    """Makes a block or function one in which `known_values` reads no tensor."""
    token = _READS_VALUES.set(False)
    try:
        yield
    finally:
        _READS_VALUES.reset(token)


def known_values(tensor: TensorLike) -> np.ndarray | None:
    """Returns the values of a tensor, or `None` while a graph is being traced."""
    backend = keras.backend.backend()
    if backend == "torch":
        import torch

        if torch.compiler.is_compiling():
            return None
    if isinstance(tensor, keras.KerasTensor) or not _READS_VALUES.get():
        return None
    if isinstance(tensor, (np.ndarray, list, tuple)):
        return np.asarray(tensor)
    tensor = ops.convert_to_tensor(tensor)
    if backend == "tensorflow":
        import tensorflow as tf

        is_known = not tf.is_symbolic_tensor(tensor)
    elif backend == "jax":
        import jax

        is_known = not isinstance(tensor, jax.core.Tracer)
    else:
        is_known = tensor.device.type != "meta"
    return ops.convert_to_numpy(tensor) if is_known and not learns_shapes() else None
