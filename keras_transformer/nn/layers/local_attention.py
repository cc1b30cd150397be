"""Attention within a window around each position."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.nn.arguments import check_size
from keras_transformer.nn.layers.attention import (
    PreparedMask,
    dot_product_attention,
    is_recording,
    prepare_mask,
    refuse_fused,
)
from keras_transformer.nn.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.nn.masks import local_window_mask, mask_of_keys, within_window
from keras_transformer.types import Tensor, TensorLike

# Smaller blocks save arithmetic but are slower.
SMALLEST_BLOCK = 32


@keras.saving.register_keras_serializable(package="keras_transformer")
class LocalAttention(MultiHeadAttention):
    """Self-attention of each position to those at most `window` away.

    Equals `MultiHeadAttention` with `local_window_mask`, but works in blocks, so that
    time and memory grow linearly with the length (section 3.1 of Beltagy et al., 2020,
    https://arxiv.org/abs/2004.05150), unless attention weights are requested.

    It is called like `MultiHeadAttention`; a mask must be the same for all queries. The
    cache of `step` holds all positions.

    Args:
        num_heads: See `MultiHeadAttention`, as for the rest.
        key_dim: Width of a head's queries and keys.
        window: Positions on each side that a query attends to, at least 1.
        **options: Other options of `MultiHeadAttention`.
    Raises:
        ValueError: As `MultiHeadAttention`, or if the mask differs between queries.

    Example:
        >>> attention = LocalAttention(num_heads=2, key_dim=3, window=4)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    equals_keras = False

    def __init__(
        self, num_heads: int, key_dim: int, window: int, **options: Any
    ) -> None:
        super().__init__(num_heads, key_dim, **options)
        check_size("window", window)
        if self.flash_attention:
            refuse_fused("none attends in blocks")
        self.window = window

    def attend(
        self,
        queries: TensorLike,
        keys: TensorLike,
        values: TensorLike,
        mask: TensorLike | None = None,
        causal: bool = False,
        training: bool | None = None,
        with_weights: bool = False,
        prepared: PreparedMask | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if prepared is not None and prepared.places is not None:
            mask = ops.logical_and(mask, within_window(*prepared.places, self.window))
            prepared = prepare_mask(mask, queries.dtype, prepared.places)
            return super().attend(queries, keys, values, mask=mask, prepared=prepared)
        length = ops.shape(queries)[2]
        size = max(self.window, SMALLEST_BLOCK)
        if mask is None:
            mask = ops.ones((1, 1, 1, length), dtype="bool")
        is_key = ops.expand_dims(mask_of_keys(mask), -1)  # (B, 1, T, 1)
        if with_weights or is_recording() or queries.shape[2] == 1:
            window = local_window_mask(length, self.window, causal)
            mask = ops.logical_and(mask, window)
            return super().attend(
                queries, keys, values, mask, training=training, with_weights=True
            )
        after = 0 if causal else self.window
        # Positions, within a block, of its queries (C,) and of its keys (C',).
        own = np.arange(size, dtype="int32")
        near = np.arange(-self.window, size + after, dtype="int32")
        bias = None
        if self.positions is not None:
            in_block = map(ops.convert_to_tensor, (own, near))
            bias = self.positions.bias(self.num_heads, *in_block)
            bias = None if bias is None else ops.expand_dims(bias, 1)  # (H, 1, C, C')
        copies = self.num_heads // keys.shape[1]
        if copies > 1:
            keys, values = (ops.repeat(x, copies, axis=1) for x in (keys, values))

        def surroundings(inputs):
            """(B, H, T, K) --> (B, H, M, C', K), the positions near each block."""
            return with_neighbours(split_blocks(inputs, size), self.window, after)

        # Not every backend pads booleans.
        is_key = surroundings(ops.cast(is_key, "int32"))  # (B or 1, 1, M, C', 1)
        is_key = ops.swapaxes(is_key, -1, -2) > 0
        in_window = within_window(own[:, None], near[None], self.window, causal)
        mask = ops.logical_and(is_key, in_window)  # (B or 1, 1, M, C, C')
        outputs, _ = dot_product_attention(
            split_blocks(queries, size),
            surroundings(keys),
            surroundings(values),
            mask=mask,
            bias=bias,
            weigh=self.weigh,
            dropout=self.attention_dropout if training else None,
        )
        return join_blocks(outputs, length), None

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"window": self.window}


def split_blocks(inputs, size):
    """(B, H, T, K) --> (B, H, M, C, K), M = ceil(T / C), zeros at the end."""
    batch, heads, length, width = ops.shape(inputs)
    missing = -length % size
    padded = ops.pad(inputs, ((0, 0), (0, 0), (0, missing), (0, 0)))
    return ops.reshape(padded, (batch, heads, (length + missing) // size, size, width))


def join_blocks(blocks, length):
    """(B, H, M, C, K) --> (B, H, T, K): the first T of M * C positions."""
    batch, heads, number, size, width = ops.shape(blocks)
    joined = ops.reshape(blocks, (batch, heads, number * size, width))
    return joined[:, :, :length]


def with_neighbours(blocks, before, after):
    """Adds to each block its neighbouring positions, zeros at the ends."""
    # (B, H, M, C, K) --> (B, H, M, before + C + after, K), each of both at most C.
    parts = [blocks]
    size = blocks.shape[3]
    rest = ((0, 0), (0, 0))
    # JAX sees only in this order that the number of blocks stays the same.
    if before:
        ends = ops.pad(blocks[:, :, :, size - before :], (*rest, (1, 0), *rest))
        parts.insert(0, ends[:, :, :-1])
    if after:
        starts = ops.pad(blocks[:, :, :, :after], (*rest, (0, 1), *rest))
        parts.append(starts[:, :, 1:])
    return ops.concatenate(parts, axis=3)
