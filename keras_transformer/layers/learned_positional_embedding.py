"""A learned vector for each position, added to the inputs."""

from __future__ import annotations

from typing import Any, Unpack

import keras
from keras import ops

from keras_transformer.layers.arguments import (
    check_axes,
    check_positions,
    check_rate,
    check_size,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.masks import carried_mask
from keras_transformer.types import LayerOptions, Shape, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class LearnedPositionalEmbedding(keras.layers.Layer):
    """Adds a learned vector to each position, then drops out.

    Section 3.5 of Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, after
    Gehring et al., 2017. For inputs that are vectors already, such as the patches of
    an image; `PositionalEmbedding` embeds tokens too. There is no vector beyond
    `max_length`, so longer inputs are refused.

    Args:
        max_length: Positions, the rows of the table.
        dropout_rate: Share of the sum's units dropped in training, in [0, 1).
    Call arguments:
        inputs: Float tensor (B, T, D).
        start: Position of the first vector, an integer or integer scalar tensor.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, D).
    Raises:
        ValueError: If `max_length` is not positive, the rate is outside [0, 1) or the
            inputs are longer than `max_length`.

    Example:
        >>> layer = LearnedPositionalEmbedding(max_length=7)
        >>> layer(np.ones((2, 5, 6), "float32")).shape  # (2, 5, 6)
    """

    def __init__(
        self, max_length: int, dropout_rate: float = 0.0, **kwargs: Unpack[LayerOptions]
    ) -> None:
        super().__init__(**kwargs)
        check_size("max_length", max_length)
        check_rate("dropout_rate", dropout_rate)
        self.max_length = max_length
        self.dropout_rate = dropout_rate
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        check_axes("inputs", input_shape, "B", "T", "D")
        self.position_embeddings = self.add_weight(
            shape=(self.max_length, input_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="position_embeddings",
        )
        self.built = True

    def call(
        self, inputs: TensorLike, start: int | TensorLike = 0,
        training: bool | None = None,
    ) -> Tensor:  # fmt: skip
        check_axes("inputs", inputs, "B", "T", "D")
        check_positions(start, inputs.shape[1], self.max_length)
        places = start + ops.arange(ops.shape(inputs)[1], dtype="int32")
        vectors = ops.take(self.position_embeddings, places, axis=0)
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
        return super().get_config() | {
            "max_length": self.max_length,
            "dropout_rate": self.dropout_rate,
        }
