"""Layer normalisation with a gradient of few passes."""

from __future__ import annotations

import keras

from keras_transformer.kernels.execution import in_tensorflow_graph
from keras_transformer.layers.training_ops import normalise


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Normalises each vector to mean 0 and variance 1, then scales and shifts it.

    As `keras.layers.LayerNormalization` (Ba et al., 2016,
    https://arxiv.org/abs/1607.06450), whose arguments and weights it has. In training
    in a TensorFlow graph without XLA it takes half the time.

    Call arguments:
        inputs: Float tensor (..., D).
        training: Whether a gradient will be asked for.
    Returns:
        Float tensor (..., D).

    Example:
        >>> LayerNormalization()(np.array([[1.0, 3.0]]))  # [[-1., 1.]]
    """

    def call(self, inputs, training=False):
        is_last = self.axis in ([-1], [len(inputs.shape) - 1])
        has_both = self.scale and self.center and not self.rms_scaling
        is_float64 = keras.backend.standardize_dtype(inputs.dtype) == "float64"
        usual = is_last and has_both and not is_float64
        if not (training and usual and in_tensorflow_graph()):
            return super().call(inputs)
        outputs = normalise(
            inputs,
            keras.ops.cast(self.gamma, "float32"),
            keras.ops.cast(self.beta, "float32"),
            self.epsilon,
        )
        return keras.ops.cast(outputs, self.compute_dtype)
