"""A linear recurrence over the first axis of tensors."""

from __future__ import annotations

from keras import ops

from keras_transformer.nn.kernels.execution import for_converters, scan
from keras_transformer.nn.kernels.keras_private import custom_gradient


def linear_recurrence(decays, inputs):
    """Returns c_t = decay_t c_(t-1) + input_t for every t, from zeros; (T, ...)."""
    # The gradient of the inputs is the same recurrence backwards, s_t = g_t +
    # decay_(t+1) s_(t+1), with upstream g; that of the decays is s_t c_(t-1).

    def forwards(state, values):
        decay, new = values
        state = decay * state + new
        return state, (state,)

    def backwards(carried, values):
        decay, slope = values
        slope = slope + carried
        return decay * slope, (slope,)

    def run(step, decays, inputs, reverse=False):
        start = ops.zeros(ops.shape(inputs)[1:], inputs.dtype)
        like = (inputs.dtype, inputs.shape[1:])
        _, (outputs,) = scan(step, start, (decays, inputs), [like], reverse)
        # A TensorFlow graph may not know the sizes.
        return ops.reshape(outputs, ops.shape(inputs))

    @custom_gradient
    def recurrence(decays, inputs):
        states = run(forwards, decays, inputs)

        def gradient(*upstreams, upstream=None):
            if upstream is None:  # PyTorch passes it by name, after the arguments.
                (upstream,) = upstreams
            of_inputs = run(backwards, decays, upstream, reverse=True)
            first = ops.zeros_like(states[:1])
            before = ops.concatenate([first, states[:-1]], axis=0)
            return of_inputs * before, of_inputs

        return states, gradient

    if inputs.shape[0] == 0:
        return inputs
    if for_converters():
        return _by_doubling(decays, inputs)
    return recurrence(ops.convert_to_tensor(decays), ops.convert_to_tensor(inputs))


def _by_doubling(decays, inputs):
    """As `linear_recurrence`, for LiteRT, whose lists need known sizes."""
    # After step k a state includes the last 2^k positions (Hillis and Steele, 1986).
    length = ops.shape(inputs)[0]
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
