"""The length of a gradient and its limit, computed with `keras.ops`."""

from __future__ import annotations

from keras import ops


def not_finite(scalar):
    """Returns 1.0 if a number is infinite or NaN, else 0.0; float32."""
    return 1.0 - ops.cast(ops.isfinite(scalar), "float32")


def global_norm(gradients):
    """Returns the length of all gradients together, float32; `None` counts as zero."""
    squares = [
        ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None
    ]
    return ops.sqrt(ops.sum(ops.stack(squares)))


def clip_limit(model):
    """Returns `global_clipnorm` times the optimizer's scale of the loss, or `None`.

    Gradients have this scale until the optimizer applies them.
    """
    longest = model.global_clipnorm
    return None if longest is None else model.optimizer.scale_loss(longest)


def clipped(gradients, norm, longest):
    """Returns the gradients, scaled down if their norm exceeds `longest`."""
    if longest is None:
        return gradients
    scale = longest / ops.maximum(norm, longest)
    return [g if g is None else g * ops.cast(scale, g.dtype) for g in gradients]
