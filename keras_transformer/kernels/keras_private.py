"""The one door to names of Keras and TensorFlow that are not public.

Each serves what has no public way. When a release moves one, the test of this module
names it; nothing else in the package uses such a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras


def carried_mask(tensor):
    """Returns the mask (B, S) that Keras attached to a tensor, or `None`."""
    from keras.src import backend

    # Tensors of JAX hold no attribute, so Keras keeps their masks elsewhere.
    return backend.get_keras_mask(tensor)


def learns_shapes() -> bool:
    """Whether Keras runs a call only for the shapes, with floats in every place."""
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    return in_symbolic_scope()


def attention_projections(layer) -> dict:
    """Returns the dense layers of one of Keras' attention layers, by their use."""
    names = ("query", "key", "value", "output")
    return {name: getattr(layer, f"_{name}_dense") for name in names}


def has_own_attention(layer) -> bool:
    """Whether an attention layer's class replaces how Keras' own attends."""
    kinds = keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention
    base = next(kind for kind in kinds if isinstance(layer, kind))
    names = ("_compute_attention", "_compute_attention_mask", "_masked_softmax")
    return any(
        getattr(type(layer), n, None) is not getattr(base, n, None) for n in names
    )


def is_in_xla_graph() -> bool:
    """Whether XLA will compile the TensorFlow graph that is being traced."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


@contextlib.contextmanager
def integer_products_in_floats() -> Iterator[None]:
    """In the block Keras multiplies 8-bit integers as floats, which LiteRT needs."""
    # Sums of up to 1,040 products are below 2^24, where float32 is exact.
    from keras.src.backend.tensorflow import numpy as backend

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
    """Returns the class of the error of a conversion to LiteRT that fails."""
    from tensorflow.lite.python.convert_phase import ConverterError

    return ConverterError


def without_large_constants(converter):
    """Makes a converter to LiteRT write a fill in place of a tensor of one value."""
    # With fixed shapes, every empty cache would else be in the file as so many zeros.
    converter._experimental_unfold_large_splat_constant = True


def loss_tracker(model):
    """Returns the metric whose mean is the `loss` in the logs."""
    return model._loss_tracker


def loss_weights(model) -> list | None:
    """Returns the `loss_weights` given to `compile`, flat; `None` without a loss."""
    compiled = model._compile_loss
    return None if compiled is None else keras.tree.flatten(compiled._user_loss_weights)


def compiled_metrics(model) -> list:
    """Returns the metrics given to `compile`, weighted ones too, flat."""
    compiled = model._compile_metrics
    if compiled is None:
        return []
    given = (compiled._user_metrics, compiled._user_weighted_metrics)
    return list(filter(None, keras.tree.flatten(given)))


def layout_of(variable):
    """Returns how a variable is laid out over devices, or `None`."""
    return getattr(variable, "_layout", None)


def adam_moments(optimizer, variable) -> tuple:
    """Returns Adam's variables of a weight: its first and its second moment."""
    place = optimizer._get_variable_index(variable)
    return optimizer._momentums[place], optimizer._velocities[place]


def clipped_by(optimizer, gradients) -> list:
    """Clips gradients as the optimizer's own options ask; none may be `None`."""
    return optimizer._clip_gradients(gradients)


class BuildsFromSpec:
    """Mixin before `keras.Model`: its metrics and loss are built without reading data.

    Keras' way fails with workers (https://github.com/keras-team/keras/issues/20585).
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            data_batch = iterator.data_adapter.get_tf_dataset().element_spec
        super()._maybe_symbolic_build(data_batch=data_batch)


def keras_hub_parts(layer) -> dict:
    """Returns the sub-layers of a Transformer layer of KerasHub, by our names."""
    # "hidden" and "output" are the feed-forward network's; `None` stands for none.
    names = {
        "self_attention": "_self_attention_layer",
        "self_attention_norm": "_self_attention_layer_norm",
        "cross_attention": "_cross_attention_layer",
        "cross_attention_norm": "_cross_attention_layer_norm",
        "hidden": "_feedforward_intermediate_dense",
        "output": "_feedforward_output_dense",
        "feed_forward_norm": "_feedforward_layer_norm",
    }
    return {ours: getattr(layer, theirs, None) for ours, theirs in names.items()}


def layers_within(layer) -> list:
    """Returns the layers that a layer or model is made of, theirs too."""
    return layer._flatten_layers(include_self=False)
