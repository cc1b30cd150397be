"""A recurrence whose every unit goes its own way, over a whole sequence."""

from __future__ import annotations

from keras import ops

from keras_transformer.kernels.execution import shape_of
from keras_transformer.kernels.scan import scan


def linear_recurrence(decays, inputs):
    """Computes c_t = decay_t c_(t-1) + input_t for every t, from zeros.

    With the upstream gradient g, the gradient of the inputs is the same recurrence
    backwards, s_t = g_t + decay_(t+1) s_(t+1), and that of the decays is s_t c_(t-1):
    nothing but the states is kept for it.

    Args:
        decays: Float tensor (T, ...).
        inputs: Float tensor (T, ...).

    Returns:
        The states, float tensor (T, ...).
    """

    @ops.custom_gradient
    def recurrence(decays, inputs):
        states = _forwards(decays, inputs)

        def gradient(*upstreams, upstream=None):
            if upstream is None:  # PyTorch gives it by name, after the arguments.
                (upstream,) = upstreams
            of_inputs = _backwards(decays, upstream)
            first = ops.zeros_like(states[:1])
            before = ops.concatenate([first, states[:-1]], axis=0)
            return of_inputs * before, of_inputs

        return states, gradient

    return recurrence(*map(ops.convert_to_tensor, (decays, inputs)))


def _forwards(decays, inputs):
    def step(state, values):
        decay, new = values
        state = decay * state + new
        return state, (state,)

    return _states(step, decays, inputs)


def _backwards(decays, upstream):
    def step(carried, values):
        decay, slope = values
        slope = slope + carried
        return decay * slope, (slope,)

    return _states(step, decays, upstream, reverse=True)


def _states(step, decays, inputs, reverse=False):
    start, dtypes = ops.zeros_like(inputs[0]), (inputs.dtype,)
    _, (states,) = scan(step, start, (decays, inputs), dtypes, reverse)
    # A TensorFlow graph may have lost the sizes.
    return ops.reshape(states, shape_of(inputs))
