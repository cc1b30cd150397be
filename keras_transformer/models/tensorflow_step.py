"""The training and the test step of `ExactTraining` on TensorFlow, in each replica."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.models.batch_step import Verdict, batch_loss
from keras_transformer.nn.kernels.keras_private import clipped_by, inner_optimizer


def train_step(model, data):
    """Trains on a batch and returns the logs."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    update = model._update
    with tf.GradientTape() as tape:
        loss, targets, update_metrics = batch_loss(model, data, training=True)
        total = _sum(context, targets)
        is_part = context.num_replicas_in_sync > 1 and not update.sums
        share = targets / tf.maximum(total, 1.0) if is_part else 1.0
        scaled = model.optimizer.scale_loss(loss * share)
    weights = model.trainable_weights
    gradients = tape.gradient(scaled, weights)
    for i, weight in enumerate(weights):
        # `None` if the loss does not depend on it; a lookup's may repeat rows.
        gradient = ops.zeros_like(weight) if gradients[i] is None else gradients[i]
        gradients[i] = tf.convert_to_tensor(gradient)
    # A sum of squares in half precision would overflow.
    wide = keras.tree.map_structure(lambda g: tf.cast(g, "float32"), gradients)
    norm = tf.linalg.global_norm(wide)
    verdict = update.judge(*_sum(context, (loss, norm)), total)
    context.merge_call(_update, args=(model, verdict, gradients, targets))

    def logs_so_far():
        if type(model).compute_metrics is keras.Model.compute_metrics:
            return model.get_metrics_result()
        with keras.StatelessScope():
            own = update_metrics()  # Its logs may have more names.
        return own | model.get_metrics_result()

    # One NaN would make the mean of the whole epoch NaN.
    logs = tf.cond(verdict.counts, update_metrics, logs_so_far)
    return _over_replicas(model, context, logs)


def test_step(model, data):
    """Evaluates a batch and returns the logs."""
    import tensorflow as tf

    logs = batch_loss(model, data, training=False)[-1]()
    return _over_replicas(model, tf.distribute.get_replica_context(), logs)


def _update(strategy, model, verdict, gradients, targets):
    """Accumulates and applies gradients for all replicas, outside of them."""
    import tensorflow as tf

    # The same in each replica.
    verdict = Verdict(*[strategy.experimental_local_results(x)[0] for x in verdict])
    run = strategy.extended.call_for_each_replica
    is_scaling = hasattr(model.optimizer, "inner_optimizer")
    if not (is_scaling or tf.distribute.has_strategy()):
        # In a replica, which scaling needs, Keras' sum makes TensorFlow keep the graph.
        run = _call
    if model._update.sums:
        own = (model, gradients, targets)
        tf.cond(verdict.applies, lambda: run(_accumulate, own), lambda: None)
    means = (model, gradients, verdict.targets)
    tf.cond(verdict.updates, lambda: run(_apply, means), lambda: None)
    model._update.note(verdict)


def _call(function, arguments):
    return function(*arguments)


def _accumulate(model, gradients, targets):
    share = targets / model.optimizer.scale_loss(1.0)
    for total, gradient in zip(model._update.sums, gradients, strict=True):
        total.value.assign_add(ops.cast(gradient, "float32") * share)


def _apply(model, gradients, targets):
    """Applies the mean gradient, which Keras sums over the replicas."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    optimizer = model.optimizer
    scale = optimizer.scale_loss(1.0)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    means = model._update.mean_gradient(gradients, targets, scale)
    if replicas > 1:
        # Keras clips and checks the scaled loss before it sums.
        inner = inner_optimizer(optimizer)
        needs_sum = inner.clipnorm or inner.clipvalue or inner.global_clipnorm
        if needs_sum or inner is not optimizer:
            # Equal shares of the clipped sum, too small to be clipped again.
            sums = [total / scale for total in _sum(context, means)]
            means = [g * (scale / replicas) for g in clipped_by(inner, sums)]
    optimizer.apply(means, model.trainable_weights)
    for total in model._update.sums:
        total.assign(ops.zeros_like(total))


def _sum(context, values):
    """Sums over the replicas."""
    import tensorflow as tf

    if context.num_replicas_in_sync == 1:
        return values
    devices = context.strategy.extended.worker_devices
    if len(devices) == 1:
        # With one device per worker, the strategy needs tensors on it.
        with tf.device(devices[0]):
            values = tf.nest.map_structure(tf.identity, values)
    return context.all_reduce("SUM", values)


def _over_replicas(model, context, logs):
    """Returns the metrics over all replicas."""
    import tensorflow as tf

    if context.num_replicas_in_sync == 1:
        return logs
    variables = model.metrics_variables
    totals = _sum(context, [variable.value for variable in variables])
    with keras.StatelessScope(state_mapping=zip(variables, totals, strict=True)):
        logs = logs | model.get_metrics_result()
    if isinstance(context.strategy, tf.distribute.MultiWorkerMirroredStrategy):
        # It averages the first axis: github.com/keras-team/keras/issues/20585
        logs = {name: ops.reshape(value, (1,)) for name, value in logs.items()}
    return logs
