"""Loops over the first axis of tensors: any, and a linear recurrence."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.execution import for_litert, shape_of


def scan(step, carry, parts, like, reverse=False):
    """As `ops.scan`, in every TensorFlow graph, of outputs of any shape and length.

    `step(carry, [an element of each part])` returns the carry and a tuple of outputs.
    """
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


def linear_recurrence(decays, inputs):
    """Computes c_t = decay_t c_(t-1) + input_t for every t from zeros; all (T, ...)."""
    # With the upstream gradient g, that of the inputs is the same recurrence backwards,
    # s_t = g_t + decay_(t+1) s_(t+1), and that of the decays is s_t c_(t-1).

    def forwards(state, values):
        decay, new = values
        state = decay * state + new
        return state, (state,)

    def backwards(carried, values):
        decay, slope = values
        slope = slope + carried
        return decay * slope, (slope,)

    def run(step, decays, inputs, reverse=False):
        start, like = ops.zeros_like(inputs[0]), (inputs.dtype, inputs.shape[1:])
        _, (outputs,) = scan(step, start, (decays, inputs), [like], reverse)
        # A TensorFlow graph may have lost the sizes.
        return ops.reshape(outputs, shape_of(inputs))

    @ops.custom_gradient
    def recurrence(decays, inputs):
        states = run(forwards, decays, inputs)

        def gradient(*upstreams, upstream=None):
            if upstream is None:  # PyTorch gives it by name, after the arguments.
                (upstream,) = upstreams
            of_inputs = run(backwards, decays, upstream, reverse=True)
            first = ops.zeros_like(states[:1])
            before = ops.concatenate([first, states[:-1]], axis=0)
            return of_inputs * before, of_inputs

        return states, gradient

    if for_litert():
        return _by_doubling(decays, inputs)
    return recurrence(*map(ops.convert_to_tensor, (decays, inputs)))


def _by_doubling(decays, inputs):
    """As `linear_recurrence`, for LiteRT, whose lists of tensors need known sizes.

    Each state knows the last 2^k positions after step k (Hillis and Steele, 1986).
    """
    length = shape_of(inputs)[0]
    positions = ops.arange(length, dtype="int32")

    def unfinished(reach, decays, states):
        return reach < length

    def advance(reach, decays, states):
        places = ops.maximum(positions - reach, 0)
        is_there = ops.reshape(positions >= reach, (-1, *[1] * (len(states.shape) - 1)))
        earlier = ops.where(is_there, ops.take(states, places, axis=0), 0.0)
        states = states + decays * earlier
        decays = decays * ops.take(decays, places, axis=0)
        return 2 * reach, decays, states

    start = (ops.ones((), "int32"), decays, inputs)
    return ops.while_loop(unfinished, advance, start)[2]
