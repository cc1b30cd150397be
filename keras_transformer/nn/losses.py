"""The training loss, and metrics over the tokens that are not padding."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config.options import check_number
from keras_transformer.nn.arguments import check_ids, check_rate
from keras_transformer.nn.kernels.crossentropy import (
    TokenScores,
    first_largest,
    fused_crossentropy,
    smoothed_crossentropy,
    token_weights,
    wide_ids,
)
from keras_transformer.nn.kernels.execution import in_tensorflow_graph, num_replicas
from keras_transformer.nn.kernels.keras_private import carried_mask
from keras_transformer.types import DType, Tensor, TensorLike


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Label-smoothed cross-entropy, averaged over the tokens that are not padding.

    The true class has the probability 1 - e + e / V and every other class e / V, with e
    the `label_smoothing` (section 5.4 of Vaswani et al., 2017). A batch of padding only
    has the loss 0. The Keras mask of `y_pred` is ignored.

    Args:
        label_smoothing: Probability mass spread over the vocabulary, in [0, 1).
        pad_id: Target id that is ignored, of the vocabulary or not.
        name: Name of the loss.
    Call arguments:
        y_true: Integer tensor (B, T).
        y_pred: Logits, a float tensor (B, T, V).
        sample_weight: Factor on each token's loss, (B,) or a tensor that broadcasts to
            (B, T); the divisor stays the number of tokens.
    Returns:
        Float32 scalar, nats per token. In a compiled step, such as one of `fit`, NaN if
        a target is neither `pad_id` nor an id below V.
    Raises:
        ValueError: If `label_smoothing` is outside [0, 1), or `y_true` has another
            shape or such a target.

    Example:
        >>> loss = MaskedCrossentropy(label_smoothing=0.1)
        >>> loss(np.array([[3, 2, 0]]), np.zeros((1, 3, 4)))  # log 4
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        pad_id: int = 0,
        name: str = "masked_crossentropy",
    ) -> None:
        super().__init__(name=name, reduction="sum_over_batch_size", dtype="float32")
        check_rate("label_smoothing", label_smoothing)
        check_number("pad_id", pad_id, int)
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def count(self, y_true: TensorLike) -> Tensor:
        """Returns the number of targets that are not padding, a float32 scalar."""
        return ops.sum(token_weights(y_true, self.pad_id))

    def call(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        return smoothed_crossentropy(y_true, y_pred, self.label_smoothing)

    def __call__(
        self,
        y_true: TensorLike,
        y_pred: TensorLike,
        sample_weight: TensorLike | None = None,
    ) -> Tensor:
        y_pred = ops.convert_to_tensor(y_pred)
        _check_targets(y_true, y_pred.shape, self.pad_id)
        # Keras would count all tokens, or those in the mask of `y_pred`.
        losses = self.call(y_true, y_pred)
        classes = ops.shape(y_pred)[-1]
        weights = token_weights(y_true, self.pad_id, sample_weight, classes)
        # A masked token's loss may be infinite, and infinity times zero is NaN.
        total = ops.sum(ops.where(ops.equal(weights, 0.0), 0.0, losses * weights))
        # As in Keras, the share of this replica.
        return total / (ops.maximum(self.count(y_true), 1.0) * num_replicas())

    def from_states(
        self,
        y_true: TensorLike,
        states: TensorLike,
        matrix: TensorLike,
        sample_weight: TensorLike | None = None,
        training: bool = True,
        bias: TensorLike | None = None,
    ) -> tuple[Tensor, TokenScores]:
        """As `__call__` with logits states @ matrix.T + bias, never holding all logits.

        Takes states (B, T, D), a matrix (V, D) and a bias (V,). Returns the mean loss
        of this replica, not its share, and `TokenScores` for metrics. `training` is
        whether a gradient will be computed.
        """
        classes = matrix.shape[0]
        shape = (*states.shape[:-1], classes)  # of the logits
        _check_targets(y_true, shape, self.pad_id)
        count = ops.maximum(self.count(y_true), 1.0)
        y_true = wide_ids(y_true)
        weights = token_weights(y_true, self.pad_id, sample_weight, classes)
        weights = ops.reshape(weights / count, (-1,))
        states = ops.reshape(states, (-1, states.shape[-1]))  # (B T, D)
        targets = ops.reshape(y_true, (-1,))
        counted = None
        if in_tensorflow_graph():  # elsewhere shapes are fixed
            counted = ops.nonzero(ops.not_equal(targets, self.pad_id))[0]
            states = ops.take(states, counted, axis=0)
            targets = ops.take(targets, counted, axis=0)
            weights = ops.take(weights, counted, axis=0)
        loss, *scores = fused_crossentropy(
            states, matrix, targets, weights, self.label_smoothing, training, bias
        )
        for i, score in enumerate(scores):
            if counted is not None:
                score = ops.scatter(counted[:, None], score, (ops.size(y_true),))
            scores[i] = ops.reshape(score, ops.shape(y_true))
        return loss, TokenScores(*scores)

    def get_config(self) -> dict[str, Any]:
        names = "label_smoothing", "pad_id", "name"
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenDistillation(keras.distillation.DistillationLoss):
    """How far a student's prediction of each token is from its teacher's.

    The mean over the tokens that are not padding of T^2 KL(p || q), with p the softmax
    of the teacher's logits / T, q that of the student's, and T the `temperature`
    (Hinton et al., 2015, section 2, https://arxiv.org/abs/1503.02531; for sequences Kim
    and Rush, 2016, section 3.1, https://arxiv.org/abs/1606.07947). Teacher and student
    have one vocabulary. `keras.distillation.LogitsDistillation` counts padding too.

    Args:
        temperature: T, above 0.
    Raises:
        ValueError: If `temperature` is not positive, the logits have two shapes, or the
            student's have no Keras mask. A `Transformer` attaches one.

    Example:
        >>> loss = TokenDistillation(temperature=2.0)
        >>> distiller = keras.distillation.Distiller(teacher, student, loss)
        >>> distiller.compile("adam", loss=MaskedCrossentropy())
        >>> distiller.fit(corpus.dataset())  # the student learns
    """

    def __init__(self, temperature: float = 1.0) -> None:
        check_number("temperature", temperature, above=0)
        self.temperature = temperature

    def compute_loss(
        self, teacher_outputs: TensorLike, student_outputs: TensorLike, **kwargs: Any
    ) -> Tensor:
        """Returns the loss of logits (B, T, V), nats per token."""
        mask = carried_mask(student_outputs)
        logs = []
        if mask is None:
            raise ValueError(
                "The student's logits have no Keras mask (B, T). Our models "
                "attach one; give another model a `compute_mask`."
            )
        if not _have_one_shape(teacher_outputs.shape, student_outputs.shape):
            raise ValueError(
                "The logits of teacher and student must have one shape (B, T, V). "
                f"Received: teacher_outputs of the shape {tuple(teacher_outputs.shape)}"
                f", student_outputs of the shape {tuple(student_outputs.shape)}"
            )
        for logits in (teacher_outputs, student_outputs):
            logits = ops.cast(logits, "float32") / self.temperature
            logs.append(ops.log_softmax(logits))
        losses = ops.sum(ops.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)
        count = ops.maximum(ops.sum(ops.cast(mask, "float32")), 1.0)
        total = self.temperature**2 * ops.sum(ops.where(mask, losses, 0.0))
        # As in Keras, the share of this replica.
        return total / (count * num_replicas())

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments."""
        return {"temperature": self.temperature}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TokenDistillation:
        """Returns a loss of the arguments."""
        return cls(**config)


def _check_targets(ids, shape, pad_id):
    """Raises `ValueError` unless `y_true` fits logits of a shape; see `check_ids`."""
    given = ids.shape if hasattr(ids, "shape") else np.shape(ids)
    if not _have_one_shape(given, shape[:-1]):
        raise ValueError(
            f"`y_true` must be ids of the shape {tuple(shape[:-1])}, for logits of the "
            f"shape {tuple(shape)}; take the `argmax` of one-hot labels. Received: "
            f"y_true of the shape {tuple(given)}"
        )
    check_ids("y_true", ids, shape[-1], pad_id)


def _have_one_shape(one, other):
    """Whether two shapes may be the same; sizes that are not known are."""
    if None in (getattr(one, "rank", 0), getattr(other, "rank", 0)):
        return True  # of TensorFlow, without a known number of axes
    return len(one) == len(other) and all(
        None in sizes or sizes[0] == sizes[1] for sizes in zip(one, other, strict=True)
    )


class TokenMean(keras.metrics.Mean):
    """Base of means over the tokens that are not padding.

    A subclass defines `values(y_true, y_pred)`, the value of each token (B, T).

    Args:
        pad_id: Target id that is ignored.
        name: Name of the metric.
        dtype: Float type of the sums.
    Raises:
        ValueError: If `pad_id` is not an integer.
    """

    default_name: str | None = None

    def __init__(
        self, pad_id: int = 0, name: str | None = None, dtype: DType | None = None
    ) -> None:
        super().__init__(name or self.default_name, dtype)
        check_number("pad_id", pad_id, int)
        self.pad_id = pad_id

    def update_state(
        self,
        y_true: TensorLike,
        y_pred: TensorLike,
        sample_weight: TensorLike | None = None,
    ) -> None:
        """Adds a batch: targets (B, T), and logits (B, T, V) or `TokenScores`.

        See `MaskedCrossentropy` for targets that are no class.
        """
        classes = None
        if not isinstance(y_pred, TokenScores):
            y_pred = ops.convert_to_tensor(y_pred)
            _check_targets(y_true, y_pred.shape, self.pad_id)
            classes = ops.shape(y_pred)[-1]
        y_true = wide_ids(y_true)
        weights = token_weights(
            y_true, self.pad_id, sample_weight, classes=classes, dtype=self.dtype
        )
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

    default_name = "masked_accuracy"

    def values(self, y_true: TensorLike, y_pred: TensorLike) -> Tensor:
        """Returns whether each target has the highest logit, boolean (B, T)."""
        if isinstance(y_pred, TokenScores):
            return y_pred.correct
        predicted = first_largest(y_pred)
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
