"""Private names of Keras are used in one module, and what it changes stays right.

Whatever else a release moves, the tests of what uses it show.
"""

import contextlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.kernels import keras_private

DOOR = Path(keras_private.__file__)
PRIVATE = re.compile(
    r"keras\.src|tensorflow\.python|\._(loss_tracker|compile_loss|compile_metrics|"
    r"user_\w+|flat_losses|jax_state\w*|layout|get_variable_index|momentums|"
    r"velocities|clip_gradients|"
    r"maybe_symbolic_build|keras_mask|flatten_layers)\b"
)


def test_a_build_is_overridden_where_keras_has_one():
    assert hasattr(keras.Model, "_maybe_symbolic_build")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs")
def test_a_quantised_layer_multiplies_as_floats_for_litert(rng):
    """LiteRT converts it, and computes what Keras' product of integers does."""
    import tensorflow as tf

    layer = keras.layers.Dense(5)
    inputs = rng.standard_normal((3, 7)).astype("float32")
    layer.build(inputs.shape)
    layer.quantize("int8")
    expected = ops.convert_to_numpy(layer(inputs))

    def products(context):
        call = tf.function(lambda x: layer(x), autograph=False)
        with context:
            traced = call.get_concrete_function(tf.TensorSpec((3, 7)))
        operations = traced.graph.get_operations()
        types = {op.inputs[0].dtype for op in operations if "MatMul" in op.type}
        return traced, types

    _, types = products(contextlib.nullcontext())
    assert types == {tf.int8}
    traced, types = products(keras_private.integer_products_in_floats())
    assert types == {tf.float32}
    np.testing.assert_array_equal(traced(tf.constant(inputs)), expected)
    assert tf.lite.TFLiteConverter.from_concrete_functions([traced], layer).convert()


def test_nothing_else_uses_a_private_name():
    root = DOOR.parents[1]
    offenders = [
        f"{path.relative_to(root)}: {match[0]}"
        for path in sorted(root.rglob("*.py"))
        if path != DOOR
        for match in PRIVATE.finditer(path.read_text("utf-8"))
    ]
    assert not offenders, "\n".join(offenders)
