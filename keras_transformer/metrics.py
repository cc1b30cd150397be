"""Metrics over the tokens that are not padding."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.crossentropy import (
    TokenScores,
    first_largest,
    smoothed_crossentropy,
)
from keras_transformer.losses import token_weights
from keras_transformer.types import DType, Tensor, TensorLike


class TokenMean(keras.metrics.Mean):
    """Base of means over the tokens that are not padding.

    A subclass defines `values(y_true, y_pred)`, the value of each token (B, T).

    Args:
        pad_id: Target id that is ignored.
        name: Name of the metric.
        dtype: Float type of the sums.
    """

    default_name: str | None = None

    def __init__(
        self, pad_id: int = 0, name: str | None = None, dtype: DType | None = None
    ) -> None:
        super().__init__(name or self.default_name, dtype)
        self.pad_id = pad_id

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike,
        sample_weight: TensorLike | None = None,
    ) -> None:  # fmt: skip
        """Adds a batch: targets (B, T), and logits (B, T, V) or `TokenScores`."""
        y_true = ops.convert_to_tensor(y_true)
        weights = token_weights(y_true, self.pad_id, sample_weight, self.dtype)
        values = ops.cast(self.values(y_true, y_pred), self.dtype)
        values = ops.where(ops.equal(weights, 0), 0.0, values * weights)
        self.total.assign_add(ops.sum(values))
        self.count.assign_add(ops.sum(weights))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(TokenMean):
    """Share of the tokens, padding excluded, whose target has the highest logit.

    Example:
        >>> metric = MaskedAccuracy()
        >>> logits = np.array([[[0.0, 2.0], [0.0, 2.0]]])
        >>> metric.update_state(np.array([[1, 0]]), logits)
        >>> metric.result()  # 1.0
    """

    default_name = "accuracy"

    def values(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Returns whether each target has the highest logit, boolean (B, T)."""
        if isinstance(y_pred, TokenScores):
            return y_pred.correct
        predicted = first_largest(ops.convert_to_tensor(y_pred))
        return ops.equal(ops.cast(predicted, y_true.dtype), y_true)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """Exponential of the mean cross-entropy per token, without label smoothing.

    exp(sum of -log p(token) / number of tokens), padding excluded: the perplexity per
    sub-word piece in section 6.2 of Vaswani et al., 2017. It is 1 without tokens.

    Example:
        >>> metric = Perplexity()
        >>> metric.update_state(np.array([[1, 2]]), np.zeros((1, 2, 4)))
        >>> metric.result()  # 4.0
    """

    default_name = "perplexity"

    def values(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Returns the cross-entropy of each token, (B, T) (nats)."""
        if isinstance(y_pred, TokenScores):
            return y_pred.crossentropy
        return smoothed_crossentropy(y_true, y_pred)

    def result(self) -> Tensor:
        return ops.exp(super().result())
