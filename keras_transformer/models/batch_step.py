"""The loss of a batch, in parts on several cores, and the verdict on it."""

from __future__ import annotations

import itertools
import os
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_transformer.nn.arguments import check_size
from keras_transformer.nn.kernels.crossentropy import TokenScores
from keras_transformer.nn.kernels.execution import num_replicas
from keras_transformer.nn.kernels.keras_private import (
    compiled_metrics,
    layout_of,
    loss_tracker,
    loss_weights,
    overrides,
)
from keras_transformer.nn.losses import MaskedAccuracy, MaskedCrossentropy, Perplexity

# Methods that training without logits does not call, or calls without logits.
_METHODS = ("call", "logits", "output_rows", "compute_loss", "compute_metrics")
# Parts that a batch is split into, one per processor core.
_num_parts = 1


def split_batches_over_cores(num_cores: int | None = None) -> int:
    """Splits each batch of `fit` and `evaluate` into parts, one per core.

    The parts run side by side, each operation on one core: faster than spreading the
    many small operations of a Transformer over all cores. The gradient is that of the
    whole batch up to rounding. Applies to models that train without logits, not to XLA
    and `tf.distribute`. Does nothing with a GPU.

    Args:
        num_cores: Parts of a batch; default the cores that the process may use.

    Returns:
        The number of parts.

    Raises:
        RuntimeError: If TensorFlow has already computed something.
        ValueError: If `num_cores` is not positive, or the backend is not TensorFlow.

    Example:
        >>> split_batches_over_cores()  # 2, on two cores
    """
    global _num_parts
    num_cores = available_cores() if num_cores is None else num_cores
    check_size("num_cores", num_cores)
    backend = keras.config.backend()
    if backend != "tensorflow":
        raise ValueError(f"The backend must be TensorFlow. Received: {backend=}")
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return _num_parts
    try:
        if num_cores > 1:
            tf.config.threading.set_intra_op_parallelism_threads(1)
            tf.config.threading.set_inter_op_parallelism_threads(num_cores)
    except RuntimeError as error:
        raise RuntimeError(
            "`split_batches_over_cores` sets the number of TensorFlow's threads: "
            "call it before anything is computed, models and data sets included."
        ) from error
    _num_parts = num_cores
    return _num_parts


def num_parts() -> int:
    """Returns the number of parts, 1 before `split_batches_over_cores`."""
    return _num_parts


def available_cores() -> int:
    """Returns the number of cores that the process may use."""
    can_ask = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if can_ask else os.cpu_count() or 1


def batch_loss(model, data, training):
    """Returns this replica's mean loss, number of targets, and a function of logs."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, y_pred = loss_and_scores(model, x, y, sample_weight, training)
    targets = model.loss_divisor(y)

    def update_metrics():
        loss_tracker(model).update_state(loss, sample_weight=targets)
        return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    return loss, targets, update_metrics


def loss_and_scores(model, x, y, sample_weight, training):
    """Returns this replica's mean loss, and the output or `TokenScores` for metrics."""
    rows = None if model._needs_logits else model.output_rows()
    if rows is None:
        y_pred = model(x, training=training)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=training)
        # Keras divides by it; here replicas are weighted by their targets.
        return loss * num_replicas(), y_pred

    def of_part(x, y, sample_weight):
        states = model(x, training=training, return_states=True)
        loss, scores = model.loss.from_states(
            y, states, rows, sample_weight, training, model.output_bias
        )
        return sum(model.losses, loss), scores

    parts = _num_parts
    if parts == 1 or model.jit_compile or num_replicas() > 1:
        return of_part(x, y, sample_weight)
    cuts = [ops.shape(y)[0] * part // parts for part in range(parts + 1)]
    total = 0.0
    count = 0.0
    scores = []
    for first, end in itertools.pairwise(cuts):
        part = keras.tree.map_structure(
            lambda t, i=first, j=end: None if t is None else t[i:j],
            (x, y, sample_weight),
        )
        loss, found = of_part(*part)
        targets = model.loss_divisor(part[1])
        total = total + loss * targets
        count = count + targets
        scores.append(found)
    return total / ops.maximum(count, 1.0), TokenScores(
        crossentropy=ops.concatenate([part.crossentropy for part in scores]),
        correct=ops.concatenate([part.correct for part in scores]),
    )


def needs_logits(model):
    """Whether a model, its loss or a metric needs the logits."""
    kinds = type(model).__mro__
    owner = next(kind for kind in kinds if "trains_without_logits" in vars(kind))
    # A class speaks for its own methods, not for what a later class overrides.
    if not model.trains_without_logits or overrides(model, owner, _METHODS):
        return True
    loss = model.loss
    takes_scores = (MaskedAccuracy, Perplexity)
    if type(loss) is not MaskedCrossentropy or loss_weights(model) != [None]:
        return True
    for metric in compiled_metrics(model):
        if type(metric) not in takes_scores or metric.pad_id != loss.pad_id:
            return True
    return False


class Verdict(NamedTuple):
    """The verdict on a batch; boolean scalars, except the last two."""

    applies: Any  # its gradient is used
    updates: Any  # the weights change after it
    counts: Any  # its loss and metrics are part of the logs
    is_bad: Any  # its loss or gradient is not finite
    batches: Any  # since the last update, an integer
    targets: Any  # of these batches, float32


class UpdateState:
    """Variables of training beside the optimizer's.

    An update takes `steps` batches. With `stops`, batches after a bad one are ignored.
    """

    def __init__(self, optimizer, weights, steps, stops):
        self.steps = steps
        self.stops = stops
        adapts = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.scaling = optimizer if adapts else None
        self.nonfinite_batches = _zeros("nonfinite_batches", "int")
        self.held = _zeros("held_batches", "int")
        self.batches = _zeros("accumulated_batches", "int")
        self.targets = _zeros("accumulated_targets", "float32")
        # Each replica sums its own; the update adds them up.
        self.sums = [
            _zeros(
                "gradient",
                "float32",
                w.shape,
                layout=layout_of(w),
                aggregation="sum",
                synchronization="on_read",
            )
            for w in (weights if steps > 1 else [])
        ]
        counters = [self.nonfinite_batches, self.held, self.batches, self.targets]
        self.variables = counters + self.sums

    def judge(self, loss, norm, targets):
        """Returns the `Verdict` on a batch; `norm` is that of scaled gradients."""
        goes_on = ops.equal(self.held, 0)
        has_loss = ops.isfinite(loss)
        is_fine = ops.isfinite(loss + norm)
        if self.scaling is not None:
            # The scaled loss may overflow in float16; then the optimizer only halves
            # the scale: Micikevicius et al., 2018, section 3.2.
            is_fine |= has_loss & (self.scaling.dynamic_scale > 1.0)
        applies = goes_on & is_fine & (targets > 0)
        targets = self.targets + ops.where(applies, targets, 0.0)
        batches = (self.batches + ops.cast(goes_on, self.batches.dtype)) % self.steps
        updates = goes_on & ops.equal(batches, 0) & (targets > 0)
        counts = goes_on & has_loss
        is_bad = goes_on & ~is_fine
        return Verdict(applies, updates, counts, is_bad, batches, targets)

    def mean_gradient(self, gradients, targets, scale):
        """Returns the scaled gradients of a batch, or their mean over an update."""
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
    return keras.Variable(
        "zeros",
        shape,
        dtype,
        trainable=False,
        autocast=False,
        aggregation=aggregation,
        name=name,
        **options,
    )


def global_norm(gradients):
    """Returns the float32 norm of all gradients together."""
    squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients]
    return ops.sqrt(ops.sum(ops.stack(squares)))
