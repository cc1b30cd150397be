"""Layer normalisation whose gradient makes few passes over memory."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.normalise import normalise
from keras_transformer.types import Tensor, TensorLike


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

    def call(self, inputs: TensorLike, training: bool = False) -> Tensor:
        is_last = self.axis in ([-1], [len(inputs.shape) - 1])
        if not is_last or not self.scale or not self.center or self.rms_scaling:
            return super().call(inputs)
        outputs = normalise(inputs, self.gamma, self.beta, self.epsilon, training)
        return ops.cast(outputs, self.compute_dtype)
