"""Checks for layers and models of your own, whatever their weights.

Each raises an `AssertionError` with the row and position of the largest difference.
They need no test runner and run on every backend. Read `causal.py` first.
"""

from keras_transformer.testing.cached import assert_cached_equals_uncached
from keras_transformer.testing.causal import assert_causal
from keras_transformer.testing.padded import assert_padding_invariant
from keras_transformer.testing.serializable import assert_serializable

__all__ = [
    "assert_cached_equals_uncached",
    "assert_causal",
    "assert_padding_invariant",
    "assert_serializable",
]
