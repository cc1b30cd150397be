"""The most tokens a second that a machine can train: a bound for any program.

As `floor.py`, for a step of training: a product of weights takes 2 floating-point
operations for each weight and token in the forward pass, and twice as many in the
backward pass: for the gradients of its input and of the weights. Everything else
(softmax, normalisation, dropout, the update, memory traffic, padding) counts as free.
"""

from __future__ import annotations

import floor
from training_workload import Setting
from workload import Size

_PASSES = 3  # forward, gradient of the inputs, gradient of the weights


def flops(size: Size, setting: Setting) -> int:
    """Floating-point operations of the products of a turn.

    A sentence of S source and T target tokens takes 2 S w_e + 2 T w_d for the weights
    of `floor.py`, and 4 D (S^2 + T (T + 1) / 2 + T S) in each layer for the scores and
    sums of attention, all times three.

    Args:
        size: The Transformer's sizes.
        setting: Lengths of all sentences.

    Returns:
        A whole number.
    """
    total = 0
    for source, target in setting.lengths():
        weights = 2 * (
            source.sum() * floor.encoder_weights(size)
            + target.sum() * floor.decoder_weights(size)
        )
        attended = source**2 + target * (target + 1) // 2 + target * source
        attention = 4 * size.d_model * size.num_layers * attended.sum()
        total += _PASSES * int(weights + attention)
    return total


def limit(size: Size, setting: Setting, peak: float) -> float:
    """Upper bound of the source and target tokens a second, padding left out.

    Args:
        size: The Transformer's sizes.
        setting: Lengths of all sentences.
        peak: Floating-point operations a second of a large matrix product.

    Returns:
        Tokens a second.
    """
    return setting.tokens * peak / flops(size, setting)
