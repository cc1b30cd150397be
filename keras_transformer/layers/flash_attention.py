"""The option `flash_attention` of the attention layers."""

from __future__ import annotations

import keras

from keras_transformer.kernels.few_passes import masked_softmax
from keras_transformer.kernels.fused_attention import obstacle


def check_flash_attention(flash_attention, dropout, weigh):
    """Raises `ValueError` if the option is unknown, or no kernel can do as asked.

    Args:
        flash_attention: `None`, `False` or `True`.
        dropout: Share of the attention weights dropped in training.
        weigh: Function of scores and mask that gives the attention weights.
    """
    if flash_attention not in (None, False, True):
        raise ValueError(
            "`flash_attention` must be None, True or False. Received: "
            f"flash_attention={flash_attention!r}"
        )
    if not flash_attention:
        return
    if dropout:
        _refuse("it drops no attention weights", f", dropout={dropout}")
    if weigh is not masked_softmax:
        _refuse("it computes a softmax, and this layer's `weigh` is another function")


def wants_fused(flash_attention, needs_weights):
    """Returns what `dot_product_attention` calls `fused`.

    Args:
        flash_attention: The layer's option.
        needs_weights: Whether the attention weights are asked for or recorded.

    Raises:
        ValueError: If both are True.
    """
    if needs_weights:
        if flash_attention:
            _refuse("it gives no attention weights to return or to record")
        return False
    # `keras.config.disable_flash_attention()` is for layers that choose by themselves.
    if flash_attention is None and keras.config.is_flash_attention_enabled() is False:
        return False
    return flash_attention


def can_fuse(tensors, weigh, dropout, must):
    """Tells whether a fused kernel is to be used.

    Args:
        tensors: Queries, keys, values, mask and bias.
        weigh: Function of scores and mask that gives the attention weights.
        dropout: `Dropout` layer in training, or `None`.
        must: Whether to raise an error where none can be used.

    Raises:
        ValueError: If `must` is True and the result would be False.
    """
    if weigh is not masked_softmax:
        lacking = "it computes a softmax, and `weigh` is another function"
    elif dropout is not None and dropout.rate > 0:
        lacking = "it drops no attention weights"
    else:
        lacking = obstacle(*tensors, must=must)
    if must and lacking is not None:
        _refuse(lacking)
    return lacking is None


def _refuse(lacking, more=""):
    raise ValueError(
        "`flash_attention` must be None or False where no fused kernel can be used: "
        f"{lacking}. Received: flash_attention=True{more}"
    )
