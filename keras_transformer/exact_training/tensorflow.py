"""The training and test step of `ExactTraining` on TensorFlow, in each replica."""

from __future__ import annotations

import itertools

import keras
from keras import ops

from keras_transformer.exact_training.gradients import clip_limit, not_finite
from keras_transformer.exact_training.loss import loss_and_scores, scores_suffice
from keras_transformer.exact_training.loss_scale import (
    adapts_scale,
    halve_scale,
    inner_optimizer,
    is_too_large,
)
from keras_transformer.exact_training.nonfinite import held_after
from keras_transformer.exact_training.row_parts import num_parts
from keras_transformer.kernels.crossentropy import TokenScores
from keras_transformer.kernels.execution import num_replicas
from keras_transformer.kernels.keras_private import clipped_by, loss_tracker


def train_step(model, data):
    """Trains on a batch; runs in each replica.

    Args:
        model: An `ExactTraining` model.
        data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        The logs, a dictionary of scalars.
    """
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    context = tf.distribute.get_replica_context()
    replicated = context.num_replicas_in_sync > 1
    accumulated = model.gradient_accumulation_steps > 1
    is_held = tf.convert_to_tensor(model._update_state.held) > 0
    divisor = total = model.loss_divisor(y)
    if replicated:
        total = _sum(context, divisor)
    with tf.GradientTape() as tape:
        loss, y_pred = _loss_and_scores(model, x, y, sample_weight, True)
        share, factor = loss, None
        if accumulated and adapts_scale(model.optimizer):
            # The sums are of gradients without the scale, which may change between.
            factor = divisor / model.optimizer.dynamic_scale
        elif accumulated:
            share = loss * divisor
        elif replicated:
            share = loss * (divisor / tf.maximum(total, 1.0))
        share = model.optimizer.scale_loss(share)
    gradients = tape.gradient(share, model.trainable_weights)
    if replicated or accumulated:
        gradients = [g if g is None else tf.convert_to_tensor(g) for g in gradients]
    norm = _norm(gradients)
    flags = tf.stack([not_finite(loss), not_finite(loss + norm)])
    if replicated:
        flags = _sum(context, flags)
    context.merge_call(_update, args=(model, flags, total, gradients, norm, factor))

    def update_metrics():
        loss_tracker(model).update_state(loss, sample_weight=divisor)
        model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    # One NaN would make the mean of the whole epoch NaN.
    tf.cond(tf.logical_or(flags[0] > 0, is_held), lambda: None, update_metrics)
    return _logs(model, context)


def _loss_and_scores(model, x, y, sample_weight, training):
    """As `loss_and_scores`, with the rows in parts that run side by side."""
    parts = num_parts()
    whole = parts == 1 or model.jit_compile or num_replicas() > 1
    if whole or model.output_rows() is None or not scores_suffice(model):
        return loss_and_scores(model, x, y, sample_weight, training)
    import tensorflow as tf

    num_rows = tf.shape(tf.nest.flatten(y)[0])[0]
    cuts = [num_rows * part // parts for part in range(parts + 1)]
    total = divisor = 0.0
    scores = []
    for first, end in itertools.pairwise(cuts):
        rows = _rows((x, y, sample_weight), slice(first, end))
        loss, part_scores = loss_and_scores(model, *rows, training)
        part_divisor = model.loss_divisor(rows[1])
        total += loss * part_divisor
        divisor += part_divisor
        scores.append((part_scores.crossentropy, part_scores.correct))
    scores = [tf.concat(tensors, axis=0) for tensors in zip(*scores, strict=True)]
    return total / tf.maximum(divisor, 1.0), TokenScores(*scores)


def _rows(data, rows):
    """Takes some rows of each tensor of a structure."""
    return keras.tree.map_structure(lambda t: None if t is None else t[rows], data)


def _norm(gradients):
    """The norm of all gradients together, float32 whatever their types."""
    import tensorflow as tf

    # A sum of squares in half precision would overflow.
    wide = [g if g is None else tf.cast(g, "float32") for g in gradients]
    return tf.linalg.global_norm(wide)


def _sum(context, values):
    """Sums over the replicas."""
    import tensorflow as tf

    devices = context.strategy.extended.worker_devices
    if len(devices) == 1:
        # With one device per worker, the strategy looks at each tensor's device.
        with tf.device(devices[0]):
            values = tf.nest.map_structure(tf.identity, values)
    return context.all_reduce("SUM", values)


def _update(strategy, model, flags, total, gradients, norm, factor):
    """Accumulates and applies the gradients, once for all replicas.

    It runs outside the replicas, because a branch inside one cannot update the others.
    """
    import tensorflow as tf

    flags, total = (strategy.experimental_local_results(v)[0] for v in (flags, total))
    is_nonfinite = flags[1] > 0
    state = model._update_state
    held = tf.convert_to_tensor(state.held)
    goes_on = held <= 0
    should_apply = goes_on & tf.logical_not(is_nonfinite) & (total > 0)
    if adapts_scale(model.optimizer):
        scale = tf.convert_to_tensor(model.optimizer.dynamic_scale)
        too_large = goes_on & is_too_large(scale, flags[0] > 0, is_nonfinite)
        tf.cond(too_large, lambda: halve_scale(model.optimizer), lambda: None)
        is_nonfinite = tf.logical_and(is_nonfinite, tf.logical_not(too_large))
    state.nonfinite_batches.assign_add(tf.cast(is_nonfinite & goes_on, "int64"))
    state.held.assign(held_after(held, is_nonfinite))

    def when(condition, function, *args):
        def branch():
            strategy.extended.call_for_each_replica(function, args=(model, *args))

        tf.cond(condition, branch, lambda: None)

    if model.gradient_accumulation_steps == 1:
        when(should_apply, _apply, gradients, norm)
        return
    when(should_apply, _accumulate, gradients, factor)
    counted = (state.batches.value + 1) % model.gradient_accumulation_steps
    batches = tf.where(goes_on, counted, state.batches.value)
    divisor = state.divisor.value + tf.where(should_apply, total, 0.0)
    is_last = tf.equal(counted, 0) & goes_on
    when(tf.logical_and(is_last, divisor > 0), _apply_accumulated, divisor)
    state.batches.assign(batches)
    state.divisor.assign(tf.where(is_last, 0.0, divisor))


def _accumulate(model, gradients, factor):
    for total, gradient in zip(model._update_state.gradients, gradients, strict=True):
        if gradient is not None:
            gradient = ops.cast(gradient, "float32")
            total.value.assign_add(gradient if factor is None else gradient * factor)


def _apply_accumulated(model, divisor):
    totals = model._update_state.gradients
    means = [total.value / divisor for total in totals]
    if adapts_scale(model.optimizer):
        means = [model.optimizer.scale_loss(mean) for mean in means]
    _apply(model, means, None)
    for total in totals:
        total.assign(ops.zeros_like(total))


def _apply(model, gradients, norm):
    """Clips and applies the mean gradient; Keras' optimizer sums it over replicas."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    replicas, longest = context.num_replicas_in_sync, clip_limit(model)
    inner = inner_optimizer(model.optimizer)
    clips_itself = any((inner.clipnorm, inner.clipvalue))
    summed = replicas > 1 and (clips_itself or longest is not None)
    if summed:
        gradients, norm = _of_present(lambda g: _sum(context, g), gradients), None
    if longest is not None:
        norm = _norm(gradients) if norm is None else norm
        gradients, _ = tf.clip_by_global_norm(gradients, longest, norm)
    if summed:
        if clips_itself:
            gradients = _clipped_by(model.optimizer, gradients)
        gradients = [g if g is None else g / replicas for g in gradients]
    model.optimizer.apply(gradients, model.trainable_weights)


def _clipped_by(optimizer, gradients):
    """The gradients, each clipped as a Keras optimizer does.

    The optimizer would clip in each replica, before it sums. So each replica gives it
    an equal share of the clipped gradient, too small to be clipped again.
    """
    scale = optimizer.scale_loss(1.0)

    def clip(gradients):
        gradients = [gradient / scale for gradient in gradients]
        clipped = clipped_by(inner_optimizer(optimizer), gradients)
        return [gradient * scale for gradient in clipped]

    return _of_present(clip, gradients)


def _of_present(function, gradients):
    """Applies a function to the list of the gradients that are not `None`."""
    results = iter(function([g for g in gradients if g is not None]))
    return [None if g is None else next(results) for g in gradients]


def test_step(model, data):
    """Evaluates a batch; runs in each replica.

    Args:
        model: An `ExactTraining` model.
        data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        The logs, a dictionary of scalars.
    """
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, y_pred = _loss_and_scores(model, x, y, sample_weight, False)
    loss_tracker(model).update_state(loss, sample_weight=model.loss_divisor(y))
    model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return _logs(model, tf.distribute.get_replica_context())


def _logs(model, context):
    """The results of the metrics over all replicas.

    A multi-worker strategy averages the logs along their first axis, which a scalar
    does not have (https://github.com/keras-team/keras/issues/20585).
    """
    import tensorflow as tf

    if context.num_replicas_in_sync == 1:
        return model.get_metrics_result()
    variables = model.metrics_variables
    totals = _sum(context, [variable.value for variable in variables])
    with keras.StatelessScope(state_mapping=zip(variables, totals, strict=True)):
        logs = model.get_metrics_result()
    if isinstance(context.strategy, tf.distribute.MultiWorkerMirroredStrategy):
        logs = {name: ops.reshape(value, (1,)) for name, value in logs.items()}
    return logs
