"""The training and the test step of `ExactTraining` on PyTorch."""

from __future__ import annotations

import keras

from keras_transformer.exact_training.loss import loss_and_scores
from keras_transformer.exact_training.update import global_norm, mean_gradient
from keras_transformer.kernels.keras_private import loss_tracker


def train_step(model, data):
    """Trains on a batch and returns the logs."""
    import torch

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    update, optimizer, weights = model._update, model.optimizer, model.trainable_weights
    model.zero_grad()
    loss, y_pred = loss_and_scores(model, x, y, sample_weight, training=True)
    optimizer.scale_loss(loss).backward()
    with torch.no_grad():
        gradients = [
            torch.zeros_like(w.value) if w.value.grad is None else w.value.grad
            for w in weights
        ]
        targets, norm = model.loss_divisor(y), global_norm(gradients)
        verdict = update.judge(loss, norm, targets)
        # All at once: each reading waits for the device.
        applies, updates, counts = torch.stack(verdict[:3]).tolist()
        total = gradients, None, norm
        if update.sums:
            total = [variable.value for variable in update.sums], verdict.targets
        if update.sums and applies:
            share = targets / optimizer.scale_loss(1.0)
            for one, gradient in zip(total[0], gradients, strict=True):
                one.add_(gradient.float() * share)
        if updates:
            optimizer.apply(mean_gradient(model, *total), weights)
            for variable in update.sums:
                variable.value.zero_()
        update.note(verdict)
        if counts:
            loss_tracker(model).update_state(loss, sample_weight=targets)
            model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
    return model.get_metrics_result()


def test_step(model, data):
    """Evaluates a batch and returns the logs."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, y_pred = loss_and_scores(model, x, y, sample_weight, training=False)
    loss_tracker(model).update_state(loss, sample_weight=model.loss_divisor(y))
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
