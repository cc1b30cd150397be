"""The training and the test step of `ExactTraining` on JAX, as pure functions."""

from __future__ import annotations

import itertools

import keras
from keras import ops

from keras_transformer.exact_training.loss import loss_and_scores
from keras_transformer.exact_training.update import global_norm, mean_gradient
from keras_transformer.kernels.keras_private import loss_tracker


def train_step(model, state, data):
    """Trains on a batch; returns the logs and the new values of all variables.

    `state` is those of the trainable, other, optimizer's and metrics' variables.
    """
    import jax

    weights, others, moments, metrics = state
    update, optimizer = model._update, model.optimizer

    def scaled_loss(weights):
        loss, *rest = _evaluate(model, (weights, others, metrics), data, training=True)
        with _scope(optimizer.variables, moments):
            return optimizer.scale_loss(loss), (loss, *rest)

    (_, found), gradients = jax.value_and_grad(scaled_loss, has_aux=True)(weights)
    loss, targets, logs, others, new_metrics = found
    norm, total = global_norm(gradients), (gradients, None)
    variables = [*model.non_trainable_variables, *optimizer.variables]
    with _scope(variables, [*others, *moments]) as scope:
        verdict = update.judge(loss, norm, targets)
        if update.sums:
            share = targets / optimizer.scale_loss(1.0)
            more = [ops.cast(gradient, "float32") * share for gradient in gradients]
            pairs = [(s.value, s + m) for s, m in zip(update.sums, more, strict=True)]
            sums = [ops.where(verdict.applies, new, old) for old, new in pairs]
            norm, total = None, (sums, verdict.targets)
            for variable, value in zip(update.sums, sums, strict=True):
                variable.assign(ops.where(verdict.updates, 0.0, value))

        def apply():
            means = mean_gradient(model, *total, norm)
            return optimizer.stateless_apply(moments, means, weights)

        if update.sums:
            # A branch, because the update costs as much as many small batches.
            new = jax.lax.cond(verdict.updates, apply, lambda: (weights, moments))
        else:
            # XLA fuses the choice with the update, so that it costs nothing.
            new = _choose(verdict.updates, apply(), (weights, moments))
        for variable, value in zip(optimizer.variables, new[1], strict=True):
            variable.assign(value)
        update.note(verdict)
    others = _values(scope, model.non_trainable_variables)
    metrics = _choose(verdict.counts, new_metrics, metrics)
    return logs, (new[0], others, _values(scope, optimizer.variables), metrics)


def test_step(model, state, data):
    """Evaluates a batch; returns the logs and the new values of all variables."""
    _, _, logs, others, metrics = _evaluate(model, state, data, training=False)
    return logs, (state[0], others, metrics)


def _evaluate(model, state, data, training):
    """Returns loss, targets, logs, and the new other and metrics' values."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    others, metrics = model.non_trainable_variables, model.metrics_variables
    variables = [*model.trainable_variables, *others, *metrics]
    with _scope(variables, itertools.chain(*state)) as scope:
        loss, y_pred = loss_and_scores(model, x, y, sample_weight, training)
        targets = model.loss_divisor(y)
        loss_tracker(model).update_state(loss, sample_weight=targets)
        logs = model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return loss, targets, logs, _values(scope, others), _values(scope, metrics)


def _scope(variables, values):
    mapping = zip(variables, values, strict=True)
    return keras.StatelessScope(state_mapping=mapping, collect_losses=True)


def _values(scope, variables):
    return [scope.get_current_value(variable) for variable in variables]


def _choose(condition, new, old):
    return keras.tree.map_structure(lambda n, o: ops.where(condition, n, o), new, old)
