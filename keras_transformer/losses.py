"""The training loss."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.kernels.crossentropy import (
    TokenScores,
    fused_crossentropy,
    smoothed_crossentropy,
)
from keras_transformer.kernels.execution import in_tensorflow_graph, num_replicas
from keras_transformer.types import Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Label-smoothed cross-entropy, averaged over the tokens that are not padding.

    The sum over the tokens of `smoothed_crossentropy`, divided by the number of tokens
    that are not `pad_id`; zero when there is none. A Keras mask of `y_pred` is ignored.

    Args:
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        pad_id: Target id that does not count.
        name: Name of the loss.
    Call arguments:
        y_true: Integer tensor (B, T).
        y_pred: Logits, a float tensor (B, T, V).
        sample_weight: Factor on each token's loss, a tensor that broadcasts to (B, T),
            or (B,) for whole rows, or `None`; it does not change the divisor.
    Returns:
        Float32 scalar, nats per token.
    Raises:
        ValueError: If `label_smoothing` is outside [0, 1).

    Example:
        >>> loss = MaskedCrossentropy(label_smoothing=0.1)
        >>> loss(np.array([[3, 2, 0]]), np.zeros((1, 3, 4)))  # log 4
    """

    def __init__(
        self, label_smoothing: float = 0.0, pad_id: int = 0,
        name: str = "masked_crossentropy",
    ) -> None:  # fmt: skip
        super().__init__(name=name, reduction="sum_over_batch_size", dtype="float32")
        if (
            not isinstance(label_smoothing, (int, float))
            or not 0 <= label_smoothing < 1
        ):
            raise ValueError(
                "`label_smoothing` must be in [0, 1). Received: "
                f"label_smoothing={label_smoothing!r}"
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def __call__(
        self, y_true: TensorLike, y_pred: TensorLike,
        sample_weight: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        # Keras would count all tokens, or those that a mask of `y_pred` keeps.
        losses = self.call(y_true, y_pred)
        weights, divisor = self._weights(y_true, sample_weight)
        # A masked token's loss may be infinite; infinity times zero is not a number.
        total = ops.sum(ops.where(ops.equal(weights, 0.0), 0.0, losses * weights))
        # Like every Keras loss, it returns this replica's share of the mean.
        return total / (divisor * num_replicas())

    def _weights(self, y_true, sample_weight):
        """The factor on each token's loss, (B, T), and the divisor of their sum."""
        counted = ops.cast(ops.not_equal(y_true, self.pad_id), "float32")
        weights = counted
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            if len(sample_weight.shape) == 1:
                sample_weight = sample_weight[:, None]
            weights = weights * sample_weight
        return weights, ops.maximum(ops.sum(counted), 1.0)

    def from_states(
        self, y_true: TensorLike, states: TensorLike, matrix: TensorLike,
        sample_weight: TensorLike | None = None, training: bool = True,
        bias: TensorLike | None = None,
    ) -> Tensor:  # fmt: skip
        """As `__call__` on the logits states @ matrix.T + bias, never all at a time.

        In a replica it is the mean over the replica's tokens, not its share.

        Args:
            y_true: Integer tensor (B, T).
            states: Float tensor (B, T, D).
            matrix: Float tensor (V, D).
            sample_weight: As for `__call__`.
            training: Whether the gradient will be needed.
            bias: Float tensor (V,), or `None` to add nothing.

        Returns:
            The loss, a float32 scalar, and `TokenScores` for the metrics.
        """
        weights, divisor = self._weights(y_true, sample_weight)
        states = ops.reshape(states, (-1, states.shape[-1]))
        flat = [ops.reshape(tensor, (-1,)) for tensor in (y_true, weights / divisor)]
        rows = self._rows(flat[0])
        if rows is not None:
            states, *flat = (ops.take(t, rows, axis=0) for t in (states, *flat))
        loss, *scores = fused_crossentropy(
            states, matrix, *flat, self.label_smoothing, gradient=training, bias=bias
        )
        if rows is not None:
            size = (ops.size(y_true),)
            scores = [ops.scatter(rows[:, None], score, size) for score in scores]
        return loss, TokenScores(*(ops.reshape(s, ops.shape(y_true)) for s in scores))

    def _rows(self, targets):
        """The indices of the targets that count, or `None` where shapes are fixed."""
        if not in_tensorflow_graph():
            return None
        return ops.nonzero(ops.not_equal(targets, self.pad_id))[0]

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        return smoothed_crossentropy(y_true, y_pred, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "name": self.name,
        }
