"""Recurrent layers over rows whose padding stands at the end."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import recurrent
from tests.layers.reference_weights import assert_close, randomise
from tests.reference import numpy_recurrent as reference

IS_TOKEN = np.arange(5) < np.array([[5], [3], [1], [0]])


def test_tokens_are_turned_round_and_padding_stays():
    rows = np.arange(20.0, dtype="float32").reshape(4, 5)
    expected = [
        [4, 3, 2, 1, 0],
        [7, 6, 5, 8, 9],
        [10, 11, 12, 13, 14],
        [15, 16, 17, 18, 19],
    ]
    turned = recurrent.reverse_tokens(rows[..., None], IS_TOKEN)
    np.testing.assert_array_equal(ops.convert_to_numpy(turned)[..., 0], expected)
    again = recurrent.reverse_tokens(turned, IS_TOKEN)
    np.testing.assert_array_equal(ops.convert_to_numpy(again)[..., 0], rows)


def test_the_last_token_of_each_row_is_taken():
    rows = np.arange(40.0, dtype="float32").reshape(4, 5, 2)
    expected = [rows[0, 4], rows[1, 2], rows[2, 0], rows[3, 0]]
    found = recurrent.at_last_token(rows, IS_TOKEN)
    np.testing.assert_array_equal(ops.convert_to_numpy(found), expected)


@pytest.mark.parametrize("kind", ("gru", "lstm"))
def test_states_are_the_references_and_no_mask_keeps_a_faster_way_shut(kind, rng):
    layer = recurrent.recurrent_layer(kind, 7, "float32", "layer")
    layer.build((None, None, 3))
    randomise(layer, rng)
    masks, inner_loop = [], layer.inner_loop

    def spying(*given, mask=None, **options):
        masks.append(mask)
        return inner_loop(*given, mask=mask, **options)

    layer.inner_loop = spying
    inputs = rng.standard_normal((4, 5, 3)).astype("float32")
    states = ops.convert_to_numpy(layer(inputs, mask=IS_TOKEN))
    assert masks == [None]
    names = ("kernel", "recurrent_kernel", "bias")
    weights = {
        name: ops.convert_to_numpy(getattr(layer.cell, name)).astype("float64")
        for name in names
    }
    for row, length in enumerate(IS_TOKEN.sum(axis=1)):
        expected = reference.layer(inputs[row, :length], weights).reshape(-1, 7)
        assert_close(states[row, :length], expected)


@pytest.mark.parametrize(
    "backend, kind, dtype, expected",
    [
        # XLA compiles the step there, and exports go to processors.
        ("tensorflow", "gru", "float32", False),
        ("torch", "gru", "bfloat16", "auto"),
        ("torch", "lstm", "float32", "auto"),
        ("jax", "lstm", "float32", "auto"),
        # JAX's binding of cuDNN takes float32 alone.
        ("jax", "lstm", "mixed_bfloat16", False),
        ("jax", "gru", "mixed_bfloat16", "auto"),
    ],
)
def test_cudnn_is_used_where_it_can_be(monkeypatch, backend, kind, dtype, expected):
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    layer = recurrent.recurrent_layer(kind, 7, keras.DTypePolicy(dtype), "layer")
    assert layer.use_cudnn == expected


def test_a_keras_layer_would_be_stopped_by_the_mask():
    """The premise: Keras calls its faster ways, and each refuses any mask."""
    if keras.backend.backend() == "tensorflow":
        pytest.skip("cuDNN's operation is not used there")
    inputs, mask = ops.ones((1, 2, 3)), ops.ones((1, 2), "bool")
    layer = keras.layers.GRU(5, use_cudnn=True)
    layer(inputs)
    with pytest.raises(ValueError, match="cuDNN is not supported"):
        layer(inputs, mask=mask)
