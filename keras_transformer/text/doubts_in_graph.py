"""`text.doubts` with TensorFlow's operations, for sentences [N] at once."""

from __future__ import annotations

import math

import tensorflow as tf

from keras_transformer.text.doubts import LONGEST_LOOP, WIDE


def doubts_of(sources, translations, scores, lowest=None):
    """Returns which of `DOUBTS` translations [N] deserve: (N, 4) bool."""
    of_sources, words = _words(sources), _words(translations)
    lower = [tf.strings.lower(x, encoding="utf-8") for x in (sources, translations)]
    found = (
        (of_sources.row_lengths() > 2) & tf.equal(*lower),
        (of_sources.row_lengths() > 0) & (words.row_lengths() == 0),
        _loop(words) & ~_loop(of_sources),
        scores < (-math.inf if lowest is None else lowest),
    )
    return tf.stack(found, axis=1)


def _words(texts):
    return tf.strings.split(tf.strings.regex_replace(texts, WIDE, r" \1 "))


def _loop(words):
    """Returns whether words (N, L), ragged, loop: (N,)."""
    ids = tf.strings.to_hash_bucket_fast(words.flat_values, 1 << 60)
    ids = tf.transpose(words.with_flat_values(ids).to_tensor(-1))  # (L, N)
    place = tf.range(tf.shape(ids)[0])
    size = tf.range(1, LONGEST_LOOP + 1)[:, None]
    before = place - size  # (16, L)
    same = ids == tf.gather(ids, tf.maximum(before, 0))  # (16, L, N)
    same &= (before >= 0)[:, :, None] & (ids >= 0)
    counts = tf.cumsum(tf.cast(same, tf.int32), axis=1)
    start = (place - 2 * size)[:, :, None]
    counted = tf.gather(counts, tf.maximum(start[:, :, 0], 0), axis=1, batch_dims=1)
    equal = counts - tf.where(start >= 0, counted, 0)
    return tf.reduce_any(equal >= 2 * size[:, :, None], axis=[0, 1])
