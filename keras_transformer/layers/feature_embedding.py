"""Embedding of tokens that are described by several ids."""

from __future__ import annotations

import math

import keras
from keras import ops

from keras_transformer.layers.positional_embedding import PositionalEmbedding


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
        positions: "sinusoidal" or "learned".
        max_length: Rows of the learned table (tokens); only for learned positions.
        pad_id: Id of padding.
    Call arguments:
        ids: Integer tensor (B, T, F): F features a token.
        start: Position of the first token, an integer or integer scalar tensor.
        training: Whether dropout is applied.
    Returns:
        Float tensor (B, T, d_model).
    Raises:
        ValueError: If an argument is out of its range, or learned positions are too
            few for the input.

    Example:
        >>> FeatureEmbedding(11, 6)(np.array([[[3, 7], [4, 0]]])).shape  # (1, 2, 6)
    """

    def __init__(
        self,
        vocabulary_size,
        d_model,
        dropout_rate=0.0,
        positions="sinusoidal",
        max_length=None,
        pad_id=0,
        **kwargs,
    ):
        super().__init__(
            vocabulary_size,
            d_model,
            dropout_rate=dropout_rate,
            positions=positions,
            max_length=max_length,
            pad_id=pad_id,
            **kwargs,
        )

    def call(self, ids, start=0, training=None):
        is_feature = ops.cast(ops.not_equal(ids, self.pad_id), self.compute_dtype)
        vectors = ops.cast(ops.take(self.embeddings, ids, axis=0), self.compute_dtype)
        total = ops.sum(vectors * is_feature[..., None], axis=2)  # (B, T, D)
        number = ops.maximum(ops.sum(is_feature, axis=2), 1.0)[..., None]
        tokens = total * math.sqrt(self.d_model) * ops.rsqrt(number)
        return self.dropout(tokens + self._positions_of(ids, start), training=training)

    def compute_mask(self, inputs, previous_mask):
        """True where a token has a feature that is not padding."""
        return ops.any(ops.not_equal(inputs, self.pad_id), axis=-1)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], self.d_model)
