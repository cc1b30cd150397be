"""Private names of Keras are used in one module, and what has moved is told."""

import contextlib
import gc
import inspect
import re
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.nn.kernels import keras_private

DOOR = Path(keras_private.__file__)
PRIVATE = re.compile(
    r"keras\.src|keras_hub\.src|tensorflow\.python|Operation\.compute_output_spec|"
    r"\.axis\b|\._(loss_tracker|compile_loss|compile_metrics|user_\w+|flat_losses|"
    r"jax_state\w*|layout|get_variable_index|momentums|velocities|clip_gradients|"
    r"(maybe_)?symbolic_build|keras_mask|flatten_layers|\w+_dense|post_build|"
    r"maybe_initialized_tf)\b"
)


def compiled():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(
        keras.optimizers.Adam(clipnorm=1.0),
        "mse",
        loss_weights=[2.0],
        metrics=["mae"],
        weighted_metrics=["mape"],
    )
    keras_private.build_for(model, (keras.KerasTensor((2, 3)),) * 2)
    model.optimizer.build(model.trainable_variables)
    return model


def masked():
    mask = ops.ones((1, 2), "bool")
    given = keras_private.with_mask(ops.ones((1, 2)), mask)
    return keras_private.carried_mask(given) is mask


def shapes_are_learned():
    learned = []
    layer = keras.layers.Lambda(
        lambda x: (learned.append(keras_private.learns_shapes()), x)[1]
    )
    layer(keras.Input((2,)))
    return learned[-1] and not keras_private.learns_shapes()


def attends():
    found = []
    options = {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 3}
    for layer in (
        keras.layers.MultiHeadAttention(2, 3),
        keras.layers.GroupQueryAttention(**options),
    ):
        layer.build((1, 2, 4), (1, 2, 4))
        found += keras_private.attention_projections(layer).values()
    return {type(dense) for dense in found} == {keras.layers.EinsumDense}


def traces():
    layer = keras.layers.Lambda(lambda x: (x, x[:, 0]))
    spec = keras_private.traced_output_spec(layer, (keras.KerasTensor((2, 3)),), {})
    return [tensor.shape for tensor in spec] == [(2, 3), (2,)]


def normalises_the_last_axis():
    answers = []
    for axis in (-1, 2, 1, [1, 2]):
        norm = keras.layers.LayerNormalization(axis=axis)
        norm.build((2, 3, 4))
        answers.append(keras_private.is_of_last_axis(norm, 3))
    return answers == [True, True, False, False]


def has_moments():
    model = compiled()
    weight = model.trainable_variables[1]
    moments = keras_private.adam_moments(model.optimizer, weight)
    # "adam/..._bias_momentum" and "..._velocity"
    return [m.path.rsplit("_", 1)[1] for m in moments] == ["momentum", "velocity"]


def clips():
    gradients = keras_private.clipped_by(compiled().optimizer, [ops.ones((4,))])
    return np.allclose(ops.convert_to_numpy(gradients[0]), 0.5)


def tells_when_built():
    told = []
    bases = (keras_private.ToldWhenBuilt, keras.layers.Layer)
    layer = type("Told", bases, {"when_built": lambda self: told.append(self)})()
    layer.build((1, 2))
    return told == [layer]


def builds_where_keras_does():
    names = ["_symbolic_build"]
    if keras.backend.backend() == "tensorflow":
        names.append("_maybe_symbolic_build")
    return all(hasattr(keras.Model, name) for name in names)


def has_a_layout():
    # JAX's variables have one on several devices only.
    return keras_private.layout_of(keras.Variable(np.ones(2))) is None


def contains_layers():
    inner = keras.layers.Dense(1)
    outer = keras.Sequential([keras.Sequential([inner])])
    return inner in keras_private.layers_within(outer)


def is_compiled_by_xla():
    import tensorflow as tf

    answers = []
    for jit in (False, True):
        call = tf.function(
            lambda: answers.append(keras_private.is_in_xla_graph()), jit_compile=jit
        )
        call.get_concrete_function()
    # The first graph of a function with `jit_compile` is XLA's too.
    return answers == [False, True]


def converts():
    import tensorflow as tf

    call = tf.function(lambda x: tf.math.betainc(x, x, x), autograph=False)
    traced = call.get_concrete_function(tf.TensorSpec((3,)))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced], tf.Module())
    before = dict(vars(converter))
    keras_private.without_large_constants(converter)
    changed = {n for n, value in vars(converter).items() if before.get(n, 0) != value}
    try:
        converter.convert()
    except keras_private.converter_error():
        return changed == {"_experimental_unfold_large_splat_constant"} < before.keys()
    return False


def keeps_no_graph():
    import tensorflow as tf

    @keras_private.custom_gradient
    def square(x):
        return x * x, lambda upstream: 5.0 * upstream

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = 3.0 * square(x)
        return tape.gradient(total, x), tf.gradients(3.0 * square(x), x)[0]

    step = tf.function(gradient, autograph=False)
    found = [float(value) for value in step(tf.constant(2.0))]
    graph = weakref.ref(step.get_concrete_function(tf.constant(2.0)).graph)
    del step
    gc.collect()
    return found == [15.0, 15.0] and graph() is None


def cancels():
    import tensorflow as tf

    endless = tf.function(
        lambda: tf.while_loop(lambda i: i < 1, lambda i: i * 0, [tf.constant(0)])
    )
    manager, cancelled = keras_private.cancellation_of_graphs()
    manager.start_cancel()
    try:
        with cancelled:
            endless()
    except tf.errors.CancelledError:
        return True
    return False


# What uses a private name, and a check of it that is False or raises once it moves.
CHECKS = {
    "carried_mask": masked,
    "with_mask": masked,
    "learns_shapes": shapes_are_learned,
    "attention_projections": attends,
    "traced_output_spec": traces,
    "is_of_last_axis": normalises_the_last_axis,
    "loss_tracker": lambda: keras_private.loss_tracker(compiled()).name == "loss",
    "loss_weights": lambda: keras_private.loss_weights(compiled()) == [2.0],
    "compiled_metrics": lambda: (
        keras_private.compiled_metrics(compiled()) == ["mae", "mape"]
    ),
    "layout_of": has_a_layout,
    "adam_moments": has_moments,
    "clipped_by": clips,
    "ToldWhenBuilt": tells_when_built,
    "BuildsFromSpec": builds_where_keras_does,
    "build_for": lambda: compiled().built,
    "layers_within": contains_layers,
}
OF_TENSORFLOW = {
    "is_in_xla_graph": is_compiled_by_xla,
    "_with_gradient": keeps_no_graph,
    "cancellation_of_graphs": cancels,
    "converter_error": converts,
    "without_large_constants": converts,
    # Its test is below.
    "integer_products_in_floats": lambda: True,
}
if keras.backend.backend() == "tensorflow":
    CHECKS |= OF_TENSORFLOW


def tell_what_has_moved(module, name, check):
    """Fails with what a name of a module leans on if its check does."""
    places = re.findall(r"# Leans on (.*)\.", inspect.getsource(getattr(module, name)))
    assert places, f"say in `{name}` what it leans on"
    try:
        outcome = check()
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    assert outcome is True, (
        f"`{name}` of {module.__name__} leans on {' and '.join(places)}, which has "
        f"moved: {outcome}"
    )


@pytest.mark.parametrize("name", CHECKS)
def test_a_name_that_has_moved_is_told(name):
    tell_what_has_moved(keras_private, name, CHECKS[name])


def test_every_private_name_has_a_check():
    names = {
        name
        for name, value in vars(keras_private).items()
        if getattr(value, "__module__", "") == keras_private.__name__
        and "# Leans on" in inspect.getsource(value)
    }
    assert names == CHECKS.keys() | OF_TENSORFLOW.keys()


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
    root = DOOR.parents[2]
    offenders = [
        f"{path.relative_to(root)}: {match[0]}"
        for path in sorted(root.rglob("*.py"))
        if path not in (DOOR, DOOR.parents[2] / "text" / "keras_hub_private.py")
        for match in PRIVATE.finditer(path.read_text("utf-8"))
    ]
    assert not offenders, "\n".join(offenders)
