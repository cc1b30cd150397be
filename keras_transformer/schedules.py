"""Learning-rate schedules."""

from __future__ import annotations

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's learning rate: linear warm-up, then inverse square root decay.

    scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): equation 3 of
    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, with a factor. The first
    update is step 1 (Keras counts it 0), so no update has a rate of zero. Its peak is
    scale * (d_model * warmup_steps)^-0.5, at step `warmup_steps`.

    Keras' own `gradient_accumulation_steps` counts every batch as a step; the warm-up
    is then shorter by that factor.

    Args:
        d_model: Width of the model.
        warmup_steps: Length of the warm-up (updates).
        scale: Factor on the rate, 1 in the paper.
    Call arguments:
        step: Weight updates already made, a number or a scalar tensor.
    Returns:
        The learning rate of the next update, a float32 scalar.
    Raises:
        ValueError: If an argument is not a positive number.

    Example:
        >>> TransformerSchedule(d_model=512, warmup_steps=4000)(3999)  # 6.99e-4
    """

    def __init__(self, d_model, warmup_steps=4000, scale=1.0):
        super().__init__()
        for name, value in (
            ("d_model", d_model),
            ("warmup_steps", warmup_steps),
            ("scale", scale),
        ):
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ValueError(
                    f"`{name}` must be a positive number. Received: {name}={value!r}"
                )
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        factor = self.scale * self.d_model**-0.5
        return factor * ops.minimum(
            ops.power(step, -0.5), step * self.warmup_steps**-1.5
        )

    def get_config(self):
        return {
            "d_model": self.d_model,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }
