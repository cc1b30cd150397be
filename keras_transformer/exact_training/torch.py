"""The training and test step of `ExactTraining` on PyTorch."""

from __future__ import annotations

from typing import NamedTuple

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
        if _update(model, loss, divisor, gradients):
            loss_tracker(model).update_state(loss, sample_weight=divisor)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return model.get_metrics_result()


class _Figures(NamedTuple):
    """What decides about a batch; the last three are those before it."""

    loss_is_nonfinite: float
    is_nonfinite: float
    is_too_large: float
    divisor: float
    held: float
    batches: float
    accumulated: float


def _figures(model, loss, norm, divisor):
    """Reads all figures at once: each reading waits for the device."""
    import torch

    state, scaled = model._update_state, adapts_scale(model.optimizer)
    flags = not_finite(loss), not_finite(loss + norm)
    too_large = False
    if scaled:
        scale = model.optimizer.scale_loss(1.0)
        too_large = is_too_large(scale, flags[0] > 0, flags[1] > 0)
    accumulated = [0, 0] if state.batches is None else [state.batches, state.divisor]
    tensors = [*flags, too_large, divisor, state.held, *accumulated]
    tensors = [ops.cast(ops.convert_to_tensor(t), "float32") for t in tensors]
    return _Figures(*torch.stack(tensors).tolist())


def _update(model, loss, divisor, gradients):
    """Accumulates and applies the gradients.

    Returns:
        Whether the batch counts in the metrics.
    """
    state = model._update_state
    norm = global_norm(gradients)
    figures = _figures(model, loss, norm, divisor)
    if figures.held > 0:
        state.held.assign_add(1)
        return False
    if figures.is_too_large:
        halve_scale(model.optimizer)
    elif figures.is_nonfinite:
        state.nonfinite_batches.assign_add(1)
        state.held.assign_add(int(figures.held == 0))
    should_apply = not figures.is_nonfinite and figures.divisor > 0
    if model.gradient_accumulation_steps > 1:
        _accumulate(model, figures, divisor, gradients if should_apply else None)
    elif should_apply:
        _apply(model, gradients, norm)
    return not figures.loss_is_nonfinite


def _accumulate(model, figures, divisor, gradients):
    """Adds gradients, if there are any; applies the sum after the last batch."""
    state, optimizer = model._update_state, model.optimizer
    scales, accumulated = adapts_scale(optimizer), figures.accumulated
    if gradients is not None:
        accumulated += figures.divisor
        state.divisor.assign_add(divisor)
        factor = divisor / optimizer.scale_loss(1.0) if scales else divisor
        for total, gradient in zip(state.gradients, gradients, strict=True):
            if gradient is not None:
                total.value.add_(gradient.float() * factor)
    batches = (int(figures.batches) + 1) % model.gradient_accumulation_steps
    state.batches.assign(batches)
    if batches or not accumulated > 0:
        return
    means = [total.value / state.divisor.value for total in state.gradients]
    if scales:
        means = [optimizer.scale_loss(mean) for mean in means]
    _apply(model, means, None if model.global_clipnorm is None else global_norm(means))
    for variable in (state.divisor, *state.gradients):
        variable.assign(ops.zeros_like(variable))


def _apply(model, gradients, norm):
    """Clips and applies the mean gradient."""
    gradients = clipped(gradients, norm, clip_limit(model))
    model.optimizer.apply(gradients, model.trainable_weights)


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
