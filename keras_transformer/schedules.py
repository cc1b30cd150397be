"""Learning-rate schedules."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_transformer.types import Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's learning rate: linear warm-up, then inverse square root decay.

    scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): equation 3 of
    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, with a factor. The first
    update is step 1 (Keras counts it 0). The peak is
    scale * (d_model * warmup_steps)^-0.5, at step `warmup_steps`.

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

    def __init__(
        self, d_model: int, warmup_steps: int = 4000, scale: float = 1.0
    ) -> None:
        super().__init__()
        _check_positive(d_model=d_model, warmup_steps=warmup_steps, scale=scale)
        self.d_model, self.warmup_steps, self.scale = d_model, warmup_steps, scale

    def __call__(self, step: float | TensorLike) -> Tensor:
        step = ops.cast(step, "float32") + 1.0
        factor = self.scale * self.d_model**-0.5
        rising = step * self.warmup_steps**-1.5
        return factor * ops.minimum(ops.power(step, -0.5), rising)

    def get_config(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("d_model", "warmup_steps", "scale")}


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up before any Keras schedule, or before a constant rate.

    The rate of update t, counted from 1, is learning_rate * t / warmup_steps up to
    `warmup_steps`. After it `schedule` begins, or the rate stays.

    Args:
        learning_rate: Peak of the warm-up.
        warmup_steps: Length of the warm-up (updates).
        schedule: What follows, a Keras schedule that begins with `learning_rate`; or
            `None` for a constant rate.
    Call arguments:
        step: Weight updates already made, a number or a scalar tensor.
    Returns:
        The learning rate of the next update, a float32 scalar.
    Raises:
        ValueError: If a number is not positive.

    Example:
        >>> cosine = keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=9000)
        >>> WarmupSchedule(1e-3, warmup_steps=1000, schedule=cosine)(499)  # 5e-4
    """

    def __init__(
        self, learning_rate: float, warmup_steps: int,
        schedule: keras.optimizers.schedules.LearningRateSchedule | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check_positive(learning_rate=learning_rate, warmup_steps=warmup_steps)
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        if isinstance(schedule, dict):  # Of `get_config`.
            schedule = keras.saving.deserialize_keras_object(schedule)
        self.schedule = schedule

    def __call__(self, step: float | TensorLike) -> Tensor:
        step, later = ops.cast(step, "float32"), self.learning_rate
        rising = self.learning_rate * (step + 1.0) / self.warmup_steps
        if self.schedule is not None:
            later = self.schedule(ops.maximum(step - self.warmup_steps, 0.0))
        return ops.where(step < self.warmup_steps, rising, ops.cast(later, "float32"))

    def get_config(self) -> dict[str, Any]:
        schedule = self.schedule
        schedule = schedule and keras.saving.serialize_keras_object(schedule)
        rates = {n: getattr(self, n) for n in ("learning_rate", "warmup_steps")}
        return rates | {"schedule": schedule}


def _check_positive(**values):
    for name, value in values.items():
        if not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(
                f"`{name}` must be a positive number. Received: {name}={value!r}"
            )
