"""The ways in which a kernel runs: eager, in a graph, by XLA; and its gradient."""

import contextlib

import keras
import pytest
from keras import ops

WAYS = ["eager", "graph", "xla"]
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's graphs"
)
every_way = pytest.mark.parametrize(
    "way", ["eager", *(pytest.param(way, marks=on_tensorflow) for way in WAYS[1:])]
)


@contextlib.contextmanager
def eagerly():
    """Runs TensorFlow's functions step by step: values need no graph."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def called(way, function, *inputs):
    """Calls a function of tensors eagerly, in a graph, or in a graph of XLA."""
    if way == "eager":
        return function(*map(ops.convert_to_tensor, inputs))
    import tensorflow as tf

    # XLA compiles for the shapes it is called with; other graphs know no shape.
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    sizes = [[None, *x.shape[1:]] if x.shape.rank else [] for x in inputs]
    specs = [tf.TensorSpec(s, x.dtype) for s, x in zip(sizes, inputs, strict=True)]
    return tf.function(
        function, input_signature=specs, jit_compile=way == "xla", autograph=False
    )(*inputs)


def with_gradients(function, *tensors):
    """What the function returns, and three times the gradient of its first number."""
    backend = keras.backend.backend()
    tensors = [ops.convert_to_tensor(tensor) for tensor in tensors]
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = function(*tensors)
            total = 3.0 * outputs[0]
        return *outputs, *tape.gradient(total, tensors)
    if backend == "jax":
        import jax

        def tripled(*tensors):
            outputs = function(*tensors)
            return 3.0 * outputs[0], outputs

        places = tuple(range(len(tensors)))
        outputs, gradients = jax.grad(tripled, places, has_aux=True)(*tensors)[::-1]
        return *outputs, *gradients
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    outputs = function(*tensors)
    (3.0 * outputs[0]).backward()
    return *(output.detach() for output in outputs), *(t.grad for t in tensors)
