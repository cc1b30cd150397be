"""The private names that the package uses are still there, and nowhere else used."""

import contextlib
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer
from keras_transformer.kernels import keras_private

DOOR = Path(keras_private.__file__)
PRIVATE = re.compile(
    r"keras\.src|tensorflow\.python|\._(loss_tracker|compile_loss|compile_metrics|"
    r"user_\w+|flat_losses|jax_state\w*|layout|get_variable_index|momentums|"
    r"velocities|clip_gradients|"
    r"maybe_symbolic_build|keras_mask|flatten_layers)\b"
)


class Model(keras_private.BuildsFromSpec, keras.Sequential):
    pass


@pytest.fixture(scope="module")
def model():
    """A trained model with a loss weight and metrics."""
    made = Model([keras.layers.Dense(1)])
    made.compile(
        keras.optimizers.Adam(0.1, clipvalue=0.5),
        "mse", loss_weights=[2.0], metrics=["mae"], weighted_metrics=["mape"],
    )  # fmt: skip
    made.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
    return made


def moved(name):
    return (
        f"Keras {keras.__version__} has moved what `keras_private.{name}` reads: find "
        f"its new place and change {DOOR.name} alone"
    )


def test_private_names_of_a_model_are_where_they_were(model):
    found = {
        "loss_tracker": keras_private.loss_tracker(model).name,
        "loss_weights": keras_private.loss_weights(model),
        "compiled_metrics": keras_private.compiled_metrics(model),
        "layout_of": keras_private.layout_of(model.weights[0]),
        "has_maybe_symbolic_build": hasattr(keras.Model, "_maybe_symbolic_build"),
    }
    expected = {
        "loss_tracker": "loss",
        "loss_weights": [2.0],
        "compiled_metrics": ["mae", "mape"],
        "layout_of": None,
        "has_maybe_symbolic_build": True,
    }
    for name, value in expected.items():
        assert found[name] == value, moved(name)


def test_private_names_of_an_optimizer_are_where_they_were(model):
    optimizer = model.optimizer
    first, second = keras_private.adam_moments(optimizer, model.weights[0])
    assert "momentum" in first.name and "velocity" in second.name, moved("adam_moments")
    (clipped,) = keras_private.clipped_by(optimizer, [ops.array([-2.0, 0.25])])
    clipped = ops.convert_to_numpy(clipped).tolist()
    assert clipped == [-0.5, 0.25], moved("clipped_by")


def test_masks_are_read_where_keras_leaves_them():
    inputs = keras.Input((3,), dtype="int32")
    masked = keras.layers.Embedding(5, 2, mask_zero=True)(inputs)
    assert keras_private.carried_mask(masked).shape == (None, 3), moved("carried_mask")
    assert keras_private.carried_mask(inputs) is None


def test_a_call_for_shapes_alone_is_known():
    found = []

    def call(x):
        found.append(keras_private.learns_shapes())
        return x

    keras.layers.Lambda(call)(keras.Input((3,)))
    call(1.0)
    assert found == [True, False], moved("learns_shapes")


@pytest.mark.parametrize(
    "layer",
    (
        keras.layers.MultiHeadAttention(3, 4, value_dim=5),
        keras.layers.GroupQueryAttention(4, 3, 3),
    ),
)
def test_projections_of_attention_are_where_they_were(layer):
    layer.build((None, None, 7), (None, None, 7))
    found = keras_private.attention_projections(layer)
    assert list(found) == ["query", "key", "value", "output"]
    assert found["query"].kernel.shape == (7, 3, 4), moved("attention_projections")
    assert found["output"].kernel.shape[-1] == 7, moved("attention_projections")
    assert not keras_private.has_own_attention(layer)
    overridden = type("Own", (type(layer),), {"_compute_attention": None})
    layer.__class__ = overridden
    assert keras_private.has_own_attention(layer), moved("has_own_attention")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="graphs")
@pytest.mark.parametrize("jit_compile", (False, True))
def test_xla_is_told_from_other_graphs(jit_compile):
    import tensorflow as tf

    found = []

    @tf.function(jit_compile=jit_compile)
    def trace(x):
        found.append(keras_private.is_in_xla_graph())
        return x

    trace(tf.constant(1.0))
    assert found == [jit_compile], moved("is_in_xla_graph")


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
    assert types == {tf.float32}, moved("integer_products_in_floats")
    np.testing.assert_array_equal(traced(tf.constant(inputs)), expected)
    assert tf.lite.TFLiteConverter.from_concrete_functions([traced], layer).convert()


def test_nothing_else_uses_a_private_name():
    root = Path(keras_transformer.__file__).parent
    offenders = [
        f"{path.relative_to(root)}: {match[0]}"
        for path in sorted(root.rglob("*.py"))
        if path != DOOR
        for match in PRIVATE.finditer(path.read_text("utf-8"))
    ]
    assert not offenders, "\n".join(offenders)
