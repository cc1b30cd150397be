"""The one door to names of Keras and TensorFlow that are not public.

Each serves what has no public way. When a release moves one, the test of this module
names it; nothing else in the package uses such a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras


def keras_mask(tensor):
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
    names = ["query", "key", "value", "output"]
    if layer.get_config()["use_gate"]:
        names.insert(3, "gate")
    return {name: getattr(layer, f"_{name}_dense") for name in names}


def has_own_attention(layer) -> bool:
    """Whether an attention layer's class replaces how Keras' own attends."""
    if isinstance(layer, keras.layers.GroupQueryAttention):
        base = keras.layers.GroupQueryAttention
    else:
        base = keras.layers.MultiHeadAttention
    names = ("_compute_attention", "_compute_attention_mask", "_masked_softmax")
    return any(
        getattr(type(layer), name, None) is not getattr(base, name, None)
        for name in names
    )


def is_in_xla_graph() -> bool:
    """Whether XLA will compile the TensorFlow graph that is being traced."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def converter_error() -> type[Exception]:
    """Returns the class of the error of a conversion to LiteRT that fails."""
    from tensorflow.lite.python.convert_phase import ConverterError

    return ConverterError


def without_large_constants(converter):
    """Makes a converter to LiteRT write a fill in place of a tensor of one value.

    With fixed shapes, every empty cache would else be in the file as so many zeros.
    """
    converter._experimental_unfold_large_splat_constant = True


def litert_tensor_names(content: bytes) -> dict[str, bytes]:
    """Returns the tensor's name of each input and output of a LiteRT file.

    Args:
        content: A file with one signature.

    Returns:
        The names of tensors by those that the signature has for them.
    """
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.Model.GetRootAs(content)
    signature = model.SignatureDefs(0)
    graph = model.Subgraphs(signature.SubgraphIndex())
    entries = [
        *(signature.Inputs(i) for i in range(signature.InputsLength())),
        *(signature.Outputs(i) for i in range(signature.OutputsLength())),
    ]
    return {
        entry.Name().decode(): graph.Tensors(entry.TensorIndex()).Name()
        for entry in entries
    }


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
    return [metric for metric in keras.tree.flatten(given) if metric is not None]


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


def averages_of(optimizer) -> list[tuple]:
    """Returns each trainable weight with its moving average, of a built optimizer."""
    averages = optimizer._model_variables_moving_average
    return list(zip(optimizer._trainable_variables, averages, strict=True))


class BuildsFromSpec:
    """Mixin before `keras.Model`: its metrics and loss are built without reading data.

    Keras takes the mean of a batch over the workers for that, of the whole structure,
    which fails (https://github.com/keras-team/keras/issues/20585).
    """

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None:
            data_batch = iterator.data_adapter.get_tf_dataset().element_spec
        super()._maybe_symbolic_build(data_batch=data_batch)


def keras_hub_parts(layer) -> dict:
    """Returns the sub-layers of an encoder or decoder layer of KerasHub.

    Args:
        layer: `keras_hub.layers.TransformerEncoder` or `TransformerDecoder`.

    Returns:
        The layers by the names that ours have, "hidden" and "output" of the
        feed-forward network; `None` for what it lacks.
    """
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


def untrack(layer, variable):
    """Makes a layer forget a variable; `del` would also collect all garbage."""
    layer._untrack_variable(variable)


class CountsAsOneLayer:
    """Mixin before a Keras layer that owns matrices and holds other layers as well.

    `keras.Model.quantize` only asks layers that hold none.
    """

    def _flatten_layers(self, include_self=True, recursive=True):
        if include_self and recursive:
            return [self]
        return super()._flatten_layers(include_self, recursive)


@contextlib.contextmanager
def unlocked(layer) -> Iterator[None]:
    """Lets a built layer be given more weights in the block."""
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()
