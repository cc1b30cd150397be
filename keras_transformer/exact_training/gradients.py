"""The norm of a gradient and its limit, computed with `keras.ops`."""

from __future__ import annotations

from keras import ops

from keras_transformer.exact_training.loss_scale import stateless_scale


def not_finite(scalar):
    """Returns 1.0 if a number is infinite or NaN, else 0.0; float32."""
    return 1.0 - ops.cast(ops.isfinite(scalar), "float32")


def global_norm(gradients):
    """Returns the norm of all gradients together, float32; `None` counts as zero."""
    squares = [
        ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None
    ]
    return ops.sqrt(ops.sum(ops.stack(squares)))


def clip_limit(model, moments=None):
    """Returns `global_clipnorm` times the optimizer's scale of the loss, or `None`.

    Gradients are multiplied by that scale until the optimizer applies them.

    Args:
        model: An `ExactTraining` model.
        moments: Values of the optimizer's variables, for a pure function.
    """
    longest, optimizer = model.global_clipnorm, model.optimizer
    if longest is None:
        return None
    if moments is None:
        return optimizer.scale_loss(longest)
    return stateless_scale(optimizer, moments, longest)


def clipped(gradients, norm, longest):
    """Returns the gradients, scaled down if their norm exceeds `longest`."""
    if longest is None:
        return gradients
    scale = longest / ops.maximum(norm, longest)
    return [g if g is None else g * ops.cast(scale, g.dtype) for g in gradients]
