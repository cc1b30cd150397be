"""The scale of the loss that training in float16 adapts, by Keras' optimizer.

Small gradients are zero in float16, so `keras.optimizers.LossScaleOptimizer` multiplies
the loss, and halves the factor each time that a gradient becomes too large for the type
(Micikevicius et al., 2018, section 3.2, https://arxiv.org/abs/1710.03740).
"""

from __future__ import annotations

import keras
from keras import ops


def inner_optimizer(optimizer):
    """Returns the optimizer that changes the weights, without the one that scales."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def adapts_scale(optimizer):
    """Whether an optimizer adapts the scale of the loss."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def is_too_large(scale, loss_is_nonfinite, gradient_is_nonfinite):
    """Whether a lower scale may help: it is above 1, and the loss itself is finite.

    Args:
        scale: Factor on the loss, a float scalar tensor.
        loss_is_nonfinite: Boolean scalar tensor.
        gradient_is_nonfinite: Boolean scalar tensor.

    Returns:
        Boolean scalar tensor.
    """
    only_gradient = ops.logical_and(
        gradient_is_nonfinite, ops.logical_not(loss_is_nonfinite)
    )
    return ops.logical_and(only_gradient, scale > 1.0)


def halve_scale(optimizer):
    """Halves the scale, as the optimizer does when a gradient is not finite."""
    optimizer.step_counter.assign(0)
    optimizer.dynamic_scale.assign(optimizer.dynamic_scale * 0.5)


def stateless_halve(optimizer, values):
    """As `halve_scale`: returns the values of the optimizer's variables after it."""
    with _with_values(optimizer, values) as scope:
        halve_scale(optimizer)
    return [scope.get_current_value(variable) for variable in optimizer.variables]


def stateless_scale(optimizer, values, loss):
    """As `optimizer.scale_loss`, with these values of the optimizer's variables."""
    with _with_values(optimizer, values):
        return optimizer.scale_loss(loss)


def _with_values(optimizer, values):
    mapping = list(zip(optimizer.variables, values, strict=True))
    return keras.StatelessScope(state_mapping=mapping)
