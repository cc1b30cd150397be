"""The self-attention of encoder and decoder layers, by the name of its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.layers.linear_attention import LinearAttention
from keras_transformer.layers.local_attention import LocalAttention
from keras_transformer.layers.lsh_attention import LSHAttention
from keras_transformer.layers.multi_head_additive_attention import (
    MultiHeadAdditiveAttention,
)
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.performer_attention import PerformerAttention
from keras_transformer.layers.relative_positions import AlibiPositions
from keras_transformer.layers.relu_attention import ReluAttention


def _local(causal, attention_window, **options):
    return LocalAttention(window=attention_window, causal=causal, **options)


def _masked(layer_class):
    """A kind whose causal mask its layer gives it."""

    def make(causal, attention_window, **options):
        return layer_class(**options)

    return make


def _subquadratic(layer_class, *unset):
    """A kind that is causal by itself and lacks options, which are unset then."""

    def make(causal, attention_window, **options):
        # `check_attention` has seen that they are.
        options = {k: v for k, v in options.items() if k not in unset}
        return layer_class(causal=causal, **options)

    return make


_NO_SCORES = "positions", "num_key_value_heads", "dropout_rate"
# One entry for each of `attention_kinds.ATTENTION_KINDS`.
_MAKERS: dict[str, Callable[..., keras.layers.Layer]] = {
    "dot-product": _masked(MultiHeadAttention),
    "local": _local,
    "relu": _masked(ReluAttention),
    "additive": _masked(MultiHeadAdditiveAttention),
    "linear": _subquadratic(LinearAttention, *_NO_SCORES),
    "performer": _subquadratic(PerformerAttention, *_NO_SCORES),
    "lsh": _subquadratic(LSHAttention, "positions", "num_key_value_heads"),
}


def make_self_attention(
    attention: str, causal: bool, attention_window: int | None, **options: Any
) -> keras.layers.Layer:
    """Makes a self-attention of a kind.

    Args:
        attention: A key of `ATTENTION_KINDS`, checked by `check_attention`.
        causal: Whether a position sees none after it. What computes with a mask leaves
            that to the mask; the others have an attribute `causal`.
        attention_window: Positions to each side that a query sees, or `None`.
        **options: The arguments of `MultiHeadAttention` that a layer sets.

    Returns:
        The layer, with the methods that `make_attention` asks for.
    """
    if options["positions"] == "alibi" and not causal:
        options["positions"] = AlibiPositions(after=2.0)
    return _MAKERS[attention](causal, attention_window, **options)
