"""The training loss."""

from __future__ import annotations

import keras
from keras import ops

from keras_transformer.kernels.crossentropy import TokenScores, fused_crossentropy
from keras_transformer.kernels.execution import in_tensorflow_graph, num_replicas


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
    targets = ops.cast(targets, "int32")
    if in_tensorflow_graph():
        return _crossentropy_by_softmax(targets, logits, label_smoothing)
    if keras.backend.backend() == "torch":
        return _crossentropy(targets, ops.cast(logits, "float32"), label_smoothing)
    return _crossentropy_without_scatter(targets, logits, label_smoothing)


def _crossentropy(targets, logits, label_smoothing):
    """The formula of `smoothed_crossentropy`, on float32 logits."""
    log_sum = ops.logsumexp(logits, axis=-1)
    return log_sum - _expected_logit(targets, logits, label_smoothing)


def _expected_logit(targets, logits, label_smoothing):
    """(1 - e) z_y + e mean(z), of float32 logits."""
    true_logit = ops.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    expected = (1.0 - label_smoothing) * true_logit
    if label_smoothing:
        expected = expected + label_smoothing * ops.mean(logits, axis=-1)
    return expected


def _crossentropy_without_scatter(targets, logits, label_smoothing):
    """As `_crossentropy`, for XLA, with its gradient as one element-wise formula.

    The gradient of a gather is a scatter into zeros as large as the logits.
    """
    vocabulary_size = logits.shape[-1]

    @ops.custom_gradient
    def crossentropy(logits):
        wide = ops.cast(logits, "float32")
        log_sum = ops.logsumexp(wide, axis=-1)

        def gradient(upstream):
            is_true = ops.equal(
                ops.arange(vocabulary_size, dtype="int32"), targets[..., None]
            )
            expected = ops.where(is_true, 1.0 - label_smoothing, 0.0)
            probabilities = ops.exp(wide - log_sum[..., None])
            slopes = probabilities - expected - label_smoothing / vocabulary_size
            return ops.cast(slopes * upstream[..., None], logits.dtype)

        return log_sum - _expected_logit(targets, wide, label_smoothing), gradient

    return crossentropy(logits)


def _crossentropy_by_softmax(targets, logits, label_smoothing):
    """As `_crossentropy`, for a TensorFlow graph: few passes over the logits.

    The softmax serves the value and the gradient. The log of the sum of exponentials
    is the largest logit less the log of its probability, which is at least 1 / V.
    The place of the largest logit is found as `MaskedAccuracy` finds it, and the graph
    computes it once for both.
    """
    vocabulary_size = logits.shape[-1]

    @ops.custom_gradient
    def crossentropy(logits):
        wide = ops.cast(logits, "float32")
        probabilities = ops.softmax(wide, axis=-1)
        largest = first_largest(logits)[..., None]
        log_sum = ops.take_along_axis(wide, largest, axis=-1) - ops.log(
            ops.take_along_axis(probabilities, largest, axis=-1)
        )

        def gradient(upstream):
            upstream = ops.reshape(upstream, (-1,))
            slopes = ops.reshape(probabilities, (-1, vocabulary_size))
            if label_smoothing:
                slopes = slopes - label_smoothing / vocabulary_size
            slopes = slopes * upstream[:, None]
            rows = ops.arange(ops.shape(upstream)[0], dtype="int32")
            places = ops.stack([rows, ops.reshape(targets, (-1,))], axis=1)
            slopes = _scatter_add(slopes, places, (label_smoothing - 1.0) * upstream)
            return ops.cast(ops.reshape(slopes, ops.shape(logits)), logits.dtype)

        expected = _expected_logit(targets, wide, label_smoothing)
        return log_sum[..., 0] - expected, gradient

    return crossentropy(logits)


def _scatter_add(tensor, places, values):
    import tensorflow as tf

    return tf.tensor_scatter_nd_add(tensor, places, values)


def first_largest(logits):
    """Returns the place of the largest logit, the first of equal ones.

    As `ops.argmax`, which on TensorFlow reads the logits five times more to tell -0
    from 0. XLA finds a maximum much faster than its place.

    Args:
        logits: Float tensor (..., V).

    Returns:
        Int32 tensor (...).
    """
    if in_tensorflow_graph():
        import tensorflow as tf

        return tf.argmax(logits, axis=-1, output_type=tf.int32)
    places = ops.arange(logits.shape[-1], dtype="int32")
    is_largest = ops.equal(logits, ops.max(logits, axis=-1, keepdims=True))
    return ops.min(ops.where(is_largest, places, logits.shape[-1]), axis=-1)


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
        weights, divisor = self._weights(y_true, sample_weight)
        # A masked token's loss may be infinite; infinity times zero is not a number.
        total = ops.sum(ops.where(ops.equal(weights, 0.0), 0.0, losses * weights))
        # As every Keras loss, of which a replica returns its share.
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

    def from_states(self, y_true, states, matrix, sample_weight=None, training=True):
        """As `__call__` of the logits states @ matrix.T, which are never all held.

        In a replica it is the mean over the replica's tokens, not its share.

        Args:
            y_true: Integer tensor (B, T).
            states: Float tensor (B, T, D).
            matrix: Float tensor (V, D).
            sample_weight: As of `__call__`.
            training: Whether a gradient will be asked for.

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
            states, matrix, *flat, self.label_smoothing, gradient=training
        )
        if rows is not None:
            size = (ops.size(y_true),)
            scores = [ops.scatter(rows[:, None], score, size) for score in scores]
        return loss, TokenScores(*(ops.reshape(s, ops.shape(y_true)) for s in scores))

    def _rows(self, targets):
        """The places of the targets that count, or `None` where shapes are fixed."""
        if not in_tensorflow_graph():
            return None
        return ops.nonzero(ops.not_equal(targets, self.pad_id))[0]

    def call(self, y_true, y_pred):
        return smoothed_crossentropy(y_true, y_pred, self.label_smoothing)

    def get_config(self):
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "name": self.name,
        }
