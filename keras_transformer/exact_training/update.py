"""The rule that says what becomes of a batch, and the sums and counters it changes."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.keras_private import layout_of


class Verdict(NamedTuple):
    """What becomes of a batch: boolean scalars, but for the last two."""

    applies: Any  # its gradient is part of an update
    updates: Any  # the weights change after it
    counts: Any  # its loss and metrics are part of the logs
    is_bad: Any  # its loss or gradient is not finite
    batches: Any  # since the last update, an integer
    targets: Any  # of these batches, float32


class UpdateState:
    """Variables of a training that are not the optimizer's.

    An update takes `steps` batches; with `stops` all after a bad one change nothing.
    """

    def __init__(self, optimizer, weights, steps, stops):
        self.steps, self.stops = steps, stops
        adapts = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.scaling = optimizer if adapts else None
        self.nonfinite_batches = _zeros("nonfinite_batches", "int")
        self.held = _zeros("held_batches", "int")  # from the bad one on
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
        """Returns the `Verdict` on a batch, from sums over all replicas."""
        # `norm` is that of the gradient, in the scale of the optimizer.
        goes_on, has_loss = ops.equal(self.held, 0), ops.isfinite(loss)
        is_fine = ops.isfinite(loss + norm)
        if self.scaling is not None:
            # In float16 the loss may be scaled too much. The optimizer then halves the
            # scale and changes nothing else: Micikevicius et al., 2018, section 3.2.
            is_fine |= has_loss & (self.scaling.dynamic_scale > 1.0)
        applies = goes_on & is_fine & (targets > 0)
        targets = self.targets + ops.where(applies, targets, 0.0)
        batches = (self.batches + ops.cast(goes_on, self.batches.dtype)) % self.steps
        updates = goes_on & ops.equal(batches, 0) & (targets > 0)
        counts, is_bad = goes_on & has_loss, goes_on & ~is_fine
        return Verdict(applies, updates, counts, is_bad, batches, targets)

    def mean_gradient(self, gradients, targets, scale):
        """Returns the gradients of one batch, or the mean over an update's targets."""
        # It is in the scale of the optimizer, as the gradients are.
        if not self.sums:
            return gradients
        return [total.value / (targets / scale) for total in self.sums]

    def note(self, verdict):
        """Counts a batch, after its update."""
        self.batches.assign(verdict.batches)
        self.targets.assign(ops.where(verdict.updates, 0.0, verdict.targets))
        is_bad = ops.cast(verdict.is_bad, self.held.dtype)
        self.nonfinite_batches.assign_add(is_bad)
        if self.stops:
            is_held = ops.cast(ops.greater(self.held, 0), is_bad.dtype)
            self.held.assign_add(is_held + is_bad)


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
