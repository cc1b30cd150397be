"""Caches: every way of writing to them gives the same."""

from __future__ import annotations

import numpy as np
import pytest
from keras import ops

from keras_transformer.kernels.decoding import (
    cache_place,
    new_cache,
    resize_cache,
    write_position,
)
from tests.kernels.ways import called, every_way, on_tensorflow

B, H, L, K = 2, 3, 5, 7


def positions(rng, hypotheses, count=L):
    """What is written: (count, B, H, N, K)."""
    return rng.normal(size=(count, B, H, hypotheses, K)).astype("float32")


def written(cache, new, position):
    """Writes (B, H, N, K) at a position, an integer or a scalar tensor."""
    return write_position(cache, new, cache_place(cache, new.shape[2], position))


def written_in_order(new, order, hypotheses):
    """Writes positions one after the other into a cache made in the same way."""
    cache = new_cache(B, H, L * hypotheses, K, "float32")
    for index in order:
        cache = written(cache, new[index], ops.convert_to_tensor(index, "int32"))
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

    def both(new):
        caches = [new_cache(B, H, L * 4, width, "float32") for width in (K, K - 2)]
        place = cache_place(caches[0], 4, ops.convert_to_tensor(3, "int32"))
        parts = new[3], new[3][..., : K - 2]
        return [
            write_position(*pair, place) for pair in zip(caches, parts, strict=True)
        ]

    expected = expected_cache(new, [3], 4)
    wide, narrow = map(ops.convert_to_numpy, called(way, both, new))
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(narrow, expected[..., : K - 2])


@every_way
def test_two_caches_of_one_shape_are_not_one(rng, way):
    new = positions(rng, 2)

    def both(new):
        zero = ops.zeros((), "int32")
        first, second = (new_cache(B, H, L * 2, K, "float32") for _ in range(2))
        first = written(first, new[0], zero)
        second = written(second, new[1], zero + 1)
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
            return i + 1, written(cache, tf.gather(new, i), i)

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


@every_way
def test_a_resized_cache_keeps_what_was_written(rng, way):
    new = positions(rng, 2)
    places = np.array([1, 0, 1], "int32")

    def resized(new, places):
        cache = resize_cache(written_in_order(new, range(L), 2), places, 6)
        return written(cache, new[0][:1, :, :, :] + 0.0 * cache[:, :, :2], L + 1)

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
