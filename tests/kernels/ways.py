"""The ways in which a kernel runs: eager, in a graph, in a graph of XLA."""

from __future__ import annotations

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
