"""The training and test step of `ExactTraining` on PyTorch."""

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
    halve_scale,
    is_too_large,
)
from keras_transformer.kernels.keras_private import loss_tracker


def train_step(model, data):
    """Trains on a batch.

    Args:
        model: An `ExactTraining` model.
        data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        The logs, a dictionary of scalars.
    """
    import torch

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    model.zero_grad()
    loss, y_pred = loss_and_scores(model, x, y, sample_weight, training=True)
    model.optimizer.scale_loss(loss).backward()
    with torch.no_grad():
        divisor = model.loss_divisor(y)
        gradients = [weight.value.grad for weight in model.trainable_weights]
        _update(model, loss, divisor, gradients)
        if torch.isfinite(loss):
            loss_tracker(model).update_state(loss, sample_weight=divisor)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return model.get_metrics_result()


def _update(model, loss, divisor, gradients):
    """Accumulates and applies the gradients."""
    state, steps = model._update_state, model.gradient_accumulation_steps
    norm = global_norm(gradients)
    is_nonfinite = bool(not_finite(loss + norm))
    should_apply = not is_nonfinite and bool(divisor > 0)
    scale = None
    if adapts_scale(model.optimizer):
        scale = model.optimizer.scale_loss(1.0)
        if bool(is_too_large(scale, not_finite(loss) > 0, is_nonfinite)):
            halve_scale(model.optimizer)
            is_nonfinite = False
    state.nonfinite_batches.assign_add(int(is_nonfinite))
    if steps > 1:
        state.batches.assign((state.batches.value + 1) % steps)
        if should_apply:
            state.divisor.assign_add(divisor)
            for total, gradient in zip(state.gradients, gradients, strict=True):
                if gradient is not None:
                    factor = divisor if scale is None else divisor / scale
                    total.value.add_(gradient.float() * factor)
        should_apply = int(state.batches.value) == 0 and bool(state.divisor.value > 0)
        if not should_apply:
            return
        gradients = [total.value / state.divisor.value for total in state.gradients]
        if scale is not None:
            gradients = [model.optimizer.scale_loss(g) for g in gradients]
        norm = None if model.global_clipnorm is None else global_norm(gradients)
    if should_apply:
        gradients = clipped(gradients, norm, clip_limit(model))
        model.optimizer.apply(gradients, model.trainable_weights)
    for variable in (state.divisor, *state.gradients) if steps > 1 else ():
        variable.assign(ops.zeros_like(variable))


def test_step(model, data):
    """Evaluates a batch.

    Args:
        model: An `ExactTraining` model.
        data: `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        The logs, a dictionary of scalars.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, y_pred = loss_and_scores(model, x, y, sample_weight, training=False)
    loss_tracker(model).update_state(loss, sample_weight=model.loss_divisor(y))
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
