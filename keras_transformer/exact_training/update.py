"""The rule that says what becomes of a batch, and the sums and counters it changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.keras_private import layout_of


class Verdict(NamedTuple):
    """What becomes of a batch: boolean scalars, but for the last two."""

    applies: Any  # Its gradient is part of an update.
    updates: Any  # The weights change after it.
    counts: Any  # Its loss and metrics are part of the logs.
    is_bad: Any  # Its loss or gradient is not finite.
    overflows: Any  # The gradient alone, since in float16 the loss was scaled too much.
    batches: Any  # Batches since the last update,
    targets: Any  # and their targets, float32.


class UpdateState:
    """Variables of a training with accumulation over `steps` batches.

    If it `stops` at a bad batch, that and all later ones are held: they change nothing.
    """

    def __init__(self, optimizer, weights, steps, stops):
        self.steps, self.stops = steps, stops
        # Without a scale small gradients are zero in float16: Micikevicius et al., 2018.
        adapts = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.scaling = optimizer if adapts else None
        self.nonfinite_batches = _zeros("nonfinite_batches", "int")
        self.held = _zeros("held_batches", "int")
        self.batches = _zeros("accumulated_batches", "int")
        self.targets = _zeros("accumulated_targets", "float32")
        # Each replica sums its own; the update adds them up.
        options = {"aggregation": "sum", "synchronization": "on_read"}
        self.sums = [
            _zeros("gradient", "float32", w.shape, layout=layout_of(w), **options)
            for w in (weights if steps > 1 else [])
        ]
        counters = [self.nonfinite_batches, self.held, self.batches, self.targets]
        self.variables = counters + self.sums

    def judge(self, loss, norm, targets):
        """Returns the `Verdict` on a batch, from sums over all replicas.

        `norm` is that of the gradient, in the scale of the optimizer.
        """
        goes_on = ops.equal(self.held, 0)
        has_loss, is_finite = ops.isfinite(loss), ops.isfinite(loss + norm)
        overflows = goes_on & has_loss & ~is_finite
        overflows &= False if self.scaling is None else self.scaling.dynamic_scale > 1
        applies = goes_on & is_finite & (targets > 0)
        targets = self.targets + ops.where(applies, targets, 0.0)
        batches = (self.batches + ops.cast(goes_on, self.batches.dtype)) % self.steps
        updates = goes_on & ops.equal(batches, 0) & (targets > 0)
        is_bad, counts = goes_on & ~is_finite & ~overflows, goes_on & has_loss
        return Verdict(applies, updates, counts, is_bad, overflows, batches, targets)

    def note(self, verdict):
        """Counts a batch after its update, and halves the scale if it was too large."""
        self.batches.assign(verdict.batches)
        self.targets.assign(ops.where(verdict.updates, 0.0, verdict.targets))
        is_bad = ops.cast(verdict.is_bad, self.held.dtype)
        self.nonfinite_batches.assign_add(is_bad)
        if self.stops:
            is_held = ops.cast(ops.greater(self.held, 0), is_bad.dtype)
            self.held.assign_add(is_held + is_bad)
        if self.scaling is not None:
            scale, counter = self.scaling.dynamic_scale, self.scaling.step_counter
            scale.assign(scale * ops.where(verdict.overflows, 0.5, 1.0))
            counter.assign(ops.where(verdict.overflows, 0, counter))


def _zeros(name, dtype, shape=(), aggregation="only_first_replica", **options):
    options |= {"trainable": False, "autocast": False, "aggregation": aggregation}
    return keras.Variable("zeros", shape, dtype, name=name, **options)


def inner_optimizer(optimizer):
    """Returns the optimizer that changes the weights, without the one that scales."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def global_norm(gradients):
    """Returns the norm of all gradients together, float32 whatever their types."""
    squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients]
    return ops.sqrt(ops.sum(ops.stack(squares)))


def mean_gradient(model, gradients, targets=None, norm=None):
    """Returns the clipped mean gradient, in the scale of the optimizer.

    `gradients` are means in that scale, and `norm` theirs; or sums over `targets`.
    """
    scale, longest = model.optimizer.scale_loss(1.0), model.global_clipnorm
    divisor = 1.0 if targets is None else targets / scale
    if longest is not None:
        norm = global_norm(gradients) if norm is None else norm
        divisor = ops.maximum(divisor, norm / (scale * longest))
    elif targets is None:
        return gradients
    return [gradient / ops.cast(divisor, gradient.dtype) for gradient in gradients]
