"""Checks for layers and models of your own: what must hold whatever their weights are.

Each raises an `AssertionError` that says in which row and at which position the outputs
differ most, and by how much. They need no test runner and run on every backend.
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
