"""Adam with one operation for each weight."""

from __future__ import annotations

import keras

from keras_transformer.kernels.execution import in_tensorflow_graph
from keras_transformer.kernels.keras_private import adam_moments
from keras_transformer.types import TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Adam (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980).

    It has the arguments and variables of `keras.optimizers.Adam`. In a TensorFlow graph
    without XLA it updates a weight with one operation instead of about twenty. Rows of
    a sparse gradient that occur twice are added up first. Weights in half precision
    follow Keras' formula: in bfloat16 a `beta_2` of 0.9981 or more is rounded to 1, and
    no weight moves.

    Example:
        >>> model.compile(optimizer=Adam(1e-3, beta_2=0.98, epsilon=1e-9))
    """

    def update_step(
        self, gradient: TensorLike, variable: keras.Variable,
        learning_rate: float | TensorLike,
    ) -> None:  # fmt: skip
        if keras.backend.backend() != "tensorflow":
            return super().update_step(gradient, variable, learning_rate)
        import tensorflow as tf

        # Keras would square the parts of a sparse gradient before it adds them up.
        gradient = tf.convert_to_tensor(gradient)
        dtype = variable.dtype
        # The operation has no AMSGrad, and rounds its factors to the weight's type.
        if self.amsgrad or dtype.size < 4 or not in_tensorflow_graph():
            return super().update_step(gradient, variable, learning_rate)
        step = tf.cast(keras.ops.convert_to_tensor(self.iterations) + 1, dtype)
        first, second = adam_moments(self, variable)
        # The same formula as Keras', with its epsilon: that of section 2 of the paper.
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=first.value.handle, v=second.value.handle,
            beta1_power=tf.pow(tf.cast(self.beta_1, dtype), step),
            beta2_power=tf.pow(tf.cast(self.beta_2, dtype), step),
            lr=tf.cast(learning_rate, dtype), beta1=tf.constant(self.beta_1, dtype),
            beta2=tf.constant(self.beta_2, dtype),
            epsilon=tf.constant(self.epsilon, dtype), grad=tf.cast(gradient, dtype),
        )  # fmt: skip
