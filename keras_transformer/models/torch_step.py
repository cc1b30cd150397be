"""The training and the test step of `ExactTraining` on PyTorch."""

from __future__ import annotations

import functools

from keras_transformer.models.batch_step import batch_loss, global_norm
from keras_transformer.nn.arguments import without_known_values


def _unread(step):
    """Makes a step one that reads no target ids, as where it is compiled."""

    @functools.wraps(step)
    def without_waiting(model, data):
        import torch

        if torch.compiler.is_compiling():
            return step(model, data)
        with without_known_values():
            return step(model, data)

    return without_waiting


@_unread
def train_step(model, data):
    """Trains on a batch and returns the logs."""
    import torch

    update = model._update
    optimizer = model.optimizer
    weights = model.trainable_weights
    model.zero_grad()
    loss, targets, update_metrics = batch_loss(model, data, training=True)
    optimizer.scale_loss(loss).backward()
    with torch.no_grad():
        gradients = [
            torch.zeros_like(w.value) if w.value.grad is None else w.value.grad
            for w in weights
        ]
        verdict = update.judge(loss, global_norm(gradients), targets)
        # Together, because each read waits for the device.
        flags = [verdict.applies, verdict.updates, verdict.counts]
        applies, updates, counts = torch.stack(flags).tolist()
        scale = optimizer.scale_loss(1.0)
        if applies:
            share = targets / scale
            for total, gradient in zip(update.sums, gradients, strict=False):
                total.value.add_(gradient.float() * share)
        if updates:
            means = update.mean_gradient(gradients, verdict.targets, scale)
            optimizer.apply(means, weights)
            for total in update.sums:
                total.value.zero_()
        update.note(verdict)
        return update_metrics() if counts else model.get_metrics_result()


@_unread
def test_step(model, data):
    """Evaluates a batch and returns the logs."""
    return batch_loss(model, data, training=False)[-1]()
