"""Tells how and on how many replicas an operation is about to run; runs loops.

The cheapest way depends on it: XLA fuses element-wise operations into one loop, a
TensorFlow graph without XLA makes a pass over memory for each, and LiteRT lacks the
operations that are made for such graphs.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import keras
from keras import ops

from keras_transformer.kernels.keras_private import is_in_xla_graph

_FOR_LITERT = contextvars.ContextVar("for_litert", default=False)


@contextlib.contextmanager
def tracing_for_litert() -> Iterator[None]:
    """Says that the graphs traced in the block become a file for LiteRT."""
    token = _FOR_LITERT.set(True)
    try:
        yield
    finally:
        _FOR_LITERT.reset(token)


def for_litert() -> bool:
    """Whether the graphs that are being traced become a file for LiteRT."""
    return _FOR_LITERT.get()


def in_tensorflow_graph() -> bool:
    """Whether a TensorFlow graph is being traced that TensorFlow itself will run."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    is_plain = not (_FOR_LITERT.get() or is_in_xla_graph())
    return tf.inside_function() and is_plain


def has_gpu() -> bool:
    """Whether Keras' backend computes on a GPU here."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    import tensorflow as tf

    return bool(tf.config.get_visible_devices("GPU"))


def num_replicas() -> int:
    """Copies of the model that share the batch, by a TensorFlow strategy; else 1.

    A Keras loss is divided by it, because the replicas' gradients are summed.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def scan(step, carry, parts, like, reverse=False):
    """As `ops.scan`, in every TensorFlow graph, of outputs of any shape and length."""
    # `step(carry, [an element of each part])` returns the carry and a tuple of outputs.
    # `like` is the type and the shape of each output; `None` is a size not known.
    if keras.backend.backend() != "tensorflow":
        return ops.scan(step, carry, parts, reverse=reverse)
    import tensorflow as tf

    count = tf.shape(parts[0])[0]
    outputs = [
        tf.TensorArray(dtype, size=count, element_shape=shape) for dtype, shape in like
    ]

    def body(i, carry, outputs):
        place = count - 1 - i if reverse else i
        carry, values = step(carry, [part[place] for part in parts])
        pairs = zip(outputs, values, strict=True)
        return i + 1, carry, [output.write(place, value) for output, value in pairs]

    # Two at a time would hold twice the memory.
    _, carry, outputs = tf.while_loop(
        lambda i, *_: i < count, body, (0, carry, outputs), parallel_iterations=1
    )
    return carry, [output.stack() for output in outputs]
