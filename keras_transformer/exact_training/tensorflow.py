"""The training and the test step of `ExactTraining` on TensorFlow, in each replica."""

from __future__ import annotations

import itertools

import keras
from keras import ops

from keras_transformer.exact_training import update as rule
from keras_transformer.exact_training.cores import num_parts
from keras_transformer.exact_training.loss import loss_and_scores, needs_logits
from keras_transformer.kernels.crossentropy import TokenScores
from keras_transformer.kernels.execution import num_replicas
from keras_transformer.kernels.keras_private import clipped_by, loss_tracker


def train_step(model, data):
    """Trains on a batch and returns the logs."""
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    context, update = tf.distribute.get_replica_context(), model._update
    is_alone = context.num_replicas_in_sync == 1
    targets = model.loss_divisor(y)
    total = targets if is_alone else _sum(context, targets)
    with tf.GradientTape() as tape:
        loss, y_pred = _loss_and_scores(model, x, y, sample_weight, True)
        share = 1.0 if is_alone or update.sums else targets / tf.maximum(total, 1.0)
        scaled = model.optimizer.scale_loss(loss * share)
    weights = model.trainable_weights
    # The loss may not depend on a weight; a lookup's gradient may have a row twice.
    gradients = [
        ops.zeros_like(weight) if gradient is None else tf.convert_to_tensor(gradient)
        for weight, gradient in zip(weights, tape.gradient(scaled, weights), strict=True)
    ]
    # A sum of squares in half precision would overflow.
    norm = tf.linalg.global_norm([tf.cast(g, "float32") for g in gradients])
    seen = (loss, norm) if is_alone else _sum(context, (loss, norm))
    verdict = update.judge(*seen, total)
    context.merge_call(_update, args=(model, verdict, gradients, targets, norm))

    def update_metrics():
        loss_tracker(model).update_state(loss, sample_weight=targets)
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    # One NaN would make the mean of the whole epoch NaN.
    tf.cond(verdict.counts, update_metrics, lambda: None)
    return _logs(model, context)


def test_step(model, data):
    """Evaluates a batch and returns the logs."""
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, y_pred = _loss_and_scores(model, x, y, sample_weight, False)
    loss_tracker(model).update_state(loss, sample_weight=model.loss_divisor(y))
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return _logs(model, tf.distribute.get_replica_context())


def _loss_and_scores(model, x, y, sample_weight, training):
    """As `loss_and_scores`, with the rows in parts that run side by side."""
    import tensorflow as tf

    parts = 1 if model.jit_compile or num_replicas() > 1 else num_parts()
    if parts == 1 or needs_logits(model):
        return loss_and_scores(model, x, y, sample_weight, training)
    num_rows = tf.shape(tf.nest.flatten(y)[0])[0]
    cuts = [num_rows * part // parts for part in range(parts + 1)]
    total, divisor, scores = 0.0, 0.0, []
    for rows in itertools.starmap(slice, itertools.pairwise(cuts)):
        part = keras.tree.map_structure(
            lambda t, rows=rows: None if t is None else t[rows], (x, y, sample_weight)
        )
        loss, of_part = loss_and_scores(model, *part, training)
        targets = model.loss_divisor(part[1])
        total, divisor = total + loss * targets, divisor + targets
        scores.append((of_part.crossentropy, of_part.correct))
    scores = [tf.concat(tensors, axis=0) for tensors in zip(*scores, strict=True)]
    return total / tf.maximum(divisor, 1.0), TokenScores(*scores)


def _update(strategy, model, verdict, gradients, targets, norm):
    """Accumulates and applies the gradients, once for all replicas.

    It runs outside the replicas, because a branch inside one cannot update the others.
    """
    import tensorflow as tf

    first = (strategy.experimental_local_results(value)[0] for value in verdict)
    verdict, in_replicas = rule.Verdict(*first), strategy.extended.call_for_each_replica

    def when(condition, function, *args):
        call = lambda: in_replicas(function, args=(model, *args))  # noqa: E731
        tf.cond(condition, call, lambda: None)

    if model._update.sums:
        when(verdict.applies, _accumulate, gradients, targets)
    when(verdict.updates, _apply, gradients, verdict.targets, norm)
    model._update.note(verdict)


def _accumulate(model, gradients, targets):
    share = targets / model.optimizer.scale_loss(1.0)
    for total, gradient in zip(model._update.sums, gradients, strict=True):
        total.value.assign_add(ops.cast(gradient, "float32") * share)


def _apply(model, gradients, targets, norm):
    """Clips and applies the mean gradient; Keras' optimizer sums it over replicas."""
    import tensorflow as tf

    context, sums = tf.distribute.get_replica_context(), model._update.sums
    if sums:
        gradients, norm = [variable.value for variable in sums], None
    else:
        targets = None
    replicas, inner = (
        context.num_replicas_in_sync,
        rule.inner_optimizer(model.optimizer),
    )
    clips = any((model.global_clipnorm, inner.clipnorm, inner.clipvalue))
    if replicas > 1 and clips:
        # Keras would clip the part of each replica. So each gives it an equal share of
        # the clipped sum, too small to be clipped again.
        means = rule.mean_gradient(model, _sum(context, gradients), targets)
        scale = model.optimizer.scale_loss(1.0)
        clipped = clipped_by(inner, [gradient / scale for gradient in means])
        means = [gradient * (scale / replicas) for gradient in clipped]
    else:
        means = rule.mean_gradient(model, gradients, targets, norm)
    model.optimizer.apply(means, model.trainable_weights)
    for variable in sums:
        variable.assign(ops.zeros_like(variable))


def _sum(context, values):
    """Sums over the replicas."""
    import tensorflow as tf

    devices = context.strategy.extended.worker_devices
    if len(devices) == 1:
        # With one device per worker, the strategy looks at each tensor's device.
        with tf.device(devices[0]):
            values = tf.nest.map_structure(tf.identity, values)
    return context.all_reduce("SUM", values)


def _logs(model, context):
    """The results of the metrics over all replicas."""
    import tensorflow as tf

    if context.num_replicas_in_sync == 1:
        return model.get_metrics_result()
    variables = model.metrics_variables
    totals = _sum(context, [variable.value for variable in variables])
    with keras.StatelessScope(state_mapping=zip(variables, totals, strict=True)):
        logs = model.get_metrics_result()
    if isinstance(context.strategy, tf.distribute.MultiWorkerMirroredStrategy):
        # It averages along the first axis: github.com/keras-team/keras/issues/20585
        logs = {name: ops.reshape(value, (1,)) for name, value in logs.items()}
    return logs
