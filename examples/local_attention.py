"""Attention within a window around each position, by overriding one method.

A subclass of `MultiHeadAttention` overrides `attend`. It works in blocks, so that time
and memory grow linearly with the length (section 3.1 of Beltagy et al., 2020,
https://arxiv.org/abs/2004.05150). The program compares it with full attention under a
mask of the window. speech.py uses it.

    python examples/local_attention.py --length 4096
"""

import argparse
import time
import keras_transformer.quiet

import keras
import numpy as np
from keras import ops

import keras_transformer as kt
from keras_transformer.nn.layers.attention import (
    dot_product_attention,
    is_recording,
    prepare_mask,
)
from keras_transformer.nn.masks import mask_of_keys

# Smaller blocks save arithmetic but are slower.
SMALLEST_BLOCK = 32


def within_window(queries, keys, window, causal=False):
    """Returns which keys are within the windows of queries, given positions."""
    ahead = 0 if causal else window
    return (keys >= queries - window) & (keys <= queries + ahead)


def window_mask(length, window, causal=False):
    """Returns a mask (1, T, T) of the keys that are at most `window` away."""
    places = ops.arange(length, dtype="int32")
    return within_window(places[:, None], places, window, causal)[None]


@keras.saving.register_keras_serializable(package="examples")
class LocalAttention(kt.MultiHeadAttention):
    """Self-attention of each position to those at most `window` away.

    A mask must be the same for all queries. The cache of `step` holds all positions.

    Args:
        window: Positions on each side that a query attends to, at least 1.
    """

    equals_keras = False  # `from_keras` refuses weights made for all positions.

    def __init__(self, num_heads, key_dim, window, **options):
        super().__init__(num_heads, key_dim, **options)
        if self.flash_attention or window < 1:
            raise ValueError("`window` must be positive, without `flash_attention`")
        self.window = window

    def attend(
        self,
        queries,
        keys,
        values,
        mask=None,
        causal=False,
        training=None,
        with_weights=False,
        prepared=None,
    ):
        if prepared is not None and prepared.places is not None:  # a step of decoding
            mask = ops.logical_and(mask, within_window(*prepared.places, self.window))
            prepared = prepare_mask(mask, queries.dtype, prepared.places)
            return super().attend(queries, keys, values, mask=mask, prepared=prepared)
        length = ops.shape(queries)[2]
        size = max(self.window, SMALLEST_BLOCK)
        if mask is None:
            mask = ops.ones((1, 1, 1, length), dtype="bool")
        is_key = ops.expand_dims(mask_of_keys(mask), -1)  # (B, 1, T, 1)
        if with_weights or is_recording() or queries.shape[2] == 1:
            mask = ops.logical_and(mask, window_mask(length, self.window, causal))
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

    def get_config(self):
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


def main(arguments=None):
    parser = argparse.ArgumentParser(description=LocalAttention.__doc__)
    for name, default in {"length": 2048, "window": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    local, full = LocalAttention(4, 16, options.window), kt.MultiHeadAttention(4, 16)
    states = keras.random.normal((1, options.length, 64), seed=1)
    local.build(states.shape)
    full.build(states.shape)
    full.set_weights(local.get_weights())
    near = window_mask(options.length, options.window)
    outputs, start = [], time.perf_counter()
    for attend in (lambda: local(states), lambda: full(states, attention_mask=near)):
        outputs.append(ops.convert_to_numpy(attend()))
        print(f"{time.perf_counter() - start:.2f} s")
        start = time.perf_counter()
    difference = np.abs(np.subtract(*outputs)).max()
    print(f"largest difference {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
