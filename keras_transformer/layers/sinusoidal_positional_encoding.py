"""The paper's position vectors, added to the inputs."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.layers.arguments import (
    check_axes,
    check_rate,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.positional_embedding import sinusoidal_encoding
from keras_transformer.masks import carried_mask
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalPositionalEncoding(keras.layers.Layer):
    """Adds `sinusoidal_encoding` of its position to each vector, then drops out.

    Section 3.5 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762. For inputs
    that are vectors already; `PositionalEmbedding` embeds tokens too. The vectors are
    computed and not stored, so any length works, even one that was never trained on:
    a shift by k positions turns each pair of sine and cosine by an angle that depends
    on k alone.

    Args:
        dropout_rate: Share of the sum's units dropped in training, in [0, 1).
    Call arguments:
        inputs: Float tensor (B, T, D).
        start: Position of the first vector, an integer or integer scalar tensor.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If the rate is outside [0, 1).

    Example:
        >>> layer = SinusoidalPositionalEncoding()
        >>> layer(np.zeros((1, 3, 4), "float32"))[0, 0]  # [0., 1., 0., 1.]
    """

    def __init__(
        self, dropout_rate: float = 0.0, **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        check_rate("dropout_rate", dropout_rate)
        self.dropout_rate = dropout_rate
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        check_axes("inputs", input_shape, "B", "T", "D")
        self.built = True

    def call(
        self, inputs: TensorLike, start: int | TensorLike = 0,
        training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        check_axes("inputs", inputs, "B", "T", "D")
        places = start + ops.arange(ops.shape(inputs)[1], dtype="int32")
        vectors = sinusoidal_encoding(places, inputs.shape[-1])
        vectors = ops.cast(vectors, self.compute_dtype)
        return self.dropout(inputs + vectors, training=training)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """The output carries the mask of the inputs."""
        return carried_mask(inputs)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"dropout_rate": self.dropout_rate}
