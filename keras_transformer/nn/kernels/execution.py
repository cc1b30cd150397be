"""How the backend runs operations, its devices and replicas, and loops.

Which code is fastest depends on it: XLA fuses element-wise operations, a TensorFlow
graph makes a pass over memory for each, and LiteRT and ONNX lack some
operations of graphs.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import keras
from keras import ops

from keras_transformer.nn.kernels.keras_private import is_in_xla_graph

if keras.config.backend() not in ("tensorflow", "jax", "torch"):
    raise ValueError(
        "The backend of Keras must be tensorflow, jax or torch: set KERAS_BACKEND. "
        f"Received: KERAS_BACKEND={keras.config.backend()}"
    )

_FOR_CONVERTERS = contextvars.ContextVar("for_converters", default=False)


@contextlib.contextmanager
def tracing_for_converters() -> Iterator[None]:
    """Marks the graphs traced in the block as made for LiteRT or ONNX."""
    token = _FOR_CONVERTERS.set(True)
    try:
        yield
    finally:
        _FOR_CONVERTERS.reset(token)


def for_converters() -> bool:
    """Whether the graph being traced is made for LiteRT or ONNX."""
    return _FOR_CONVERTERS.get()


def in_tensorflow_graph() -> bool:
    """Whether a graph is being traced that TensorFlow runs without XLA."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    is_plain = not (_FOR_CONVERTERS.get() or is_in_xla_graph())
    return tf.inside_function() and is_plain


def in_xla_graph() -> bool:
    """Whether a TensorFlow graph is being traced that XLA compiles."""
    return keras.backend.backend() == "tensorflow" and is_in_xla_graph()


def keeps_shapes() -> bool:
    """Whether loops must keep shapes: on JAX, and in a TensorFlow graph under XLA."""
    return keras.backend.backend() == "jax" or in_xla_graph()


def known_as(tensor, shape):
    """Returns a tensor of which a TensorFlow graph knows this much of the shape."""
    # A loop can change a size only if its graph does not know it.
    import tensorflow as tf

    return tf.raw_ops.PlaceholderWithDefault(input=tensor, shape=shape)


def has_gpu() -> bool:
    """Whether the backend computes on a GPU."""
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
    """Returns the number of replicas of a TensorFlow strategy, else 1.

    Keras divides a loss by it, because it sums the gradients of replicas.
    """
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def scan(step, carry, parts, like, reverse=False):
    """As `ops.scan`, also in a TensorFlow graph of unknown sizes."""
    # `step(carry, [an element of each part])` returns the carry and a tuple of outputs.
    # `like` is the type and shape of each output.
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

    # Two iterations at a time would hold twice the memory.
    _, carry, outputs = tf.while_loop(
        lambda i, *_: i < count, body, (0, carry, outputs), parallel_iterations=1
    )
    return carry, [output.stack() for output in outputs]
