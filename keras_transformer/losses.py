"""The training loss."""

from __future__ import annotations

import keras
from keras import ops


def smoothed_crossentropy(targets, logits, label_smoothing=0.0):
    """Computes the label-smoothed cross-entropy of each token, in float32.

    The target distribution gives the true class 1 - e + e / V and every other class
    e / V (Szegedy et al., 2016, section 7, https://arxiv.org/abs/1512.00567; section
    5.4 of Vaswani et al., 2017). From integer targets, without a one-hot tensor:
    logsumexp(z) - (1 - e) z_y - e mean(z).

    fairseq and OpenNMT-tf spread e over the other V - 1 classes only: their
    e equals our e' = e V / (V - 1). The Annotated Transformer and JoeyNMT leave out the
    padding class too: their e over V - 2 classes has no equal here, the nearest is
    e' = e V / (V - 1).

    Args:
        targets: Integer tensor (...), each in [0, V).
        logits: Float tensor (..., V).
        label_smoothing: e, in [0, 1).

    Returns:
        Float32 tensor (...), nats.

    Example:
        >>> smoothed_crossentropy(np.array([0]), np.zeros((1, 4)))  # [log 4]
    """
    logits = ops.cast(logits, "float32")
    targets = ops.cast(targets, "int32")
    true_logit = ops.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    expected = (1.0 - label_smoothing) * true_logit
    if label_smoothing:
        expected = expected + label_smoothing * ops.mean(logits, axis=-1)
    return ops.logsumexp(logits, axis=-1) - expected


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedCrossentropy(keras.losses.Loss):
    """Label-smoothed cross-entropy, averaged over the tokens that are not padding.

    The sum over the tokens of `smoothed_crossentropy`, divided by the number of tokens
    that are not `pad_id`; zero when there is none. Keras masks that `y_pred` carries
    play no part.

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
        Float32 scalar, nats a token.
    Raises:
        ValueError: If `label_smoothing` is outside [0, 1).

    Example:
        >>> loss = MaskedCrossentropy(label_smoothing=0.1)
        >>> loss(np.array([[3, 2, 0]]), np.zeros((1, 3, 4)))  # log 4
    """

    def __init__(self, label_smoothing=0.0, pad_id=0, name="masked_crossentropy"):
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

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Keras would divide by all tokens, or by those of a mask that `y_pred` carries.
        losses = self.call(y_true, y_pred)
        counted = ops.cast(ops.not_equal(y_true, self.pad_id), "float32")
        weights = counted
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            if len(sample_weight.shape) == 1:
                sample_weight = sample_weight[:, None]
            weights = weights * sample_weight
        # A masked token's loss may be infinite; infinity times zero is not a number.
        total = ops.sum(ops.where(ops.equal(weights, 0.0), 0.0, losses * weights))
        return total / ops.maximum(ops.sum(counted), 1.0)

    def call(self, y_true, y_pred):
        return smoothed_crossentropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "name": self.name,
        }
