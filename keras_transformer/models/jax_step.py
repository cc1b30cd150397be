"""The training and the test step of `ExactTraining` on JAX, as pure functions."""

from __future__ import annotations

import itertools

import keras
from keras import ops

from keras_transformer.models.batch_step import batch_loss, global_norm


def train_step(model, state, data):
    """Trains on a batch; returns logs and new values of all variables."""
    import jax

    # Values of trainable, other, optimizer's and metrics' variables.
    weights, others, moments, metrics = state
    update = model._update
    optimizer = model.optimizer

    def scaled_loss(weights):
        loss, *rest = _stateless_loss(
            model, (weights, others, metrics), data, training=True
        )
        with _scope(optimizer.variables, moments):
            return optimizer.scale_loss(loss), (loss, *rest)

    (_, found), gradients = jax.value_and_grad(scaled_loss, has_aux=True)(weights)
    loss, targets, logs, others, new_metrics = found
    old = weights, moments
    variables = [*model.non_trainable_variables, *optimizer.variables]
    with _scope(variables, [*others, *moments]) as scope:
        verdict = update.judge(loss, global_norm(gradients), targets)
        scale = optimizer.scale_loss(1.0)
        for total, gradient in zip(update.sums, gradients, strict=False):
            more = total + ops.cast(gradient, "float32") * (targets / scale)
            total.assign(ops.where(verdict.applies, more, total.value))

        def apply():
            means = update.mean_gradient(gradients, verdict.targets, scale)
            return optimizer.stateless_apply(moments, means, weights)

        if update.sums:
            # A branch: an update costs as much as many small batches.
            new = jax.lax.cond(verdict.updates, apply, lambda: old)
        else:
            # XLA fuses this choice with the update, at no cost.
            new = _choose(verdict.updates, apply(), old)
        for total in update.sums:
            total.assign(ops.where(verdict.updates, 0.0, total.value))
        for variable, value in zip(optimizer.variables, new[1], strict=True):
            variable.assign(value)
        update.note(verdict)
    others = _values(scope, model.non_trainable_variables)
    metrics = _choose(verdict.counts, new_metrics, metrics)
    return logs, (new[0], others, _values(scope, optimizer.variables), metrics)


def test_step(model, state, data):
    """Evaluates a batch; returns logs and new values of all variables."""
    _, _, logs, others, metrics = _stateless_loss(model, state, data, training=False)
    return logs, (state[0], others, metrics)


def _stateless_loss(model, state, data, training):
    """Returns loss, targets, logs and the new other and metrics' values."""
    others = model.non_trainable_variables
    metrics = model.metrics_variables
    variables = [*model.trainable_variables, *others, *metrics]
    with _scope(variables, itertools.chain(*state)) as scope:
        loss, targets, update_metrics = batch_loss(model, data, training)
        logs = update_metrics()
    return loss, targets, logs, _values(scope, others), _values(scope, metrics)


def _scope(variables, values):
    mapping = zip(variables, values, strict=True)
    return keras.StatelessScope(state_mapping=mapping, collect_losses=True)


def _values(scope, variables):
    return [scope.get_current_value(variable) for variable in variables]


def _choose(condition, new, old):
    return keras.tree.map_structure(lambda n, o: ops.where(condition, n, o), new, old)
