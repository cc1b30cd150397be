"""Adam and learning-rate schedules."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.kernels.execution import in_tensorflow_graph
from keras_transformer.nn.kernels.keras_private import adam_moments
from keras_transformer.types import Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Adam (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980).

    It is `keras.optimizers.Adam`, in one operation per weight in a TensorFlow graph
    without XLA. Repeated rows of a sparse gradient are summed first. Weights in half
    precision use Keras' formula: in bfloat16 a `beta_2` of 0.9981 or more is rounded to
    1, and no weight changes.

    Example:
        >>> model.compile(optimizer=Adam(1e-3, beta_2=0.98, epsilon=1e-9))
    """

    def update_step(
        self,
        gradient: TensorLike,
        variable: keras.Variable,
        learning_rate: float | TensorLike,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        # Keras would square repeated rows of a sparse gradient before their sum.
        gradient = tf.convert_to_tensor(gradient)
        # On TensorFlow Keras passes the `tf.Variable`.
        dtype = variable.dtype
        # The operation has no AMSGrad and rounds its factors to the weight's type.
        if self.amsgrad or dtype.size < 4 or not in_tensorflow_graph():
            return super().update_step(gradient, variable, learning_rate)
        step = tf.cast(ops.convert_to_tensor(self.iterations) + 1, dtype)
        first, second = adam_moments(self, variable)
        # Keras' formula, with the epsilon of section 2 of the paper.
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=first.value.handle,
            v=second.value.handle,
            beta1_power=tf.pow(tf.cast(self.beta_1, dtype), step),
            beta2_power=tf.pow(tf.cast(self.beta_2, dtype), step),
            lr=tf.cast(learning_rate, dtype),
            beta1=tf.constant(self.beta_1, dtype),
            beta2=tf.constant(self.beta_2, dtype),
            epsilon=tf.constant(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's learning rate: linear warm-up, then inverse square root decay.

    scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5): equation 3 of
    Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. The first update is step 1
    (0 in Keras). The peak, scale * (d_model * warmup_steps)^-0.5, is at `warmup_steps`.

    Args:
        d_model: Width of the model.
        warmup_steps: Length of the warm-up (updates).
        scale: Factor on the rate.
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
        self.d_model = d_model
        self.warmup_steps = warmup_steps
        self.scale = scale

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
    `warmup_steps`; then `schedule` begins.

    Args:
        learning_rate: Peak of the warm-up.
        warmup_steps: Length of the warm-up (updates).
        schedule: A Keras schedule that begins with `learning_rate`; default constant.
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
        self,
        learning_rate: float,
        warmup_steps: int,
        schedule: keras.optimizers.schedules.LearningRateSchedule | None = None,
    ) -> None:
        super().__init__()
        _check_positive(learning_rate=learning_rate, warmup_steps=warmup_steps)
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        if isinstance(schedule, dict):  # Of `get_config`.
            schedule = keras.saving.deserialize_keras_object(schedule)
        self.schedule = schedule

    def __call__(self, step: float | TensorLike) -> Tensor:
        step = ops.cast(step, "float32")
        later = self.learning_rate
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
        check_number(name, value, rule="a positive number", above=0)
