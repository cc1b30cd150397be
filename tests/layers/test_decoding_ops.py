"""The operations of a decoding step: every way of them gives the same."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers.attention import attention_bias
from keras_transformer.layers.decoding_ops import (
    attend,
    cache_place,
    merge_heads,
    new_cache,
    resize_cache,
    split_heads,
    transpose,
    write_position,
)
from tests.models.test_backends import run_python
from tests.reference.numpy_transformer import dot_product_attention

B, H, L, K = 2, 3, 5, 7
WAYS = ["eager", "graph", "xla"]
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow's graphs"
)
every_way = pytest.mark.parametrize(
    "way", ["eager", *(pytest.param(way, marks=on_tensorflow) for way in WAYS[1:])]
)


def called(way, function, *inputs):
    """Calls a function of tensors eagerly, in a graph, or in a graph of XLA."""
    if way == "eager":
        return function(*map(ops.convert_to_tensor, inputs))
    import tensorflow as tf

    # XLA compiles for the shapes it is called with; other graphs know no shape.
    inputs = [tf.convert_to_tensor(x) for x in inputs]
    sizes = [[None, *x.shape[1:]] if x.shape.rank else [] for x in inputs]
    specs = [tf.TensorSpec(s, x.dtype) for s, x in zip(sizes, inputs, strict=True)]
    return tf.function(
        function, input_signature=specs, jit_compile=way == "xla", autograph=False
    )(*inputs)


def positions(rng, hypotheses, count=L):
    """What is written: (count, B, H, k, K)."""
    return rng.normal(size=(count, B, H, hypotheses, K)).astype("float32")


def written_in_order(new, order, hypotheses):
    """Writes positions one after the other into a cache made in the same way."""
    cache = new_cache(B, H, L * hypotheses, K, "float32")
    for index in order:
        cache = write_position(cache, new[index], ops.convert_to_tensor(index, "int32"))
    return cache


def expected_cache(new, order, hypotheses):
    cache = np.zeros((B, H, L, hypotheses, K), "float32")
    for index in order:
        cache[:, :, index] = new[index]
    return cache.reshape(B, H, L * hypotheses, K)


@every_way
@pytest.mark.parametrize("hypotheses", [1, 4])
def test_a_position_is_written_and_no_other_changes(rng, way, hypotheses):
    order = (0, 3, 1, 4)
    new = positions(rng, hypotheses)
    cache = called(way, lambda x: written_in_order(x, order, hypotheses), new)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(cache), expected_cache(new, order, hypotheses)
    )


@every_way
def test_a_place_that_is_worked_out_once_serves_every_cache_of_its_size(rng, way):
    new = positions(rng, 4)

    def written(new):
        caches = [new_cache(B, H, L * 4, width, "float32") for width in (K, K - 2)]
        place = cache_place(caches[0], 4, ops.convert_to_tensor(3, "int32"))
        parts = new[3], new[3][..., : K - 2]
        return [
            write_position(*pair, place) for pair in zip(caches, parts, strict=True)
        ]

    expected = expected_cache(new, [3], 4)
    wide, narrow = map(ops.convert_to_numpy, called(way, written, new))
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(narrow, expected[..., : K - 2])


@every_way
def test_a_position_is_overwritten(rng, way):
    new, other = positions(rng, 2), positions(rng, 2)

    def twice(new, other):
        cache = written_in_order(new, range(L), 2)
        return write_position(cache, other[2], ops.convert_to_tensor(2, "int32"))

    expected = new.copy()
    expected[2] = other[2]
    np.testing.assert_array_equal(
        ops.convert_to_numpy(called(way, twice, new, other)),
        expected_cache(expected, range(L), 2),
    )


@every_way
def test_two_caches_of_one_shape_are_not_one(rng, way):
    new = positions(rng, 2)

    def both(new):
        zero = ops.zeros((), "int32")
        first, second = (new_cache(B, H, L * 2, K, "float32") for _ in range(2))
        first = write_position(first, new[0], zero)
        second = write_position(second, new[1], zero + 1)
        return first, second, new_cache(B, H, L * 2, K, "float32")

    first, second, third = map(ops.convert_to_numpy, called(way, both, new))
    np.testing.assert_array_equal(first, expected_cache(new, [0], 2))
    np.testing.assert_array_equal(second, expected_cache(new, [1], 2))
    np.testing.assert_array_equal(third, np.zeros_like(third))


@on_tensorflow
def test_a_graph_writes_in_place_and_starts_empty_each_time(rng):
    import tensorflow as tf

    @tf.function(autograph=False)
    def write_all(new, count):
        cache = new_cache(B, H, L * 2, K, "float32")

        def write(i, cache):
            return i + 1, write_position(cache, tf.gather(new, i), i)

        return tf.while_loop(lambda i, _: i < count, write, (0, cache))[1]

    new = positions(rng, 2)
    for count in (5, 2, 5):
        cache = write_all(tf.constant(new), tf.constant(count)).numpy()
        np.testing.assert_array_equal(cache, expected_cache(new, range(count), 2))
    graph = write_all.get_concrete_function(tf.constant(new), tf.constant(5)).graph
    names = {
        node.op for f in graph.as_graph_def().library.function for node in f.node_def
    }
    assert "InplaceUpdate" in names
    assert not names & {"ConcatV2", "TensorScatterUpdate", "Pad", "SelectV2"}


@on_tensorflow
def test_for_xla_no_operation_is_in_place(rng):
    import tensorflow as tf

    def operations(jit_compile):
        @tf.function(autograph=False, jit_compile=jit_compile)
        def write(new):
            return written_in_order(new, (0, 1), 2)

        graph = write.get_concrete_function(tf.constant(positions(rng, 2))).graph
        return {operation.type for operation in graph.get_operations()}

    assert "InplaceUpdate" in operations(False)
    assert "InplaceUpdate" not in operations(True)


@every_way
def test_a_resized_cache_keeps_what_was_written(rng, way):
    new = positions(rng, 2)
    places = np.array([1, 0, 1], "int32")

    def resized(new, places):
        cache = resize_cache(written_in_order(new, range(L), 2), places, 6)
        return write_position(cache, new[0][:1, :, :, :] + 0.0 * cache[:, :, :2], L + 1)

    result = ops.convert_to_numpy(called(way, resized, new, places))
    full = expected_cache(new, range(L), 2)[places]
    np.testing.assert_array_equal(result[:, :, : L * 2], full)
    np.testing.assert_array_equal(
        result[:, :, L * 2 : L * 2 + 2], np.zeros((3, H, 2, K))
    )
    np.testing.assert_allclose(
        result[:, :, L * 2 + 2 : L * 2 + 4], np.repeat(new[0][:1], 3, axis=0)
    )
    assert result.shape == (3, H, L * 2 + 6, K)


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


BACKEND_SCRIPT = """
import sys
import keras
import numpy as np
from keras import ops
from tests.layers.test_decoding_ops import written_in_order

new = np.load(sys.argv[1] + "/new.npy")
write = lambda x: written_in_order(x, (0, 3, 1, 4), 4)
if keras.backend.backend() == "jax":
    import jax
    write = jax.jit(write)
cache = write(ops.convert_to_tensor(new))
np.save(sys.argv[1] + "/cache.npy", ops.convert_to_numpy(cache))
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_write_the_same(rng, backend, tmp_path):
    new = positions(rng, 4)
    np.save(tmp_path / "new.npy", new)
    run_python(backend, "-c", BACKEND_SCRIPT, tmp_path)
    np.testing.assert_array_equal(
        np.load(tmp_path / "cache.npy"), expected_cache(new, (0, 3, 1, 4), 4)
    )
