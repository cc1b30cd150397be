"""Cuts a sequence into blocks, for attention whose memory grows with the length."""

from __future__ import annotations

from keras import ops


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
