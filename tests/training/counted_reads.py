"""Counts how often a program waits for its device to read a value."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import keras


@contextlib.contextmanager
def counted_reads(patch):
    """Counts, as `.number`, the values that the main thread reads within the block.

    A value that another thread waits for does not hold up the training loop.

    Args:
        patch: A `pytest.MonkeyPatch`.
    """
    counter, main = SimpleNamespace(number=0, depth=0), threading.current_thread()

    def counted(read):
        def count(*args, **kwargs):
            if threading.current_thread() is not main:
                return read(*args, **kwargs)
            # One way of reading may use another.
            counter.number += counter.depth == 0
            counter.depth += 1
            try:
                return read(*args, **kwargs)
            finally:
                counter.depth -= 1

        return count

    with patch.context() as patch:
        for owner, name in _readers():
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield counter


def _readers():
    """The functions of Keras and of its backend that give a value to the program."""
    from keras.src import backend

    yield backend, "convert_to_numpy"
    if keras.backend.backend() == "jax":
        from jax._src.array import ArrayImpl

        for name in ("__array__", "__float__", "__int__", "__bool__", "__index__",
                     "item", "tolist", "block_until_ready"):  # fmt: skip
            yield ArrayImpl, name
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Of all eager tensors. Keras' trainer asks with `__bool__` whether there was
        # a batch, which the host knows.
        kind = type(tf.constant(0.0)).__base__
        for name in ("numpy", "__array__", "__float__", "__int__", "__index__"):
            yield kind, name
    else:
        import torch

        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__",
                     "__int__", "__index__"):  # fmt: skip
            yield torch.Tensor, name
