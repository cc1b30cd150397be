"""Attention of one new position: every way of it gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.decoding import (
    attend,
    merge_heads,
    split_heads,
    transpose,
)
from keras_transformer.kernels.few_passes import attention_bias
from tests.kernels.ways import called, every_way
from tests.reference.numpy_transformer import dot_product_attention

B, H, K = 2, 3, 7


@every_way
@pytest.mark.parametrize("hypotheses", [1, 4])
@pytest.mark.parametrize("widths", [(7,), (5, 5, 5), (5, 5, 11)])
def test_heads_are_split_as_slices_and_merged_again(rng, way, hypotheses, widths):
    projected = rng.normal(size=(B * hypotheses, H * sum(widths))).astype("float32")
    parts = called(
        way, lambda x: tuple(split_heads(x, hypotheses, H, widths)), projected
    )
    start = 0
    for part, width in zip(parts, widths, strict=True):
        expected = projected[:, start : start + H * width]
        start += H * width
        by_head = expected.reshape(B, hypotheses, H, width).transpose(0, 2, 1, 3)
        part = ops.convert_to_numpy(part)
        np.testing.assert_array_equal(part, by_head)
        merged = ops.convert_to_numpy(called(way, merge_heads, part))
        np.testing.assert_array_equal(merged, expected)


@every_way
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_transposition_moves_the_same_values(rng, way, dtype):
    x = ops.cast(rng.normal(size=(2, 3, 5, 7)).astype("float32"), dtype)
    moved = called(way, lambda x: ops.cast(transpose(x, (0, 2, 1, 3)), "float32"), x)
    expected = ops.convert_to_numpy(ops.cast(x, "float32")).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(ops.convert_to_numpy(moved), expected)


@every_way
@pytest.mark.parametrize("hypotheses", [1, 4])
@pytest.mark.parametrize("scale", [1.0, 100.0])
@pytest.mark.parametrize("by_row", [False, True])
def test_attention_is_that_of_the_paper(rng, way, hypotheses, scale, by_row):
    shapes = [(B, H, hypotheses, K), (B, H, 11, K), (B, H, 11, 13)]
    queries, keys, values = (
        rng.normal(0, scale, shape).astype("float32") for shape in shapes
    )
    mask = np.array([[True] * 11, [True] * 4 + [False] * 7])[:, None, None]
    bias = ops.convert_to_numpy(attention_bias(ops.convert_to_tensor(mask), "float32"))
    scaled = queries * np.float32(K**-0.5)
    output, weights = called(
        way, lambda *x: attend(*x, by_row), scaled, keys, values, bias
    )
    for head in range(H):
        expected = dot_product_attention(
            queries[:, head], keys[:, head], values[:, head], mask[:, 0]
        )
        for ours, theirs in zip((output, weights), expected, strict=True):
            ours = ops.convert_to_numpy(ours)[:, head]
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5 * scale)
    assert np.all(ops.convert_to_numpy(weights)[1, :, :, 4:] == 0.0)
