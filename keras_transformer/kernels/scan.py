"""A loop over the first axis of tensors."""

from __future__ import annotations

import keras
from keras import ops


def scan(step, carry, parts, like, reverse=False):
    """As `ops.scan`, in every TensorFlow graph.

    There Keras' own needs outputs shaped like the carry and, for several tensors, a
    length that is known when the graph is traced.

    Args:
        step: Function of the carry and a list of elements, one of each tensor, that
            returns the new carry and a tuple of outputs.
        carry: Tensor, or tuple of tensors.
        parts: Tuple of tensors (C, ...).
        like: Type and shape of each output, with `None` for a size that is not known.
        reverse: Whether the last elements come first.

    Returns:
        The last carry, and a sequence of the outputs (C, ...), each in the place of its
        elements.
    """
    if keras.backend.backend() == "tensorflow":
        return _scan_in_tensorflow(step, carry, parts, like, reverse)
    return ops.scan(step, carry, parts, reverse=reverse)


def _scan_in_tensorflow(step, carry, parts, like, reverse):
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

    _, carry, outputs = tf.while_loop(
        lambda i, *_: i < count,
        body,
        (0, carry, outputs),
        # Two at a time would hold twice the memory.
        parallel_iterations=1,
    )
    return carry, [output.stack() for output in outputs]
