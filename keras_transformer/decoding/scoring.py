"""Log-probabilities of given outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer.types import Tensor, TensorLike


def token_log_probabilities(
    logits: TensorLike, target_out: TensorLike, pad_id: int = 0
) -> Tensor:
    """Returns the log-probability of each token of given outputs.

    A float32 log-softmax at the target: its logit minus the log-sum-exp of all. Summed
    over an output, this is the `log_probabilities` that a search returns for it.

    Args:
        logits: Float tensor (..., T, V), row t scores target_out[..., t].
        target_out: Integer tensor (..., T), each in [0, V), the end token included.
        pad_id: Id of padding, whose log-probability is 0.

    Returns:
        Float32 tensor (..., T), nats.

    Example:
        >>> token_log_probabilities(np.zeros((1, 2, 4)), np.array([[3, 0]]))
        ... # [[-log 4, 0]]
    """
    logits = ops.cast(logits, "float32")
    target_out = ops.cast(target_out, "int32")
    of_target = ops.take_along_axis(logits, target_out[..., None], axis=-1)[..., 0]
    log_probabilities = of_target - ops.logsumexp(logits, axis=-1)
    # Not a product: padding may have no probability at all.
    return ops.where(target_out == pad_id, 0.0, log_probabilities)


def score_in_parts(
    project: Callable[[Any], Any], states: TensorLike, target_out: TensorLike,
    pad_id: int = 0, positions: int = 8,
) -> Tensor:  # fmt: skip
    """Returns the log-probability of each token without all logits at a time.

    The logits of a batch of long outputs are by far its largest tensor: 32 outputs of
    100 tokens over a vocabulary of 32,000 need 400 MB. Here those of a few positions
    are made, used and dropped.

    Args:
        project: A function of states (B, `positions`, D) that returns their logits.
        states: Float tensor (B, T, D), what the logits are computed from.
        target_out: Integer tensor (B, T), each in [0, V), the end token included.
        pad_id: Id of padding, whose log-probability is 0.
        positions: Positions whose logits are made at a time, at least 1.

    Returns:
        Float32 tensor (B, T), nats.

    Example:
        >>> score_in_parts(lambda x: ops.matmul(x, kernel), states, target_out)
    """
    batch, length, width = ops.shape(states)
    count = (length + positions - 1) // positions
    spare = (0, count * positions - length)
    parts = (batch, count, positions)
    states = ops.reshape(ops.pad(states, ((0, 0), spare, (0, 0))), (*parts, width))
    target_out = ops.cast(target_out, "int32")
    targets = ops.pad(target_out, ((0, 0), spare), constant_values=pad_id)
    targets = ops.reshape(targets, parts)
    numbers = ops.reshape(ops.arange(count, dtype="int32"), (1, -1, 1))

    def score(i, scores):
        logits = project(ops.take(states, i, axis=1))
        part = token_log_probabilities(logits, ops.take(targets, i, axis=1), pad_id)
        return i + 1, ops.where(numbers == i, ops.expand_dims(part, 1), scores)

    start = (ops.zeros((), "int32"), ops.zeros(parts, "float32"))
    _, scores = ops.while_loop(lambda i, _: i < count, score, start)
    return ops.reshape(scores, (batch, count * positions))[:, :length]
