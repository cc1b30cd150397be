"""The one door to names of Keras and TensorFlow that are not public.

Each serves what has no public way. When a release moves one, the test of this module
names it; nothing else in the package uses such a name.
"""

from __future__ import annotations

import keras


def keras_mask(tensor):
    """Returns the mask (B, S) that Keras attached to a tensor, or `None`."""
    from keras.src import backend

    # Tensors of JAX hold no attribute, so Keras keeps their masks elsewhere.
    return backend.get_keras_mask(tensor)


def is_in_xla_graph() -> bool:
    """Whether XLA will compile the TensorFlow graph that is being traced."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)


def loss_tracker(model):
    """Returns the metric whose mean is the `loss` in the logs."""
    return model._loss_tracker


def compiled_losses(model) -> list | None:
    """Returns the losses of a compiled model that has met data; `None` before."""
    compiled = model._compile_loss
    if compiled is None or not compiled.built:
        return None
    return [part.loss for part in compiled._flat_losses]


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


def jax_state(model, kind) -> list | None:
    """Returns the newest values of a kind of variables, within `fit` on JAX.

    Args:
        model: A Keras model.
        kind: "trainable_variables", "non_trainable_variables", "optimizer_variables" or
            "metrics_variables".

    Returns:
        The values; `None` where the variables themselves are up to date.
    """
    state = getattr(model, "_jax_state", None)
    if state is None or model._jax_state_synced:
        return None
    return state.get(kind) or None


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
