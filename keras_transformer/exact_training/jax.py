"""The training and test step of `ExactTraining` on JAX, as pure functions."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.exact_training.gradients import (
    clip_limit,
    clipped,
    global_norm,
    not_finite,
)
from keras_transformer.exact_training.loss import loss_and_scores
from keras_transformer.exact_training.loss_scale import (
    adapts_scale,
    is_too_large,
    stateless_halve,
    stateless_scale,
)
from keras_transformer.exact_training.nonfinite import held_after
from keras_transformer.kernels.keras_private import loss_tracker


def train_step(model, state, data):
    """Trains on a batch, as a pure function.

    Args:
        model: An `ExactTraining` model.
        state: Values of its trainable, non-trainable, optimizer and metric variables.
        data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        The logs, a dictionary of scalars, and the new state.
    """
    import jax

    weights, others, moments, metrics = state
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    gradient_of = jax.value_and_grad(_loss, argnums=1, has_aux=True)
    (_, (loss, logs, others, new_metrics, divisor)), gradients = gradient_of(
        model, weights, others, metrics, x, y, sample_weight, moments
    )
    norm = global_norm(gradients)
    is_nonfinite = not_finite(loss + norm) > 0
    should_apply = ops.logical_and(ops.logical_not(is_nonfinite), divisor > 0)
    size = len(model._update_state.variables)
    others, (counter, held, *accumulated) = others[:-size], others[-size:]
    is_held = held > 0
    should_apply = ops.logical_and(should_apply, ops.logical_not(is_held))
    if adapts_scale(model.optimizer):
        scale = stateless_scale(model.optimizer, moments, 1.0)
        too_large = is_too_large(scale, not_finite(loss) > 0, is_nonfinite)
        too_large = ops.logical_and(too_large, ops.logical_not(is_held))
        lower = stateless_halve(model.optimizer, moments)
        moments = _choose(too_large, lower, moments)
        is_nonfinite = ops.logical_and(is_nonfinite, ops.logical_not(too_large))
    is_bad = ops.logical_and(is_nonfinite, ops.logical_not(is_held))
    counter = counter + ops.cast(is_bad, counter.dtype)
    if model.gradient_accumulation_steps == 1:
        new = _apply(model, weights, moments, gradients, norm)
        # XLA fuses the choice with the update, so that it costs nothing.
        weights, moments = _choose(should_apply, new, (weights, moments))
    else:
        share = ops.where(should_apply, divisor, 0.0)
        if adapts_scale(model.optimizer):
            gradients = [g / scale for g in gradients]
        weights, moments, accumulated = _accumulate(
            model, weights, moments, accumulated, gradients, share, is_held
        )
    keeps = ops.logical_or(not_finite(loss) > 0, is_held)
    metrics = _choose(keeps, metrics, new_metrics)
    held = held_after(held, is_nonfinite)
    return logs, (weights, [*others, counter, held, *accumulated], moments, metrics)


def _apply(model, weights, moments, gradients, norm):
    """The weights and the optimizer's variables after an update."""
    longest = clip_limit(model, moments)
    gradients = clipped(gradients, norm, longest)
    return model.optimizer.stateless_apply(moments, gradients, weights)


def _accumulate(model, weights, moments, accumulated, gradients, share, is_held):
    """Adds the gradients of `share` targets; applies the sum after the last batch."""
    import jax

    batches, divisor, *totals = accumulated
    counted = (batches + 1) % model.gradient_accumulation_steps
    is_last = ops.logical_and(ops.equal(counted, 0), ops.logical_not(is_held))
    batches = ops.where(is_held, batches, counted)
    divisor = divisor + share
    totals = [
        ops.where(share > 0, total + ops.cast(g, "float32") * share, total)
        for total, g in zip(totals, gradients, strict=True)
    ]

    def update():
        means = [total / divisor for total in totals]
        if adapts_scale(model.optimizer):
            means = [stateless_scale(model.optimizer, moments, m) for m in means]
        norm = None if model.global_clipnorm is None else global_norm(means)
        return _apply(model, weights, moments, means, norm)

    # A branch, because the update costs as much as many small batches.
    weights, moments = jax.lax.cond(
        ops.logical_and(is_last, divisor > 0), update, lambda: (weights, moments)
    )
    divisor, totals = _choose(is_last, _zeros((divisor, totals)), (divisor, totals))
    return weights, moments, [batches, divisor, *totals]


def test_step(model, state, data):
    """Evaluates a batch, as a pure function.

    Args:
        model: An `ExactTraining` model.
        state: Values of its trainable, non-trainable and metric variables.
        data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        The logs, a dictionary of scalars, and the new state.
    """
    weights, others, metrics = state
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    _, (_, logs, others, metrics, _) = _loss(
        model, weights, others, metrics, x, y, sample_weight
    )
    return logs, (weights, others, metrics)


def _loss(model, weights, others, metrics, x, y, sample_weight, moments=None):
    """Computes the loss; in training, with the optimizer's variables `moments`.

    Returns:
        The loss times the optimizer's scale, for the gradient; and the loss, the logs,
        the new values of the non-trainable and metric variables, and the divisor.
    """
    training = moments is not None
    variables = [
        model.trainable_variables, model.non_trainable_variables,
        model.metrics_variables,
    ]  # fmt: skip
    values = [*weights, *others, *metrics]
    mapping = zip(sum(variables, []), values, strict=True)
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        loss, y_pred = loss_and_scores(model, x, y, sample_weight, training)
        divisor = model.loss_divisor(y)
        loss_tracker(model).update_state(loss, sample_weight=divisor)
        logs = model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    others, metrics = (
        [scope.get_current_value(v) for v in group] for group in variables[1:]
    )
    scaled = loss
    if training:
        scaled = stateless_scale(model.optimizer, moments, loss)
    return scaled, (loss, logs, others, metrics, divisor)


def _choose(condition, new, old):
    return keras.tree.map_structure(lambda n, o: ops.where(condition, n, o), new, old)


def _zeros(structure):
    return keras.tree.map_structure(ops.zeros_like, structure)
