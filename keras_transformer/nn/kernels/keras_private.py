"""All uses of private names of Keras and TensorFlow, which a release may move.

Each names the file and the function of Keras 3.15, KerasHub 0.32 or TensorFlow 2.21
that it leans on; tests/nn/kernels/test_keras_private.py tells which of them has moved.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator

import keras


def carried_mask(tensor):
    """Returns the mask (B, S) that Keras attached to a tensor, or `None`."""
    # Leans on keras/src/backend/common/masking.py: get_keras_mask.
    from keras.src.backend.common import masking

    return masking.get_keras_mask(tensor)


def with_mask(tensor, mask):
    """Returns a tensor to which a mask (B, S) is attached as Keras does it."""
    # Leans on keras/src/backend/common/masking.py: set_keras_mask.
    from keras.src.backend.common import masking

    masking.set_keras_mask(tensor, mask)
    return tensor


def learns_shapes() -> bool:
    """Whether Keras runs a call for shapes only, with floats for all inputs."""
    # Leans on keras/src/backend/common/symbolic_scope.py: in_symbolic_scope.
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return in_symbolic_scope()


def attention_projections(layer) -> dict:
    """Returns the dense layers of Keras' attention layer by name."""
    # Leans on keras/src/layers/attention/multi_head_attention.py: build.
    # Leans on keras/src/layers/attention/grouped_query_attention.py: build.
    names = ("query", "key", "value", "output")
    return {name: getattr(layer, f"_{name}_dense") for name in names}


def traced_output_spec(layer, args, kwargs):
    """Returns what `call` of a layer returns as `KerasTensor`s, by tracing it."""
    # Leans on keras/src/ops/operation.py: Operation.compute_output_spec.
    # `Layer` asks `compute_output_shape`, which tells of one output only.
    return keras.Operation.compute_output_spec(layer, *args, **kwargs)


def overrides(layer, base, names) -> bool:
    """Whether a layer or model has other methods than `base`, one of its classes."""
    for name in names:
        method = getattr(layer, name, None)
        if getattr(method, "__func__", method) is not getattr(base, name, None):
            return True
    return False


def is_of_last_axis(norm, rank) -> bool:
    """Whether Keras' built layer normalisation is over the last of its inputs' axes."""
    # Leans on keras/src/layers/normalization/layer_normalization.py: build.
    return norm.axis in ([-1], [rank - 1])


def is_in_xla_graph() -> bool:
    """Whether XLA will compile the TensorFlow graph that is being traced."""
    # Leans on tensorflow/python/ops/control_flow_util.py: GraphOrParentsInXlaContext.
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def custom_gradient(function):
    """As `ops.custom_gradient`, whose registry in TensorFlow keeps every graph."""
    if keras.backend.backend() == "tensorflow":
        return functools.partial(_with_gradient, function)
    return keras.ops.custom_gradient(function)


def _with_gradient(function, *inputs):
    # Leans on tensorflow/python/ops/custom_gradient.py: _graph_mode_decorator.
    # Leans on tensorflow/python/framework/registry.py: Registry.
    import tensorflow as tf
    from tensorflow.python.eager import record
    from tensorflow.python.framework import ops

    if tf.executing_eagerly():
        return tf.custom_gradient(function)(*inputs)
    inputs = [tf.convert_to_tensor(x) for x in inputs]  # Some are variables.
    results, gradient = function(*inputs)
    outputs = tf.nest.flatten(results)

    def gradients(*upstreams):
        of_inputs = gradient(*upstreams[: len(outputs)])
        return [None] * len(outputs) + tf.nest.flatten(of_inputs)

    # The graph holds the function, and the registry lets go of it with the graph.
    graph = tf.compat.v1.get_default_graph()
    graph.add_to_collection("custom_gradients", gradients)
    held = weakref.ref(gradients)
    name = f"KerasTransformer-{ops.uid()}"
    tf.RegisterGradient(name)(lambda _, *upstreams: held()(*upstreams))
    weakref.finalize(gradients, ops.gradient_registry._registry.pop, name)
    tensors = [*outputs, *inputs]
    with graph.gradient_override_map({"IdentityN": name}):
        copies = tf.identity_n(tensors)
    record.record_operation(name, copies, tensors, gradients)
    return tf.nest.pack_sequence_as(results, copies[: len(outputs)])


@contextlib.contextmanager
def integer_products_in_floats() -> Iterator[None]:
    """Makes Keras multiply int8 as float32 in the block, as LiteRT requires."""
    # Leans on keras/src/ops/numpy.py: matmul, which calls the patched function.
    # Float32 is exact below 2^24: for sums of up to 1,040 products.
    from keras.src import backend

    backend = getattr(backend, "ops", backend).numpy  # 3.16 has it in `ops`.
    multiply = backend.matmul

    def matmul(x1, x2):
        types = [keras.backend.standardize_dtype(x.dtype) for x in (x1, x2)]
        if types == ["int8", "int8"]:
            x1, x2 = (keras.ops.cast(x, "float32") for x in (x1, x2))
        return multiply(x1, x2)

    backend.matmul = matmul
    try:
        yield
    finally:
        backend.matmul = multiply


def converter_error() -> type[Exception]:
    """Returns the class of errors of a conversion to LiteRT."""
    # Leans on tensorflow/lite/python/convert_phase.py: ConverterError.
    from tensorflow.lite.python.convert_phase import ConverterError

    return ConverterError


def without_large_constants(converter):
    """Makes a LiteRT converter write fills in place of empty caches."""
    # Leans on tensorflow/lite/python/lite.py: TFLiteConverterBase.__init__.
    converter._experimental_unfold_large_splat_constant = True


def loss_tracker(model):
    """Returns the metric of the `loss` in the logs."""
    # Leans on keras/src/trainers/trainer.py: Trainer.compile.
    return model._loss_tracker


def loss_weights(model) -> list | None:
    """Returns the `loss_weights` of `compile`, flat; `None` without a loss."""
    # Leans on keras/src/trainers/trainer.py: Trainer.compile.
    # Leans on keras/src/trainers/compile_utils.py: CompileLoss.__init__.
    compiled = model._compile_loss
    return None if compiled is None else keras.tree.flatten(compiled._user_loss_weights)


def inner_optimizer(optimizer):
    """Returns the optimizer within a `LossScaleOptimizer`, or the optimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def compiled_metrics(model) -> list:
    """Returns the metrics of `compile`, weighted ones included, flat."""
    # Leans on keras/src/trainers/trainer.py: Trainer.compile.
    # Leans on keras/src/trainers/compile_utils.py: CompileMetrics.__init__.
    compiled = model._compile_metrics
    if compiled is None:
        return []
    given = (compiled._user_metrics, compiled._user_weighted_metrics)
    return list(filter(None, keras.tree.flatten(given)))


def layout_of(variable):
    """Returns the layout of a variable over devices, or `None`."""
    # Leans on keras/src/backend/jax/core.py: JaxVariable._initialize_layout.
    return getattr(variable, "_layout", None)


def adam_moments(optimizer, variable) -> tuple:
    """Returns Adam's first and second moment of a weight."""
    # Leans on keras/src/optimizers/base_optimizer.py: _get_variable_index.
    # Leans on keras/src/optimizers/adam.py: Adam.build.
    place = optimizer._get_variable_index(variable)
    return optimizer._momentums[place], optimizer._velocities[place]


def clipped_by(optimizer, gradients) -> list:
    """Returns gradients, none of them `None`, clipped as the optimizer does."""
    # Leans on keras/src/optimizers/base_optimizer.py: _clip_gradients.
    return optimizer._clip_gradients(gradients)


class ToldWhenBuilt:
    """Mixin, before a Keras layer or model, that calls `when_built` after `build`."""

    # Leans on keras/src/layers/layer.py: Layer.__new__, which wraps `build`.

    def _post_build(self):
        super()._post_build()
        self.when_built()


class BuildsFromSpec:
    """Mixin, before `keras.Model`, that builds metrics and loss without reading data.

    Keras' way fails with workers: https://github.com/keras-team/keras/issues/20585.
    Elsewhere it reads the first batches of a `tf.data.Dataset` twice.
    """

    # Leans on keras/src/backend/tensorflow/trainer.py: _maybe_symbolic_build.
    # Leans on keras/src/trainers/trainer.py: Trainer._symbolic_build.

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            data_batch = iterator.data_adapter.get_tf_dataset().element_spec
        super()._maybe_symbolic_build(data_batch=data_batch)

    def _symbolic_build(self, iterator=None, data_batch=None):
        from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

        if iterator is not None and isinstance(iterator.data_adapter, TFDatasetAdapter):
            specs = iterator.data_adapter.get_tf_dataset().element_spec
            if all(spec.shape.rank is not None for spec in keras.tree.flatten(specs)):
                data_batch = keras.tree.map_structure(_of_known_sizes, specs)
        super()._symbolic_build(iterator=iterator, data_batch=data_batch)


def build_for(model, data_batch):
    """Makes what Keras makes for the first batch, given as `KerasTensor`s."""
    # Leans on keras/src/trainers/trainer.py: Trainer._symbolic_build.
    model._symbolic_build(data_batch=data_batch)


def _of_known_sizes(spec):
    """Returns a tensor of a specification; any sizes will do where it has none."""
    # JAX's attention in blocks needs known ones.
    shape = [8 if size is None else size for size in spec.shape]
    return keras.KerasTensor(shape, keras.backend.standardize_dtype(spec.dtype))


def cancellation_of_graphs() -> tuple:
    """Returns what ends graphs by `start_cancel`, and the context that they run in."""
    # Leans on tensorflow/python/eager/cancellation.py: CancellationManager.
    from tensorflow.python.eager import cancellation

    manager = cancellation.CancellationManager()
    return manager, cancellation.CancellationManagerContext(manager)


def layers_within(layer) -> list:
    """Returns all layers within a layer or model, at any depth."""
    # Leans on keras/src/layers/layer.py: Layer._flatten_layers.
    return layer._flatten_layers(include_self=False)
