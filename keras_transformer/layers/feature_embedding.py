"""Embedding of tokens that are described by several ids."""

from __future__ import annotations

import math
from typing import Unpack

import keras
from keras import ops

from keras_transformer.layers.arguments import integer_ids
from keras_transformer.layers.positional_embedding import (
    PositionalEmbedding,
    Positions,
)
from keras_transformer.types import (
    Constraint,
    Initializer,
    LayerOptions,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


class EmbeddingOptions(LayerOptions, total=False):
    """What `FeatureEmbedding` hands on to `PositionalEmbedding`."""

    embeddings_initializer: Initializer | None
    embeddings_regularizer: Regularizer | None
    embeddings_constraint: Constraint | None


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeatureEmbedding(PositionalEmbedding):
    """The embedding of a token is the sum of those of its features.

    As `PositionalEmbedding`, for tokens that come as several ids each: a word and its
    prefixes and suffixes, for example, so that an unknown word still has a vector of
    its own. Bojanowski et al., 2017, equation 3, https://arxiv.org/abs/1607.04606, sum
    the vectors of a word's character n-grams; here the sum is divided by the square
    root of their number, which keeps its size. The id of padding adds nothing, and a
    token without any other id is padding.

    Args:
        vocabulary_size: Number of different features, V.
        d_model: Width of the vectors, D.
        dropout_rate: Share of the sum's units dropped in training, in [0, 1).
        positions: As `PositionalEmbedding` has them.
        max_length: Rows of the learned table (tokens); only for learned positions.
        pad_id: Id of padding.
        embeddings_initializer: Initializer of the table of tokens; default normal, of a
            standard deviation of 1 after the product with sqrt(d_model).
        embeddings_regularizer: Regularizer of that table, or `None`.
        embeddings_constraint: Constraint on that table, or `None`.
    Call arguments:
        ids: Integer tensor (B, T, F), F features a token; float32 is cast.
        start: Position of the first token, an integer or integer scalar tensor.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, d_model).
    Raises:
        TypeError: If `ids` are no integers.
        ValueError: If an argument is out of its range, `ids` have other axes, or
            learned positions are too few for them.

    Example:
        >>> FeatureEmbedding(11, 6)(np.array([[[3, 7], [4, 0]]])).shape  # (1, 2, 6)
    """

    _axes = ("B", "T", "F")

    def __init__(
        self, vocabulary_size: int, d_model: int, dropout_rate: float = 0.0,
        positions: Positions = "sinusoidal",
        max_length: int | None = None, pad_id: int = 0,
        **kwargs: Unpack[EmbeddingOptions],
    ) -> None:  # fmt: skip
        super().__init__(
            vocabulary_size,
            d_model,
            dropout_rate=dropout_rate,
            positions=positions,
            max_length=max_length,
            pad_id=pad_id,
            **kwargs,
        )

    def call(
        self, ids: TensorLike, start: int | TensorLike = 0, training: bool | None = None
    ) -> Tensor:
        ids = integer_ids("ids", ids, *self._axes)
        is_feature = ops.cast(ops.not_equal(ids, self.pad_id), self.compute_dtype)
        vectors = self.table.rows(ids, self.compute_dtype)
        # LiteRT lacks `is_feature[..., None]` of a type worked out from the ids.
        is_feature = ops.expand_dims(is_feature, -1)
        total = ops.sum(vectors * is_feature, axis=2)  # (B, T, D)
        number = ops.maximum(ops.sum(is_feature, axis=2), 1.0)
        tokens = total * math.sqrt(self.d_model) * ops.rsqrt(number)
        return self.dropout(self._placed(tokens, start), training=training)

    def compute_mask(
        self, inputs: TensorLike, previous_mask: TensorLike | None
    ) -> Tensor | None:
        """True where a token has a feature that is not padding."""
        return ops.any(ops.not_equal(inputs, self.pad_id), axis=-1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:2], self.d_model)
