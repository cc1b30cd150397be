"""Cuts a sequence into blocks, for attention whose memory grows with the length."""

from __future__ import annotations

from typing import Any, Literal, Self, Unpack

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.arguments import check_axes, check_size
from keras_transformer.layers.attention import dot_product_attention, is_recording
from keras_transformer.layers.cached_attention import near_entries
from keras_transformer.layers.multi_head_attention import MultiHeadAttention
from keras_transformer.layers.relative_positions import RelativePositions
from keras_transformer.masks import (
    attention_mask,
    carried_mask,
    local_window_mask,
    within_window,
)
from keras_transformer.types import (
    Constraint,
    Initializer,
    LayerOptions,
    Nest,
    Regularizer,
    Shape,
    Tensor,
    TensorLike,
)


def split_blocks(inputs, size):
    """Cuts the positions into blocks, the last one filled up with zeros.

    Args:
        inputs: Tensor (B, H, T, K).
        size: Positions in a block, C.

    Returns:
        Tensor (B, H, M, C, K) with M = ceil(T / C).
    """
    batch, heads, length, width = ops.shape(inputs)
    missing = -length % size
    padded = ops.pad(inputs, ((0, 0), (0, 0), (0, missing), (0, 0)))
    return ops.reshape(padded, (batch, heads, (length + missing) // size, size, width))


def join_blocks(blocks, length):
    """Joins blocks (B, H, M, C, K) to (B, H, T, K), the first T of M * C positions."""
    batch, heads, number, size, width = ops.shape(blocks)
    joined = ops.reshape(blocks, (batch, heads, number * size, width))
    return joined[:, :, :length]


def with_neighbours(blocks, before, after):
    """Adds to each block what stands next to it, zeros at the ends.

    Args:
        blocks: Tensor (B, H, M, C, K).
        before: Positions to add from the block before, at most C.
        after: Positions to add from the block after, at most C.

    Returns:
        Tensor (B, H, M, before + C + after, K).
    """
    parts, size = [blocks], blocks.shape[3]
    rest = ((0, 0), (0, 0))
    if before:
        ends = blocks[:, :, :-1, size - before :]
        parts.insert(0, ops.pad(ends, (*rest, (1, 0), *rest)))
    if after:
        starts = blocks[:, :, 1:, :after]
        parts.append(ops.pad(starts, (*rest, (0, 1), *rest)))
    return ops.concatenate(parts, axis=3)


# Smaller blocks save arithmetic but lose more to small matrix products.
SMALLEST_BLOCK = 32


class AttentionOptions(LayerOptions, total=False):
    """What `LocalAttention` hands on to `MultiHeadAttention`."""

    value_dim: int | None
    dropout: float
    dropout_rate: float | None
    use_bias: bool
    output_shape: int | tuple[int, ...] | None
    output_dim: int | None
    flash_attention: bool | None
    kernel_initializer: Initializer
    bias_initializer: Initializer
    kernel_regularizer: Regularizer | None
    bias_regularizer: Regularizer | None
    kernel_constraint: Constraint | None
    bias_constraint: Constraint | None
    use_gate: bool
    seed: int | None
    num_key_value_heads: int | None
    positions: Literal["rotary", "alibi"] | RelativePositions | None


@keras.saving.register_keras_serializable(package="keras_transformer")
class LocalAttention(MultiHeadAttention):
    """Self-attention of each position to those at most `window` away.

    Equals `MultiHeadAttention` under `local_window_mask`, but positions are taken in
    blocks that attend to themselves and to what stands next to them, so that time and
    memory grow with the length and not with its square (section 3.1 of Beltagy et
    al., 2020, https://arxiv.org/abs/2004.05150). No matrix of T times T is made, unless
    the attention weights are asked for.

    In a `DecoderLayer` it must be `causal`. A decoding step attends to the window too;
    its cache holds all positions.

    Args:
        num_heads: Heads, H.
        key_dim: Width of each head's queries and keys.
        window: Positions to each side that a query sees, at least 1.
        causal: Whether a query sees no position after its own.
        value_dim: Width of each head's values, d_v in the paper; default `key_dim`.
        dropout: Share of the attention weights dropped in training, in [0, 1).
        use_bias: Whether the projections add a bias.
        output_shape: Width of the output, or a tuple of its last axes; default the
            width of `query`.
        flash_attention: `None` or `False`: no fused kernel has attention in blocks.
        kernel_initializer: Initializer of the projections' matrices.
        bias_initializer: Initializer of their biases.
        kernel_regularizer: Regularizer of the matrices.
        bias_regularizer: Regularizer of the biases.
        activity_regularizer: Regularizer of what each projection gives (queries before
            they are scaled, keys, values, gate and output), as in Keras.
        kernel_constraint: Constraint of the matrices.
        bias_constraint: Constraint of the biases.
        use_gate: Whether each head's output is multiplied by a sigmoid of one more
            projection of the query: Qiu et al., 2025, https://arxiv.org/abs/2505.06708.
        seed: Integer seed of the dropout.
        num_key_value_heads: Heads of keys and values, a divisor of `num_heads`; default
            `num_heads`. Fewer make a smaller cache (grouped-query attention: Ainslie et
            al., 2023, https://arxiv.org/abs/2305.13245); 1 is multi-query attention.
        positions: "rotary", "alibi" or an object such as `RotaryPositions`: how
            positions enter self-attention itself; default `None`: they do not.
        dropout_rate: Another name for `dropout`.
        output_dim: Another name for `output_shape`.
    Call arguments:
        query: Float tensor (B, T, D).
        mask: Boolean tensor (B, T) or (B, 1, T), True where a position may be attended
            to; default the Keras mask that `query` carries.
        training: Whether dropout is applied.
        return_attention_weights: Whether the weights are returned too, (B, H, T, T),
            to inspect short sequences: it takes time and memory for that matrix.
    Returns:
        Float tensor (B, T, output_shape); with `return_attention_weights` a tuple of it
        and the attention weights before dropout.
    Raises:
        ValueError: If an argument is out of its range or the mask differs between
            queries.

    Example:
        >>> attention = LocalAttention(num_heads=2, key_dim=3, window=4)
        >>> attention(np.ones((1, 500, 6), "float32")).shape  # (1, 500, 6)
    """

    def __init__(
        self, num_heads: int, key_dim: int, window: int, causal: bool = False,
        **kwargs: Unpack[AttentionOptions],
    ) -> None:  # fmt: skip
        super().__init__(num_heads, key_dim, **kwargs)
        check_size("window", window)
        for name in ("sliding_window", "attention_axes"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}` must be None: `window` goes over the positions. "
                    f"Received: {name}={getattr(self, name)}"
                )
        if self.flash_attention:
            raise ValueError(
                "`flash_attention` must be None or False: no fused kernel attends "
                "in blocks. Received: flash_attention=True"
            )
        self.window = window
        self.causal = causal

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer) -> Self:
        """Raises `TypeError`: no attention of Keras says how far this one may see."""
        raise TypeError(
            "`from_keras` needs a layer that computes the same, and Keras has no "
            "attention in blocks, with a window to each side; use "
            "`MultiHeadAttention`, which takes over a `sliding_window` too. Received: "
            f"{type(layer).__name__}"
        )

    # Keras matches the names of `build` with those of `call`.
    def build(self, query_shape: Shape) -> None:
        super().build(query_shape)

    def call(
        self, query: TensorLike, mask: TensorLike | None = None,
        training: bool | None = None, return_attention_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        check_axes("query", query, "B", "T", "D")
        mask = attention_mask(carried_mask(query) if mask is None else mask)
        if mask is not None and mask.shape[1] != 1:
            raise ValueError(
                "`mask` must be the same for all queries, (B, T) or (B, 1, T); the "
                "window is this layer's own, and so is the causal mask with "
                f"`causal=True`. Received: shape {tuple(mask.shape)}"
            )
        if return_attention_weights or is_recording():
            window = local_window_mask(ops.shape(query)[1], self.window, self.causal)
            mask = window if mask is None else ops.logical_and(mask, window)
        return super().call(
            query,
            mask=mask,
            training=training,
            return_attention_weights=return_attention_weights,
        )

    def _attend(self, queries, keys, values, mask, dropout, fused=False):
        length, size = ops.shape(queries)[2], max(self.window, SMALLEST_BLOCK)
        if queries.shape[2] == 1 or (mask is not None and mask.shape[2] != 1):
            return super()._attend(queries, keys, values, mask, dropout, fused)
        if self.positions is not None:
            places = ops.arange(length, dtype="int32")
            queries, keys = self._place(queries, keys, places)
        copies = self.num_heads // keys.shape[1]
        if copies > 1:
            keys, values = (ops.repeat(x, copies, axis=1) for x in (keys, values))
        outputs, attention_weights = dot_product_attention(
            split_blocks(queries, size),
            self._surroundings(keys, size),
            self._surroundings(values, size),
            self._block_mask(mask, length, size),
            self._block_bias(size),
            self.weigh,
            dropout,
        )
        return join_blocks(outputs, length), attention_weights

    def _surroundings(self, inputs, size):
        """(B, H, T, K) --> (B, H, M, C', K), what each block of queries may see."""
        after = 0 if self.causal else self.window
        return with_neighbours(split_blocks(inputs, size), self.window, after)

    def _block_positions(self, size):
        """Positions, within a block, of its queries (C,) and of its keys (C',)."""
        after = 0 if self.causal else self.window
        own = np.arange(size, dtype="int32")
        return own, np.arange(-self.window, size + after, dtype="int32")

    def _block_mask(self, mask, length, size):
        """Returns the mask of the blocks, (B or 1, 1, M, C, C')."""
        if mask is None:
            mask = ops.ones((1, 1, 1, length), dtype="bool")
        # Not every backend pads booleans.
        is_key = ops.cast(ops.transpose(mask, (0, 1, 3, 2)), "int32")  # (B, 1, T, 1)
        is_key = ops.swapaxes(self._surroundings(is_key, size), -1, -2) > 0
        own, near = self._block_positions(size)
        in_window = within_window(own[:, None], near[None], self.window, self.causal)
        return ops.logical_and(is_key, in_window)

    def _block_bias(self, size):
        """Returns the bias of positions, (H, 1, C, C'), or `None`."""
        if self.positions is None:
            return None
        positions = map(ops.convert_to_tensor, self._block_positions(size))
        bias = self._position_bias(*positions)
        return None if bias is None else ops.expand_dims(bias, 1)

    def step(
        self, inputs: TensorLike, cache: Nest, place: Nest, mask: TensorLike | None,
        weights: Nest,
    ) -> tuple[Tensor, Nest]:  # fmt: skip
        """As `MultiHeadAttention.step`, within the window."""
        in_window = near_entries(place, cache[0], inputs.shape[1], self.window)
        return super().step(inputs, cache, place, mask & in_window, weights)

    def compute_output_shape(self, query_shape: Shape) -> Shape:
        return super().compute_output_shape(query_shape)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"window": self.window, "causal": self.causal}
