"""Metrics over the tokens that are not padding."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import keras
from keras import ops

from keras_transformer.kernels.crossentropy import (
    TokenScores,
    first_largest,
    smoothed_crossentropy,
)
from keras_transformer.types import DType, Tensor, TensorLike


class MetricOptions(TypedDict, total=False):
    """What every metric of Keras takes by name, besides `name`."""

    dtype: DType | None


class TokenMean(keras.metrics.Metric):
    """Mean over all tokens that are not padding, of all batches since the last reset.

    Args:
        pad_id: Target id that does not count.
        name: Name of the metric.

    Attributes:
        takes_scores: Whether `y_pred` may be `TokenScores`, which a model that trains
            without computing logits gives instead of them. Not inherited: a subclass
            gets logits unless it sets this itself.
    """

    takes_scores = False

    def __init__(
        self, pad_id: int = 0, name: str | None = None, **kwargs: Unpack[MetricOptions]
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pad_id = pad_id
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def values(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Returns the value of each token, (B, T); to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} must define `values`.")

    def update_state(
        self, y_true: TensorLike, y_pred: TensorLike,
        sample_weight: TensorLike | None = None,
    ) -> None:  # fmt: skip
        """Adds a batch.

        Args:
            y_true: Integer tensor (B, T).
            y_pred: Logits, a float tensor (B, T, V), or `TokenScores`.
            sample_weight: Factor on each token, (B, T), or on each row, (B,).
        """
        y_true = ops.convert_to_tensor(y_true)
        weights = ops.cast(ops.not_equal(y_true, self.pad_id), self.dtype)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, self.dtype)
            if len(sample_weight.shape) == 1:
                sample_weight = sample_weight[:, None]
            weights = weights * sample_weight
        values = ops.cast(self.values(y_true, y_pred), self.dtype)
        values = ops.where(ops.equal(weights, 0), 0.0, values * weights)
        self.total.assign_add(ops.sum(values))
        self.count.assign_add(ops.sum(weights))

    def result(self) -> Tensor:
        """Returns the mean, 0 before the first token."""
        return ops.divide_no_nan(self.total, self.count)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"pad_id": self.pad_id}


def takes_scores(metric, pad_id):
    """Whether a metric can be updated from `TokenScores` made with this `pad_id`."""
    takes = vars(type(metric)).get("takes_scores", False)
    return isinstance(metric, TokenMean) and takes and metric.pad_id == pad_id


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedAccuracy(TokenMean):
    """Share of the tokens, padding left out, whose highest logit is the target's.

    Args:
        pad_id: Target id that does not count.
        name: Name of the metric.

    Example:
        >>> metric = MaskedAccuracy()
        >>> logits = np.array([[[0.0, 2.0], [0.0, 2.0]]])
        >>> metric.update_state(np.array([[1, 0]]), logits)
        >>> metric.result()  # 1.0
    """

    takes_scores = True

    def __init__(
        self, pad_id: int = 0, name: str | None = "accuracy",
        **kwargs: Unpack[MetricOptions],
    ) -> None:  # fmt: skip
        super().__init__(pad_id=pad_id, name=name, **kwargs)

    def values(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        if isinstance(y_pred, TokenScores):
            return y_pred.correct
        predicted = first_largest(ops.convert_to_tensor(y_pred))
        return ops.equal(ops.cast(predicted, y_true.dtype), y_true)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMean):
    """Exponential of the mean cross-entropy of a token, without label smoothing.

    exp(sum of -log p(token) / number of tokens), padding left out: the perplexity per
    sub-word piece of section 6.2 of Vaswani et al., 2017.

    Args:
        pad_id: Target id that does not count.
        name: Name of the metric.

    Example:
        >>> metric = Perplexity()
        >>> metric.update_state(np.array([[1, 2]]), np.zeros((1, 2, 4)))
        >>> metric.result()  # 4.0
    """

    takes_scores = True

    def __init__(
        self, pad_id: int = 0, name: str | None = "perplexity",
        **kwargs: Unpack[MetricOptions],
    ) -> None:  # fmt: skip
        super().__init__(pad_id=pad_id, name=name, **kwargs)

    def values(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        if isinstance(y_pred, TokenScores):
            return y_pred.crossentropy
        return smoothed_crossentropy(y_true, y_pred)

    def result(self) -> Tensor:
        """Returns the perplexity, 1 before the first token."""
        return ops.exp(super().result())
